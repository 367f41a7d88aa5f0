"""What is measured of rows, in blocks, and what is kept of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sharpmax
from sharpmax._attention import problem as problems
from sharpmax._attention.problem import Problem
from sharpmax.models._attachment import ATTRIBUTE, Attachment
from sharpmax.models._diagnosis import meter as _meter
from sharpmax.models._diagnosis.meter import LooksAheadError, Meter, measure, rows_of
from sharpmax.models._interface import attention_forward
from sharpmax.models._rule import Rule

LENGTH = 12


def problem(mask: Tensor | None = None, sink: Tensor | None = None, **options: bool) -> Problem:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, LENGTH, 8, generator=generator)
    key = torch.randn(1, 2, LENGTH, 8, generator=generator)
    return problems.check(
        query, key, None, attn_mask=mask, is_causal=options.get("is_causal", True),
        alignment="upper_left", scale=1.0, softcap=None, sink=sink, sink_role="key", window=None,
        enable_gqa=True, dropout=0.0,
    )  # fmt: skip


def causal() -> Tensor:
    return torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).tril()


def test_how_many_rows() -> None:
    assert [rows_of(length, 64) for length in (2, 3, 10, 128, 1000)] == [1, 1, 5, 64, 64]


def test_entropy_and_count_are_those_of_attention_statistics() -> None:
    made = problem()
    figures, windowed = measure(made, tail=3, sink=False)
    expected = sharpmax.attention_statistics(
        made.query, made.key, is_causal=True, scale=1.0, enable_gqa=True
    )
    np.testing.assert_allclose(figures[0], expected.entropy()[0], atol=1e-5)
    np.testing.assert_array_equal(figures[1], expected.count[0])
    largest = torch.exp(expected.maximum - expected.logsumexp())
    np.testing.assert_allclose(figures[2], largest[0], rtol=1e-5)
    assert not windowed


def test_masses_add_up() -> None:
    figures, _ = measure(problem(sink=torch.randn(4)), tail=LENGTH, sink=False)
    *_, sink, whole = figures
    np.testing.assert_allclose(sink + whole, 1.0, rtol=1e-5)
    # The first row sees the first token and the learned sink.
    assert figures[1][0, 0] == 2
    apart, _ = measure(problem(sink=torch.randn(4)), tail=LENGTH, sink=True)
    np.testing.assert_array_equal(apart[1][0], np.arange(LENGTH))


def test_hidden_keys_count_neither_in_the_tail_nor_anywhere() -> None:
    mask = causal()
    mask[..., 8:11] = False
    mask[..., 4, :] = False
    figures, windowed = measure(problem(mask, is_causal=False), tail=2, sink=False)
    assert windowed
    assert figures[1][:, 4].tolist() == [0.0] * 4
    assert figures[1][0].tolist() == [1, 2, 3, 4, 0, 6, 7, 8, 8, 8, 8, 9]
    logits = (problem().query @ problem().key.repeat_interleave(2, 1).mT)[0, :, 11]
    weights = logits.masked_fill(~mask[0, 0, 11], -torch.inf).softmax(-1)
    np.testing.assert_allclose(figures[6][:, 11], weights[:, [7, 11]].sum(-1), rtol=1e-5)


@pytest.mark.parametrize("mask", [None, causal()], ids=["causal", "mask"])
def test_blocks_change_nothing(mask: Tensor | None, monkeypatch: pytest.MonkeyPatch) -> None:
    made = problem(mask, is_causal=mask is None)
    found = []
    for limit in (1 << 22, 1):
        monkeypatch.setattr(_meter, "LOGITS_AT_ONCE", limit)
        meter = Meter(rows=5, tail=2, sink=False)
        meter.begin([6, LENGTH])
        meter.observe(0, made)
        meter.keep()
        found.append(meter.kept)
    whole, pieces = found
    assert [len(slot.blocks) for slot in whole.values()] == [1, 1]
    assert [len(slot.blocks) for slot in pieces.values()] == [3, 5]
    for place, slot in whole.items():
        for one, other in zip(slot.figures(), pieces[place].figures(), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_what_is_dropped_is_gone() -> None:
    meter = Meter(rows=5, tail=2, sink=False)
    meter.begin([LENGTH])
    meter.observe(0, problem())
    meter.drop()
    meter.keep()
    assert not meter.kept


def test_what_is_not_about_the_tokens_is_left_out() -> None:
    meter = Meter(rows=5, tail=2, sink=False)
    meter.begin([6, LENGTH + 1])
    meter.observe(0, problem())
    meter.keep()
    assert not meter.kept


def test_looking_ahead_is_refused() -> None:
    meter = Meter(rows=5, tail=2, sink=False)
    meter.begin([6, LENGTH])
    hidden = torch.where(causal(), 0.0, torch.finfo(torch.float32).min)
    meter.observe(0, problem(hidden, is_causal=False))
    for mask in (None, torch.ones_like(causal()), torch.zeros_like(hidden)):
        with pytest.raises(LooksAheadError):
            meter.observe(0, problem(mask, is_causal=False))


def test_the_interface_tells_an_observer() -> None:
    seen: list[tuple[int, Problem]] = []

    def watch(layer: int, problem: Problem) -> None:
        assert not torch.is_grad_enabled()
        seen.append((layer, problem))

    outputs = []
    made = problem()
    for observe in (None, watch):
        module = nn.Module()
        module.is_causal, module.num_key_value_groups = True, 2
        module.__dict__[ATTRIBUTE] = Attachment(3, Rule(), observe=observe)
        outputs.append(attention_forward(module, made.query, made.key, made.key, None)[0])
    assert torch.equal(*outputs)
    ((layer, passed),) = seen
    assert layer == 3
    assert torch.equal(passed.query, made.query)
    assert (passed.left, passed.right, passed.value) == (-1, 0, None)
