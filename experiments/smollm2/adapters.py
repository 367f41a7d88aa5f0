"""Train adapters of PEFT as calibrations are fitted: same data, steps, loss and guard on text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax._extras import require
from sharpmax._settings import CalibrationSettings
from sharpmax.models import Splits, Window, answer_loss, text_loss
from sharpmax.models._calibration.fit import Groups, _shuffled
from sharpmax.models._calibration.objectives import drift
from sharpmax.models._calibration.select import SCALES, Losses, difference
from sharpmax.models._way import evaluation_mode
from sharpmax.tasks import Question

__all__ = ["Trained", "adapted", "train"]

Objective = Callable[[Any, Sequence[Any]], Tensor]

LEARNING_RATES = {"lora": 2e-3, "ia3": 0.03}
"""Of Adam. That of IA³ is the one of calibrations, whose numbers have the same meaning."""


class Trained(NamedTuple):
    """An adapter after training and selection.

    Attributes:
        weights: Its parameters by name, scaled as selected; none if nothing held.
        numbers: How many numbers were fitted.
        scale: The share of the change that is kept; 0 if nothing held.
        candidates: Gain, certain gain, rise and harm on the selection split, by scale.
    """

    weights: dict[str, Tensor]
    numbers: int
    scale: float
    candidates: dict[float, tuple[float, float, float, float]]


@contextmanager
def adapted(
    model: PreTrainedModel, kind: str, rank: int = 0, weights: dict[str, Tensor] | None = None
) -> Iterator[dict[str, Tensor]]:
    """Add an adapter to the attention of a model within a block; yields its parameters by name.

    Args:
        model: A Llama.
        kind: "lora", on the four projections of attention, or "ia3", one factor per channel of
            the heads' outputs.
        rank: Of LoRA.
        weights: Values of its parameters.
    """
    peft: Any = require("peft", extra="adapters", what="training adapters")
    config = (
        peft.LoraConfig(
            r=rank, lora_alpha=2 * rank, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]
        )
        if kind == "lora"
        else peft.IA3Config(target_modules=["o_proj"], feedforward_modules=["o_proj"])
    )
    own = {
        name: module
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in config.target_modules
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.add_adapter(config)
    try:
        found: dict[str, Tensor] = {
            name: value
            for name, value in model.named_parameters()
            if "lora_" in name or "ia3_l" in name
        }
        with torch.no_grad():
            for name, value in (weights or {}).items():
                found[name].copy_(value)
        yield found
    finally:
        model.delete_adapter("default")
        # Which leaves its wrappers around the projections.
        for name, module in own.items():
            model.set_submodule(name, module)


def train(
    model: PreTrainedModel,
    kind: str,
    rank: int,
    data: Splits[Question],
    text: Splits[Window],
    settings: CalibrationSettings,
    on_step: Callable[[int], None] = lambda _: None,
) -> Trained:
    """Fit an adapter on the first split, and keep the share of it that holds on the second."""

    @contextmanager
    def original() -> Iterator[None]:
        model.disable_adapters()
        try:
            yield
        finally:
            model.enable_adapters()

    with adapted(model, kind, rank) as parameters, evaluation_mode(model, frozen=True):
        start = {name: value.detach().clone() for name, value in parameters.items()}
        _fit(model, parameters, kind, data, text, settings, drift(original), on_step)
        fitted = {name: value.detach().clone() for name, value in parameters.items()}
        with original():
            before = _losses(model, data, text)
        tried = {}
        for scale in SCALES:
            _set(parameters, _scaled(kind, start, fitted, scale))
            after = _losses(model, data, text)
            (gain, error), (fell, doubt) = map(difference, before, after)
            tried[scale] = (gain, gain - 2 * error, -fell, 2 * doubt - fell)
        holding = {
            scale: each
            for scale, each in tried.items()
            if each[1] > 0 and each[3] <= settings.tolerance
        }
        chosen = max(holding, key=lambda scale: holding[scale][0], default=0.0)
        kept = _scaled(kind, start, fitted, chosen)
    return Trained(kept, sum(value.numel() for value in start.values()), chosen, tried)


def _fit(
    model: PreTrainedModel,
    parameters: dict[str, Tensor],
    kind: str,
    data: Splits[Question],
    text: Splits[Window],
    settings: CalibrationSettings,
    guard: Objective,
    on_step: Callable[[int], None],
) -> None:
    """Minimise the loss of calibrations: answers, and the divergence from the original on text."""
    optimiser = torch.optim.Adam(parameters.values(), lr=LEARNING_RATES[kind], betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    windows: Groups = [[window] for window in text.fit]
    planned: list[tuple[Objective, Groups, int, float]] = [
        (answer_loss, _by_context(data.fit), settings.batch, 1.0),
        (guard, windows, settings.text_batch, settings.text_weight),
    ]
    # In the order of calibrations.
    terms = [
        (objective, _shuffled(groups, np.random.default_rng((settings.seed, place))), count, weight)
        for place, (objective, groups, count, weight) in enumerate(planned)
    ]
    for value in parameters.values():
        value.requires_grad_(True)
    for step in range(settings.steps):
        optimiser.zero_grad()
        for objective, order, count, weight in terms:
            for _ in range(count):
                (weight * objective(model, next(order)).mean() / count).backward()
        optimiser.step()
        schedule.step()
        on_step(step + 1)


def _losses(
    model: PreTrainedModel, data: Splits[Question], text: Splits[Window]
) -> tuple[Losses, Losses]:
    """Measure answers and ordinary text of the selection split."""
    with torch.no_grad():
        return (
            Losses(
                [
                    loss
                    for items in _by_context(data.select)
                    for loss in answer_loss(model, items).tolist()
                ],
                [item.context for items in _by_context(data.select) for item in items],
            ),
            Losses(
                [text_loss(model, [window]).item() for window in text.select],
                [window.context for window in text.select],
            ),
        )


def _by_context(questions: Sequence[Question]) -> Groups:
    found: dict[int, list[Question]] = {}
    for question in questions:
        found.setdefault(question.context, []).append(question)
    return list(found.values())


def _scaled(
    kind: str, start: dict[str, Tensor], fitted: dict[str, Tensor], scale: float
) -> dict[str, Tensor]:
    """Return the parameters with a share of the change of the weights that they express."""
    found = {}
    for name, value in fitted.items():
        # Of the two factors of LoRA, one is scaled; factors of IA³ start at 1.
        fixed = kind == "lora" and "lora_A" in name
        found[name] = value if fixed else start[name] + scale * (value - start[name])
    return found


def _set(parameters: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(value)
