"""Diagnose, calibrate and evaluate a PyTorch module that is not of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sharpmax
from sharpmax.models import Calibration, CannotSharpenError, OtherModelError, Splits
from sharpmax.models._attachment import ATTRIBUTE
from sharpmax.policies import Constant
from torch_models import HEADS, Attention, ByHand, Stack, made, tokens

LENGTHS = [16, 32, 64]


def model() -> nn.Module:
    found = made(Stack(Attention(), Attention()))
    with torch.no_grad():
        for weight in found.parameters():
            weight.mul_(2)
    return found


def test_entropy_is_measured_at_every_length() -> None:
    module = model()
    diagnosis = sharpmax.diagnose(module, tokens, lengths=LENGTHS, unit="rows", rows=64)
    assert diagnosis.lengths == tuple(LENGTHS)
    assert (diagnosis.model_type, diagnosis.dtype) == ("Stack", "float32")
    assert [head.name for head in diagnosis.heads] == ["blocks.0.attn"] * 2 + ["blocks.1.attn"] * 2
    assert "lengths 16, 32, 64 rows;" in diagnosis.summary()
    rows: dict[int, Tensor] = {}

    class Rows:
        def record(self, layer: int, statistics: Any) -> None:
            rows[layer] = statistics.entropy()

    for length in LENGTHS:
        with torch.no_grad(), sharpmax.models.record(module, Rows()):
            module(tokens(length))
        for head in diagnosis.heads:
            record = diagnosis.record(head, length)
            assert record.entropy is not None
            assert record.visible == length
            assert record.measured == 2 * (length // 2)
            last = rows[head.layer][:, head.head, length // 2 :]
            assert record.entropy.mean == pytest.approx(float(last.mean()), rel=1e-5)
    assert not any(ATTRIBUTE in each.__dict__ for each in module.modules())
    again = sharpmax.diagnose(module, {n: [tokens(n), tokens(n, seed=2)] for n in LENGTHS})
    assert again.inputs == 2


def test_keys_that_grow_beside_queries_that_do_not() -> None:
    given = {length: (tokens(8), tokens(length)) for length in LENGTHS}
    diagnosis = sharpmax.diagnose(model(), given)
    assert {head.kind for head in diagnosis.heads} == {"cross"}
    assert {head.verdict for head in diagnosis.heads} <= {"dispersing", "growing", "flat"}
    assert [diagnosis.record(diagnosis.heads[0], n).visible for n in LENGTHS] == LENGTHS


def test_padding_is_no_window_and_a_window_is() -> None:
    def inputs(length: int, window: int) -> tuple[Any, ...]:
        place = torch.arange(length)
        near = (place[:, None] - place).abs() < window
        return tokens(length), None, near & (place < length - 4)

    local = sharpmax.diagnose(model(), lambda n: inputs(n, 8), LENGTHS)
    assert {head.verdict for head in local.heads} == {"local"}
    padded = sharpmax.diagnose(model(), lambda n: inputs(n, n), LENGTHS)
    assert "local" not in {head.verdict for head in padded.heads}
    assert padded.records[0].visible == LENGTHS[0] - 4


def test_what_cannot_be_diagnosed_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected a function of a length, or a mapping"):
        sharpmax.diagnose(model(), tokens())
    with pytest.raises(ValueError, match=r"lengths: expected numbers for which to make inputs"):
        sharpmax.diagnose(model(), tokens)
    with (
        pytest.warns(UserWarning, match="not reached"),
        pytest.raises(CannotSharpenError, match=r"blocks.0.attn: its attention is written out"),
    ):
        sharpmax.diagnose(made(Stack(ByHand())), tokens, LENGTHS)


Item = tuple[Tensor, Tensor]


def loss(found: nn.Module, items: list[Item]) -> Tensor:
    return torch.stack([(found(x)[:, 0] - y).square().sum() for x, y in items])


def items(module: nn.Module, count: int) -> list[Item]:
    """What the model says if one of its heads is three times as sharp."""
    with torch.no_grad(), sharpmax.sharpen(module, {1: Constant([3.0, 1.0])}, example=tokens()):
        return [(x, module(x)[:, 0]) for x in (tokens(24, seed=seed) for seed in range(count))]


def test_calibration_finds_the_head_and_evaluation_shows_it(tmp_path: Path) -> None:
    module = model()
    given = items(module, 18)
    data = Splits(given[:6], given[6:12], given[12:])
    options: Any = {"tolerance": float("inf"), "steps": 25, "learning_rate": 0.1}
    found = sharpmax.calibrate(module, data, loss, **options)
    assert found.names == ("blocks.0.attn", "blocks.1.attn")
    assert found.head_counts == (HEADS, HEADS)
    assert [layer.index for layer in found.layers] == [1]
    beta: Any = found.layers[0].policy
    np.testing.assert_allclose(beta.beta, [3.0, 1.0], atol=0.7)
    assert found.before is not None
    assert found.after is not None
    assert found.after < 0.1 * found.before
    loaded = Calibration.load(found.save(tmp_path / "found.json"), module)
    assert loaded.to_dict() == found.to_dict()

    evaluation = sharpmax.evaluate(
        module, metric=lambda each, some: -loss(each, some), data={24: given[12:]},
        changes={"calibrated": loaded, "sharp": Constant(2.0)}, controls=False,
        path=tmp_path / "evaluation.json",
    )  # fmt: skip
    plain, calibrated, sharp = evaluation.results
    np.testing.assert_allclose([plain.mean, calibrated.mean], [-found.before, -found.after], 1e-4)
    assert calibrated.less(plain)[1][0] > 0
    assert sharp.mean < plain.mean
    assert "metric  plain" in evaluation.summary()
    kept = sharpmax.models.Evaluation.load(tmp_path / "evaluation.json")
    assert kept.results == evaluation.results

    other = made(Stack(Attention(), Attention(), times=2))
    with pytest.raises(OtherModelError, match="expected 2 attention layers, Stack has 4"):
        sharpmax.sharpen(other, loaded, example=tokens())
    renamed = Calibration.of(
        module, {1: Constant(2.0)}, example=lambda each: each.blocks[1](each.blocks[0](tokens()))
    )
    assert renamed.names == found.names

    def turned(each: nn.Module) -> Tensor:
        return each.blocks[0](each.blocks[1](tokens()))

    with pytest.raises(OtherModelError, match=r"expected .blocks.0.attn. as layer 0, Stack has"):
        sharpmax.sharpen(module, loaded, example=turned)


def test_what_needs_a_language_model_is_refused() -> None:
    splits = Splits([1], [2], [3])
    with pytest.raises(TypeError, match=r"objective, text: expected a function and None"):
        sharpmax.calibrate(model(), splits)
    with pytest.raises(TypeError, match=r"model: expected a transformers model"):
        sharpmax.evaluate(model(), lambda text: text)
    with pytest.raises(ValueError, match=r"tokenizer: expected one unless there is a metric"):
        sharpmax.evaluate(model())
    with pytest.raises(ValueError, match=r"data: expected items by length with a metric"):
        sharpmax.evaluate(model(), metric=loss)
