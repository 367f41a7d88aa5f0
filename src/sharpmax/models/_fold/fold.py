"""Fold a calibration into the weights of a model, and verify the result."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from sharpmax._attention import Problem, SinkRole
from sharpmax.models._calibration.result import Calibration, LayerCalibration
from sharpmax.models._evaluation.evaluate import named_texts
from sharpmax.models._fold.peft import write_adapter
from sharpmax.models._fold.places import (
    Obstacle,
    Places,
    Scaling,
    Seen,
    constant_betas,
    is_constant,
)
from sharpmax.models._fold.report import (
    CannotFoldError,
    Folded,
    FoldReport,
    NotFolded,
    refusals,
)
from sharpmax.models._handle import Sharpened
from sharpmax.models._inspect import input_device, positions, vocabulary
from sharpmax.models._open import open_model
from sharpmax.models._rule import Rule, changed
from sharpmax.models._sharpen import plan
from sharpmax.models._way import Layer, Way, evaluation_mode
from sharpmax.policies import Constant

TOKENS = 512  # that the logits are compared on
FACTOR = 8.0  # of the tolerance: the noise of other attention code, and the rounding of the weights


def fold(
    model: nn.Module,
    calibration: Calibration,
    tokenizer: Any = None,
    *,
    text: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    partial: bool = False,
    sink_role: SinkRole = "key",
) -> FoldReport:
    """Multiply a calibration into the weights of a model, which then needs no sharpmax.

    A constant temperature goes into the query projection and its bias, into the weights of a norm
    of the queries that has its own weights for every head, and into learned sinks. A gain goes into
    the columns of the output projection. Save the result with `model.save_pretrained`.

    The logits of the folded model are compared with those of the sharpened model, by the largest
    difference and by the root mean square. The tolerance is eight times the larger of two figures,
    both in the precision of the weights: the change of the original logits when attention is
    computed by other code, and the rounding of logits. Above it, the weights are restored.

    Args:
        model: a transformers model, which is changed in place.
        calibration: a calibration of this model.
        tokenizer: for verification on text; without it, on random tokens.
        text: the text; None for the source code of sharpmax.
        inputs: arguments of the model for verification, instead of a text.
        partial: fold what can be folded, and return the rest in the report.
        sink_role: role of a learned sink, as in `sharpmax.sharpen`.

    Returns:
        What was folded and how it was verified.

    Raises:
        CannotFoldError: something cannot be folded, with the reason and what is possible instead,
            or the verification failed. The model is unchanged.
        OtherModelError: the calibration is for another model.
        CannotSharpenError: the attention of this model cannot be sharpened, so nothing can be
            verified, or the model is sharpened now.

    Example:
        >>> import sharpmax
        >>> from sharpmax.models import Calibration
        >>> from sharpmax.policies import Constant
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(
        ...     vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2
        ... )
        >>> model = LlamaForCausalLM(config)
        >>> calibration = Calibration.of(model, {1: Constant([1.5, 1.0])}, gains={0: [1.0, 0.5]})
        >>> report = sharpmax.fold(model, calibration)
        >>> [(each.index, each.what, each.parameters) for each in report.folded]
        [(0, 'gain', ('model.layers.0.self_attn.o_proj.weight',)),
         (1, 'temperature', ('model.layers.1.self_attn.q_proj.weight',))]
    """
    report, _ = folded(
        model, calibration, tokenizer, text=text, inputs=inputs, partial=partial,
        sink_role=sink_role,
    )  # fmt: skip
    return report


def write_peft(
    model: nn.Module,
    calibration: Calibration,
    path: str | Path,
    tokenizer: Any = None,
    **options: Any,
) -> FoldReport:
    """Write a calibration as an IA³ adapter, verified as a fold is; the model stays unchanged."""
    report, before = folded(model, calibration, tokenizer, **options)
    with torch.no_grad():
        for scaling, value in before:
            scaling.parameter.copy_(value)
    scalings = [scaling for scaling, _ in before]
    inner = open_model(model)
    write_adapter(Path(path), inner.model, scalings, inner.identity[0], report.card())
    return report


def folded(
    model: nn.Module,
    calibration: Calibration,
    tokenizer: Any = None,
    *,
    text: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    partial: bool = False,
    sink_role: SinkRole = "key",
) -> tuple[FoldReport, list[tuple[Scaling, Tensor]]]:
    """Fold as `fold` says; return also the scalings, each with its parameter as it was."""
    way = open_model(model)
    if not way.of_transformers:
        raise CannotFoldError(
            f"{type(model).__name__}: expected a transformers model, whose weights are known by "
            "name; for other modules, keep the calibration in sharpmax.sharpen"
        )
    way.check_one_rank()
    calibration.check(way)
    named = _name(way)
    if not calibration.layers:
        raise CannotFoldError(f"{named}: the calibration changes nothing; use the model as it is")
    source, arguments = _arguments(way, tokenizer, text, inputs)

    def logits(attached: AbstractContextManager[Any] | None = None) -> Tensor:
        with attached or nullcontext():
            output = way.model(**arguments)
        found: Tensor = output.logits if "logits" in output else output[0]
        return found if found.dtype == torch.float64 else found.float()

    with evaluation_mode(way.model), torch.no_grad():
        seen: dict[int, Seen] = {}

        def observe(layer: int, problem: Problem) -> None:
            seen[layer] = Seen.of(problem)

        plain = logits()
        neutral = {own.index: Rule(Constant(1.0)) for own in calibration.layers}
        noise = logits(Sharpened(way, neutral, observe=observe)) - plain
        found, scalings, left = _plan(way, calibration, seen, sink_role)
        if left and not partial:
            raise CannotFoldError(
                f"{named}: {refusals(left)}. To fold the rest, pass partial=True (--partial)"
            )
        if not scalings:
            raise CannotFoldError(f"{named}: nothing can be folded. {refusals(left)}")
        kept, rest = _split(calibration, left)
        rules = plan(way.layers, kept, None, None)
        wanted = logits(Sharpened(way, rules, sink_role=sink_role))
        rounding = torch.finfo(way.model.dtype).eps * plain
        tolerance, mean_tolerance = (
            FACTOR * max(size(noise), size(rounding)) for size in (_largest, _mean)
        )
        before = [(each, each.apply()) for each in scalings]
        try:
            result = logits()
            difference, mean = _largest(result - wanted), _mean(result - wanted)
            # The mean is the sharper test in half precision, where single logits are noisy.
            if not (difference <= tolerance and mean <= mean_tolerance):
                raise CannotFoldError(
                    f"{named}: expected logits within {tolerance:.1e} of the sharpened model and "
                    f"{mean_tolerance:.1e} in root mean square, got {difference:.1e} and "
                    f"{mean:.1e} on {source}; something in this family depends on the scale of its "
                    "queries or outputs, so keep the calibration in sharpmax.sharpen"
                )
        except BaseException:
            for scaling, value in before:
                scaling.parameter.copy_(value)
            raise
    report = FoldReport(
        model_name=named, folded=tuple(found), not_folded=tuple(left), rest=rest,
        difference=difference, tolerance=tolerance, effect=_largest(result - plain),
        agreement=float((result.argmax(-1) == wanted.argmax(-1)).float().mean()),
        tokens=result[..., 0].numel(), source=source, dtype=way.dtype, calibration=calibration,
    )  # fmt: skip
    return report, before


def _plan(
    way: Way, calibration: Calibration, seen: Mapping[int, Seen], sink_role: SinkRole
) -> tuple[list[Folded], list[Scaling], list[NotFolded]]:
    """Return what can be folded, the scalings that do it, and what cannot."""
    places = Places(way.model)
    found: list[Folded] = []
    scalings: list[Scaling] = []
    left: list[NotFolded] = []
    for own in calibration.layers:
        layer = way.layers[own.index]
        for what, heads in _wishes(own, calibration.heads_in(own)):
            try:
                if layer.unreachable is not None:
                    raise Obstacle(layer.unreachable, "use a model that sharpmax.sharpen reaches")
                if layer.index not in seen:
                    raise Obstacle("the inputs did not reach this layer", "pass other inputs")
                wanted = _scalings(places, layer, own, seen[layer.index], what, sink_role)
            except Obstacle as why:
                reason = (why.reason, why.instead)
                left.append(NotFolded(layer.index, layer.name, what, heads, *reason))
                continue
            scalings += wanted
            names = tuple(each.name for each in wanted)
            found.append(Folded(layer.index, layer.name, what, heads, names))
    return found, scalings, left


def _wishes(own: LayerCalibration, heads: int) -> list[tuple[Literal["temperature", "gain"], int]]:
    """Return what a layer should get, and how many of its heads change by it."""
    wishes: list[tuple[Literal["temperature", "gain"], int]] = []
    if own.policy is not None:
        temperatures = changed(own.policy, None, heads)
        # A policy of rows that is switched off in all heads is no obstacle.
        if temperatures or is_constant(own.policy):
            wishes.append(("temperature", temperatures))
    if own.gain is not None:
        wishes.append(("gain", changed(None, own.gain, heads)))
    return wishes


def _scalings(
    places: Places,
    layer: Layer,
    own: LayerCalibration,
    seen: Seen,
    what: Literal["temperature", "gain"],
    sink_role: SinkRole,
) -> list[Scaling]:
    if what == "gain":
        # In single precision, as sharpened attention has them.
        return places.of_gains(layer, np.asarray(own.gain, np.float32).astype(np.float64))
    assert own.policy is not None
    betas = constant_betas(own.policy, seen.heads)
    return places.of_betas(layer, seen, betas, sink_role)


def _split(
    calibration: Calibration, left: list[NotFolded]
) -> tuple[Calibration, Calibration | None]:
    """Return the part of a calibration that is folded, and the rest."""
    lost = {(each.index, each.what) for each in left}

    def part(own: LayerCalibration, of_lost: bool) -> LayerCalibration:
        policy = own.policy if ((own.index, "temperature") in lost) == of_lost else None
        gain = own.gain if ((own.index, "gain") in lost) == of_lost else None
        return replace(own, policy=policy, gain=gain)

    kept, rest = (
        replace(calibration, layers=tuple(each for each in parts if each.policy or each.gain))
        for parts in ([part(own, side) for own in calibration.layers] for side in (False, True))
    )
    # The name and the measurements are those of other weights.
    rest = replace(rest, model_name="", before=None, after=None, notes={})
    return kept, rest if left else None


def _arguments(
    way: Way, tokenizer: Any, text: str | None, inputs: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any]]:
    """Return what the logits are computed on, in words and as arguments of the model."""
    model = way.model
    if inputs is not None:
        return "the given inputs", dict(inputs)
    if getattr(model, "main_input_name", "input_ids") != "input_ids":
        raise ValueError(
            f"inputs: expected arguments of {type(model).__name__}, which does not read text, got "
            "None"
        )
    size, length = vocabulary(model), min(TOKENS, positions(model) or TOKENS)
    if tokenizer is not None:
        # A few characters per token, so that long texts are not read to their end.
        source, words = next(iter(named_texts(text).items()))
        ids = torch.tensor(tokenizer(words[: 16 * length])["input_ids"][:length])
    else:
        source = "random tokens"
        ids = torch.randint(size, (length,), generator=torch.Generator().manual_seed(0))
    ids = ids[None].to(input_device(model))
    arguments: dict[str, Any] = {"input_ids": ids}
    if getattr(model.config, "is_encoder_decoder", False):
        arguments["decoder_input_ids"] = ids
    return source, arguments


def _name(way: Way) -> str:
    name = way.identity[0]
    return (Path(name).name if Path(name).exists() else name) or type(way.model).__name__


def _largest(values: Tensor) -> float:
    return float(values.abs().max())


def _mean(values: Tensor) -> float:
    """Return the root mean square."""
    return float(values.square().mean().sqrt())
