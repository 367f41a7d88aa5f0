"""Train adapters of PEFT as calibrations are fitted: same data, steps, loss and guard on text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax._extras import require
from sharpmax._files import replace_file
from sharpmax._settings import CalibrationSettings
from sharpmax.models import Shared, Splits, Window, answer_loss, text_loss
from sharpmax.models._calibration.fit import Groups, _shuffled
from sharpmax.models._calibration.objectives import drift
from sharpmax.models._calibration.select import SCALES, Losses, difference
from sharpmax.models._way import evaluation_mode
from sharpmax.tasks import Question

__all__ = ["Trained", "adapted", "train"]

Objective = Callable[[Any, Sequence[Any]], Tensor]

LEARNING_RATES = {"lora": 2e-3, "ia3": 0.03}
"""Of Adam. That of IA³ is the one of calibrations, whose numbers have the same meaning."""

SAVED_EVERY = 5
"""Steps of a fit after which its state is written, so that it can be resumed."""


class Trained(NamedTuple):
    """An adapter after training and selection.

    Attributes:
        weights: Its parameters by name, scaled as selected; none if nothing held.
        numbers: How many numbers were fitted.
        scale: The share of the change that is kept; 0 if nothing held.
        candidates: Gain, certain gain, rise and harm on the selection split, by scale.
        seconds: Processor time, also of runs that were stopped before, but not of what the original
            model computes: that serves all adapters.
    """

    weights: dict[str, Tensor]
    numbers: int
    scale: float
    candidates: dict[float, tuple[float, float, float, float]]
    seconds: float


@contextmanager
def adapted(
    model: PreTrainedModel, kind: str, rank: int = 0, weights: dict[str, Tensor] | None = None
) -> Iterator[dict[str, Tensor]]:
    """Add an adapter to the attention of a model within a block; yields its parameters by name.

    Args:
        model: A model whose projections are named as those of a Llama.
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
        _set(found, weights or {})
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
    *,
    shared: Shared | None = None,
    state: Path | None = None,
    on_step: Callable[[int], None] = lambda _: None,
) -> Trained:
    """Fit an adapter on the first split, and keep the share of it that holds on the second.

    Args:
        model: The model.
        kind: Kind of the adapter, as `adapted` explains.
        rank: Of LoRA.
        data: Questions.
        text: Windows of ordinary text.
        settings: Those of calibrations.
        shared: What the original model computes on these data, kept for further adapters.
        state: A file for the state of the fit. If it exists, the fit goes on from there.
        on_step: Called with the number of finished steps.
    """
    shared = Shared() if shared is None else shared
    progress = _Progress(state)

    @contextmanager
    def original() -> Iterator[None]:
        model.disable_adapters()
        try:
            with progress.paused():
                yield
        finally:
            model.enable_adapters()

    def plain(measure: Callable[[], Losses]) -> Losses:
        with original():
            return measure()

    with adapted(model, kind, rank) as parameters, evaluation_mode(model, frozen=True):
        start = {name: value.detach().clone() for name, value in parameters.items()}
        guard = drift(original, shared)
        _fit(model, parameters, kind, data, text, settings, guard, progress, on_step)
        fitted = {name: value.detach().clone() for name, value in parameters.items()}
        of_answers, of_text = partial(_answers, model, data), partial(_text, model, text)
        before = (
            shared.losses(("adapters", "answers"), partial(plain, of_answers)),
            shared.losses(("adapters", "text"), partial(plain, of_text)),
        )
        tried = {}
        for scale in SCALES:
            _set(parameters, _scaled(kind, start, fitted, scale))
            after = of_answers(), of_text()
            (gain, error), (fell, doubt) = map(difference, before, after)
            tried[scale] = (gain, gain - 2 * error, -fell, 2 * doubt - fell)
        holding = {
            scale: each
            for scale, each in tried.items()
            if each[1] > 0 and each[3] <= settings.tolerance
        }
        chosen = max(holding, key=lambda scale: holding[scale][0], default=0.0)
        kept = _scaled(kind, start, fitted, chosen)
    numbers = sum(value.numel() for value in start.values())
    return Trained(kept, numbers, chosen, tried, progress.seconds)


class _Progress:
    """The state of a fit in a file, and the processor time of all runs that it took."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._start = path, time.process_time()

    @property
    def seconds(self) -> float:
        return time.process_time() - self._start

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of a block."""
        began = time.process_time()
        try:
            yield
        finally:
            self._start += time.process_time() - began

    def load(self, parameters: dict[str, Tensor], *others: Any) -> int:
        """Restore parameters, optimiser and schedule; returns the number of finished steps."""
        if self._path is None or not self._path.exists():
            return 0
        found = torch.load(self._path, weights_only=True)
        self._start -= found["seconds"]
        _set(parameters, found["parameters"])
        for other, values in zip(others, found["others"], strict=True):
            other.load_state_dict(values)
        step: int = found["step"]
        return step

    def save(self, step: int, parameters: dict[str, Tensor], *others: Any) -> None:
        if self._path is None or step % SAVED_EVERY:
            return
        content = {
            "step": step,
            "seconds": self.seconds,
            "parameters": {name: value.detach() for name, value in parameters.items()},
            "others": [other.state_dict() for other in others],
        }
        with replace_file(self._path) as temporary:
            torch.save(content, temporary)


def _fit(
    model: PreTrainedModel,
    parameters: dict[str, Tensor],
    kind: str,
    data: Splits[Question],
    text: Splits[Window],
    settings: CalibrationSettings,
    guard: Objective,
    progress: _Progress,
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
    done = progress.load(parameters, optimiser, schedule)
    for step in range(settings.steps):
        taken = [[next(order) for _ in range(count)] for _, order, count, _ in terms]
        if step < done:
            continue
        optimiser.zero_grad()
        for (objective, _, count, weight), groups in zip(terms, taken, strict=True):
            for items in groups:
                (weight * objective(model, items).mean() / count).backward()
        optimiser.step()
        schedule.step()
        on_step(step + 1)
        progress.save(step + 1, parameters, optimiser, schedule)


def _answers(model: PreTrainedModel, data: Splits[Question]) -> Losses:
    """Measure the answers of the selection split."""
    groups = _by_context(data.select)
    with torch.no_grad():
        values = [loss for items in groups for loss in answer_loss(model, items).tolist()]
    return Losses(values, [item.context for items in groups for item in items])


def _text(model: PreTrainedModel, text: Splits[Window]) -> Losses:
    """Measure ordinary text of the selection split."""
    with torch.no_grad():
        values = [text_loss(model, [window]).item() for window in text.select]
    return Losses(values, [window.context for window in text.select])


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
