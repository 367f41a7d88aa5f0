"""The attention interface, called as transformers calls it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import sharpmax
from model_passages import Passage, expected_output
from sharpmax._attention import problem
from sharpmax.models._attachment import ATTRIBUTE, Attachment, statistics_to
from sharpmax.models._config import MASKED, NAME, NAMES
from sharpmax.models._interface import attention_forward, masked_attention_forward
from sharpmax.models._rule import Rule
from sharpmax.policies import Exponential, Hard, Policy

REFERENCE = 0.5


def module(policy: Policy | None = None, *, is_causal: bool = True, **attachment: Any) -> nn.Module:
    made = nn.Module()
    made.is_causal = is_causal
    made.num_key_value_groups = 2
    made.__dict__[ATTRIBUTE] = Attachment(0, Rule(policy), **attachment)
    return made


def tensors(queries: int = 6, keys: int = 6, value_width: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(queries + keys)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return (
        2.0 * draw(2, 4, queries, 8),
        draw(2, 2, keys, 8),
        draw(2, 2, keys, value_width),
    )


def check(
    layer: nn.Module, inputs: tuple[Tensor, ...], mask: Tensor | None, **options: Any
) -> None:
    output, weights = attention_forward(layer, *inputs, mask, **options)
    assert weights is None
    assert output.is_contiguous()
    passage = Passage(layer, *inputs, mask, options, output)
    torch.testing.assert_close(output, expected_output(passage, REFERENCE))


def test_plain_names_for_attention_and_masks() -> None:
    assert AttentionInterface()[NAME] is attention_forward
    assert AttentionInterface()[MASKED] is masked_attention_forward
    for name in NAMES:
        assert name in AttentionMaskInterface()
        for part in ("flash", "sdpa", "flex", "eager", "paged", "|", "/"):
            assert part not in name


def test_where_all_is_in_the_mask_nothing_else_hides() -> None:
    layer, inputs = module(Exponential(REFERENCE)), tensors()
    output, _ = masked_attention_forward(layer, *inputs, None, is_causal=True)
    passage = Passage(layer, *inputs, None, {"is_causal": False}, output)
    torch.testing.assert_close(output, expected_output(passage, REFERENCE))


@pytest.mark.parametrize("kind", ["boolean", "infinite", "lowest"])
def test_masks_of_every_kind_are_the_same(kind: str) -> None:
    visible = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(1)) < 0.6
    visible[0, 0, 2] = False
    lowest = {"infinite": -torch.inf, "lowest": torch.finfo(torch.float32).min}
    mask = (
        visible
        if kind == "boolean"
        else torch.zeros(2, 1, 6, 6).masked_fill(~visible, lowest[kind])
    )
    layer, inputs = module(Exponential(REFERENCE)), tensors()
    check(layer, inputs, mask)
    check(layer, inputs, mask, position_bias=torch.randn(1, 4, 6, 6))
    output, _ = attention_forward(layer, *inputs, mask)
    assert (output[0, 2] == 0).all()


@pytest.mark.parametrize("policy", [None, Exponential(REFERENCE)])
def test_without_a_mask_causality_is_as_in_sdpa(policy: Policy | None) -> None:
    stock: Any = SimpleNamespace(num_key_value_groups=2, is_causal=True)
    for queries, keys, said, is_causal in [
        (6, 6, None, True), (6, 6, False, True), (6, 6, None, False), (6, 6, True, False),
        (1, 6, None, True), (1, 6, True, True),
        (6, 9, None, True),  # the last keys are the unwritten part of a static cache
        (6, 9, None, False), (9, 6, None, False),
    ]:  # fmt: skip
        layer, inputs = module(policy, is_causal=is_causal), tensors(queries, keys)
        stock.is_causal = is_causal
        expected, _ = sdpa_attention_forward(stock, *inputs, None, is_causal=said)
        output, _ = attention_forward(layer, *inputs, None, is_causal=said)
        if policy is None:
            assert torch.equal(output, expected)
        else:
            check(layer, inputs, None, is_causal=said)


def test_what_is_not_written_yet_does_not_count() -> None:
    layer, (query, key, value) = module(Exponential(REFERENCE)), tensors(6, 9)
    output, _ = attention_forward(layer, query, key, value, None)
    key, value = key.clone(), value.clone()
    key[:, :, 6:], value[:, :, 6:] = 100.0, torch.nan
    again, _ = attention_forward(layer, query, key, value, None)
    assert torch.equal(output, again)


@pytest.mark.parametrize(
    "options",
    [
        {"scaling": 0.2},
        {"softcap": 1.5},
        {"s_aux": torch.tensor([0.5, -1.0, 2.0, 0.0])},
        {"position_bias": torch.linspace(-2.0, 1.0, 144, dtype=torch.float64).reshape(1, 4, 6, 6)},
        {"softcap": 1.5, "s_aux": torch.ones(4), "scaling": 1.0, "sliding_window": 2},
    ],
    ids="+".join,
)
def test_what_enters_the_softmax(options: dict[str, Any]) -> None:
    check(module(Exponential(REFERENCE)), tensors(), None, **options)
    # The policy that leaves everything alone, by the way that knows these options.
    output, _ = attention_forward(module(), *tensors(), None, **options)
    passage = Passage(module(), *tensors(), None, options, output)
    torch.testing.assert_close(output, expected_output(passage, 1e9))


def test_values_of_another_width() -> None:
    check(module(Exponential(REFERENCE)), tensors(value_width=5), None)


def test_a_sink_that_stands_apart() -> None:
    layer, inputs = module(Exponential(REFERENCE), sink_role="apart"), tensors()
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    output, _ = attention_forward(layer, *inputs, None, s_aux=sinks)
    expected = sharpmax.attention(
        *inputs,
        policy=Exponential(REFERENCE),
        is_causal=True,
        enable_gqa=True,
        sink=sinks,
        sink_role="apart",
    )
    torch.testing.assert_close(output, expected.transpose(1, 2))
    assert not torch.allclose(
        output, attention_forward(module(Exponential(REFERENCE)), *inputs, None, s_aux=sinks)[0]
    )


@pytest.mark.parametrize("name", ["indices", "block_indices", "cache", "something_new"])
def test_arguments_that_would_be_lost_are_refused_by_name(name: str) -> None:
    for layer in (module(Exponential(REFERENCE)), module()):
        with pytest.raises(NotImplementedError, match=f"^{name}: Module"):
            attention_forward(layer, *tensors(), None, **{name: torch.zeros(1)})
        attention_forward(layer, *tensors(), None, **{name: None})


def test_weights_are_not_given_and_that_is_said() -> None:
    with pytest.warns(UserWarning, match="output_attentions"):
        _, weights = attention_forward(module(), *tensors(), None, output_attentions=True)
    assert weights is None


def test_dropout_is_passed_on() -> None:
    layer, (query, key, _) = module(Exponential(REFERENCE)), tensors(1, 400)
    ones = torch.ones(2, 2, 400, 1, dtype=torch.float64)
    torch.manual_seed(0)
    dropped, _ = attention_forward(layer, query, key, ones, None, dropout=0.5)
    assert not torch.allclose(dropped, torch.ones_like(dropped), atol=1e-3)
    assert torch.equal(
        attention_forward(layer, query, key, ones, None, dropout=0.0)[0],
        attention_forward(layer, query, key, ones, None)[0],
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    inputs = tuple(x.to(dtype) for x in tensors(6, 40))
    mask = torch.ones(2, 1, 6, 40, dtype=torch.bool)
    mask[0, 0, 0] = False
    layer = module(Exponential(REFERENCE))
    output, _ = attention_forward(layer, *inputs, mask)
    assert output.dtype == dtype
    passage = Passage(layer, *inputs, mask, {}, output)
    torch.testing.assert_close(
        output.double(), expected_output(passage, REFERENCE), rtol=0.02, atol=0.02
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_uses_its_slice_of_the_rule(rank: int) -> None:
    rule = Rule.make(Exponential([0.1, 0.5, 0.9, 1.3]), count=4, gain=[1.0, 2.0, 3.0, 4.0])
    whole, part = module(), module()
    whole.__dict__[ATTRIBUTE] = Attachment(0, rule, heads=4)
    mine = slice(2 * rank, 2 * rank + 2)
    part.__dict__[ATTRIBUTE] = Attachment(
        0, rule, heads=4, local=rule.between(mine.start, mine.stop)
    )
    query, key, value = tensors()
    expected, _ = attention_forward(whole, query, key, value, None)
    output, _ = attention_forward(
        part, query[:, mine], key[:, rank : rank + 1], value[:, rank : rank + 1], None
    )
    torch.testing.assert_close(output, expected[:, :, mine])
    # A plan that leaves the attention whole on every rank.
    assert torch.equal(attention_forward(part, query, key, value, None)[0], expected)


def test_a_call_is_translated_and_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []

    def counting(place: str) -> Any:
        def check(*arguments: Any, **options: Any) -> Any:
            checked.append(place)
            return original(*arguments, **options)

        return check

    original = problem.check
    monkeypatch.setattr(sharpmax._attention, "check", counting("interface"))
    monkeypatch.setattr(problem, "check", counting("attention"))
    recorder = SimpleNamespace(record=lambda *_: None)
    layer = module(observe=statistics_to(recorder))
    layer.__dict__[ATTRIBUTE].rule = Rule.make(Hard(), count=4, heads=[1])
    # Recorded, sharpened, and compared with the plain heads, by the way that knows the cap.
    attention_forward(layer, *tensors(), None, softcap=2.0)
    assert checked == ["interface"]


def test_a_recorder_sees_the_rows_and_changes_nothing() -> None:
    seen: list[tuple[int, sharpmax.RowStatistics]] = []

    class Recorder:
        def record(self, layer: int, statistics: sharpmax.RowStatistics) -> None:
            seen.append((layer, statistics))

    for policy in (None, Exponential(REFERENCE)):
        plain, recorded = module(policy), module(policy, observe=statistics_to(Recorder()))
        expected, _ = attention_forward(plain, *tensors(), None, softcap=2.0)
        output, _ = attention_forward(recorded, *tensors(), None, softcap=2.0)
        assert torch.equal(output, expected)
        layer, statistics = seen.pop()
        query, key, _ = tensors()
        measured = sharpmax.attention_statistics(
            query, key, is_causal=True, enable_gqa=True, softcap=2.0
        )
        assert layer == 0
        assert torch.equal(statistics.entropy(), measured.entropy())
        assert statistics.count[0, 0].tolist() == [1, 2, 3, 4, 5, 6]
