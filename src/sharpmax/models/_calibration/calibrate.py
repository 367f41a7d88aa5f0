"""Finding which heads of a model to sharpen, and by how much, without doing harm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sharpmax._resampling import clustered_interval
from sharpmax._statistics import RowStatistics
from sharpmax.models._calibration.fit import Part, fit
from sharpmax.models._calibration.objectives import (
    Objective,
    Splits,
    Window,
    answer_loss,
    answer_wrong,
    checked,
    drift,
    text_loss,
)
from sharpmax.models._calibration.parameters import Family, FamilyName
from sharpmax.models._calibration.result import Calibration
from sharpmax.models._calibration.select import Candidate, Losses, Selection, evaluate, select
from sharpmax.models._diagnosis.diagnose import positions
from sharpmax.models._handle import Sharpened, tensor_parallel
from sharpmax.models._inspect import attention_layers
from sharpmax.models._record import record
from sharpmax.models._rule import Rule
from sharpmax.models._sharpen import check_causal_lm, check_reachable, inner_model

TOLERANCE = 0.02
"""Nats by which the loss on ordinary text may rise, if nothing else is asked for."""

TEXT_WEIGHT = 30.0
"""Nats of an answer that a nat of ordinary text counts for, if nothing else is asked for."""


class Stage(NamedTuple):
    """How far a calibration is.

    Attributes:
        name: "fit", "select" or "test".
        step: of `steps`.
        steps: in this stage.
        losses: of the last step of the fit: the objective, and the drift on ordinary text.
    """

    name: Literal["fit", "select", "test"]
    step: int
    steps: int
    losses: tuple[float, ...] = ()


def calibrate(
    model: nn.Module,
    data: Splits[Any] | Sequence[Any],
    objective: Literal["text", "answers", "exact"] | Objective = "text",
    *,
    text: Splits[Window] | None = None,
    tolerance: float = TOLERANCE,
    family: FamilyName = "constant",
    flatten: bool = False,
    steps: int = 60,
    batch: int = 4,
    text_batch: int = 2,
    text_weight: float = TEXT_WEIGHT,
    learning_rate: float = 0.03,
    shrink: float = 1e-4,
    seed: int = 0,
    on_progress: Callable[[Stage], None] | None = None,
) -> Calibration:
    """Fit one or two numbers a head to data, and keep what other data says is a gain.

    With the weights frozen, the numbers of a family (`sharpmax.models.Family`) are fitted by
    gradient through the attention on the first part of the data. On the second part, heads whose
    change does not help are set back, and no more of the rest is kept than leaves the loss on
    ordinary text as it is, within the tolerance, for certain. The third part gives the figures in
    `before` and `after`, with intervals in `notes["test"]`; nothing is chosen by it. Every context
    counts once, however many questions it has. If nothing holds, the calibration is empty: leave
    this model alone.

    That the objective falls does not show that sharpening did it: compare with the family "gain",
    which changes no temperature, as `sharpmax calibrate` does.

    Args:
        model: of transformers; it is as it was before afterwards. A causal language model, unless
            the objective is your own and there is no guard.
        data: what the objective is about, in three parts. For "text" windows (`text_splits` makes
            them); for "answers" and "exact" questions, as `sharpmax.tasks` draws them; for an
            objective of your own, whatever that takes.
        objective: "text", the mean loss of the next token; "answers", minus the logarithm of the
            probability of the answer; "exact", the share of answers that greedy decoding gets
            wrong, which has no gradient: fitted are "answers" then, and what is kept, and the
            figures, are by that share; or a function of the model and some items that gives a loss
            for each, through which gradients pass.
        text: windows of ordinary text, in three parts, for the guard. Needed unless the objective
            is "text"; None with a tolerance of infinity switches the guard off.
        tolerance: nats by which the loss on ordinary text may rise, two standard errors included.
        family: what may change in a head.
        flatten: whether heads may become less sharp.
        steps: of the fit.
        batch: items in a step; questions of one context count as one.
        text_batch: windows of ordinary text in a step.
        text_weight: of their drift in the fit, and of their loss in the choice of heads.
        learning_rate: of Adam.
        shrink: weight of the sum of absolute values, which pulls numbers towards zero; heads are
            set back to exactly zero by the second part of the data alone.
        seed: of the order of the data.
        on_progress: called during the work.

    Returns:
        The calibration, for `sharpmax.sharpen` or its `save`.

    Raises:
        CannotSharpenError: there is no attention that can be reached, the model is sharpened, or it
            is no causal language model where one is needed.
        NotImplementedError: the heads of the model are spread over ranks.
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    inner = inner_model(model)
    layers = attention_layers(inner)
    if callable(objective) and text is None:
        check_reachable(inner, layers)
    else:
        # Texts and answers are measured token by token.
        check_causal_lm(inner, layers)
    if tensor_parallel(inner)[0] > 1:
        raise NotImplementedError("model: its heads are spread over ranks")
    splits, measure, judge = _objective(data, objective)
    _check_numbers(1, steps=steps, batch=batch, text_batch=text_batch)
    _check_numbers(0.0, tolerance=tolerance, text_weight=text_weight, shrink=shrink)
    if not learning_rate > 0:
        raise ValueError(f"learning_rate: expected above 0, got {learning_rate}")
    _check_positions(inner, "data", splits)
    if text is not None:
        _check_positions(inner, "text", text)
    if text is None and objective != "text" and tolerance != float("inf"):
        raise ValueError(
            "text: expected windows of ordinary text, which guard against harm; to go without, "
            f"give tolerance=float('inf'), got tolerance={tolerance}"
        )
    open_layers = [layer for layer in layers if layer.closed is None]

    def say(*stage: Any) -> None:
        if on_progress is not None:
            on_progress(Stage(*stage))

    def parts(name: str) -> list[Part]:
        """The objective and the guard on one of the three parts of the data."""
        key = None if objective == "text" else _context
        found = [Part(measure, getattr(splits, name), batch, key=key, judge=judge)]
        if text is not None:
            guard = drift(sharpened.disabled) if name == "fit" else text_loss
            found.append(Part(guard, getattr(text, name), text_batch, text_weight))
        return found

    with Sharpened(inner, layers, {layer.index: Rule() for layer in open_layers}) as sharpened:
        measured = None
        if "entropy" in family.split("+"):
            usual = Part(measure, splits.fit, 1) if text is None else Part(text_loss, text.fit, 1)
            measured = references(sharpened, usual)
        chosen = Family(family, open_layers, flatten, measured)
        fitted = fit(
            sharpened,
            chosen,
            parts("fit"),
            steps=steps,
            learning_rate=learning_rate,
            shrink=shrink,
            seed=seed,
            on_step=lambda step, count, losses: say("fit", step, count, tuple(losses)),
        )
        guarded = parts("select")
        selection = select(
            sharpened,
            chosen,
            fitted.numbers,
            guarded[0],
            guarded[1] if len(guarded) > 1 else None,
            tolerance=tolerance,
            on_step=lambda step, count: say("select", step, count),
        )
        say("test", 0, 1)
        figures = _test(sharpened, chosen, selection.numbers, parts("test"))
        say("test", 1, 1)

    policies, gains = _plain(chosen, selection.numbers)
    first = figures["objective"]
    return Calibration.of(
        inner,
        policies,
        gains=gains,
        lengths=sorted({len(item.ids) for item in splits.fit if hasattr(item, "ids")}),
        objective=_name(objective),
        before=first["before"],
        after=first["after"],
        split_sizes=splits.sizes(),
        notes={
            "family": family,
            "flatten": flatten,
            "tolerance": None if tolerance == float("inf") else tolerance,
            "steps": steps,
            "text_weight": text_weight,
            "shrink": shrink,
            "learning_rate": learning_rate,
            "seed": seed,
            "own_temperatures": list(sharpened.notes),
            "select": _told(selection),
            "test": figures,
        },
    )


def _objective(data: Any, objective: Any) -> tuple[Splits[Any], Objective, Objective | None]:
    """The data in three parts, the function that is fitted, and the judge if it is another."""
    if objective not in ("text", "answers", "exact") and not callable(objective):
        raise ValueError(
            f"objective: expected 'text', 'answers', 'exact' or a function, got {objective!r}"
        )
    if not isinstance(data, Splits):
        raise TypeError(
            "data: expected Splits(fit=…, select=…, test=…), three parts with nothing in common, "
            f"got {type(data).__name__}"
        )
    if objective == "exact":
        return data, answer_loss, answer_wrong
    functions: dict[Any, Objective] = {"text": text_loss, "answers": answer_loss}
    return data, functions.get(objective) or checked(objective), None


def _check_numbers(least: float, **numbers: float) -> None:
    for name, number in numbers.items():
        if not number >= least:
            raise ValueError(f"{name}: expected at least {least:g}, got {number}")


def _check_positions(model: PreTrainedModel, name: str, splits: Splits[Any]) -> None:
    """Refuse what is longer than the model can read, before the work."""
    limit = positions(model)
    sizes = [
        # The last token of an answer is not read.
        len(item.ids) + max(0, len(getattr(item, "answer_ids", ())) - 1)
        for part in vars(splits).values()
        for item in part
        if hasattr(item, "ids")
    ]
    if limit is not None and max(sizes, default=0) > limit:
        raise ValueError(
            f"{name}: expected at most the {limit} positions of {type(model).__name__}, got "
            f"{max(sizes)} tokens; give shorter items"
        )


def _name(objective: Any) -> str:
    names = {
        "text": "nats per token",
        "answers": "nats per answer",
        "exact": "share of wrong answers",
    }
    return names.get(objective, getattr(objective, "__name__", type(objective).__name__))


def _context(item: Any) -> Any:
    return getattr(item, "context", id(item))


class _Entropies:
    """Mean entropy of each head, over the second half of the rows of windows."""

    def __init__(self) -> None:
        self.found: dict[int, list[Tensor]] = {}

    def record(self, layer: int, statistics: RowStatistics) -> None:
        entropy: Any = statistics.entropy()
        rows = entropy.shape[-1]
        self.found.setdefault(layer, []).append(entropy[..., rows // 2 :].mean((0, 2)))


def references(sharpened: Sharpened, part: Part) -> dict[int, Tensor]:
    """The entropy of each head at the lengths of the fit, where the model works."""
    entropies = _Entropies()
    with sharpened.disabled(), record(sharpened.model, entropies), torch.no_grad():
        for items in part.groups()[:8]:
            part.objective(sharpened.model, items)
    return {layer: torch.stack(found).mean(0) for layer, found in entropies.found.items()}


def _test(
    sharpened: Sharpened, family: Family, numbers: Tensor, parts: list[Part]
) -> dict[str, Any]:
    """The published figures: losses before and after, and the change with its interval."""
    found = {}
    for name, part in zip(("objective", "text"), parts, strict=False):
        before = evaluate(sharpened, family, family.neutral(), part)
        after = evaluate(sharpened, family, numbers, part) if numbers.any() else before
        found[name] = _figures(before, after)
    return found


def _figures(before: Losses, after: Losses) -> dict[str, Any]:
    change = (after.by_context - before.by_context).tolist()
    return {
        "before": before.mean,
        "after": after.mean,
        "change": sum(change) / len(change),
        "interval": clustered_interval(change, range(len(change))),
        "items": len(before.values),
        "contexts": len(change),
    }


def _told(selection: Selection) -> dict[str, Any]:
    """What the second part of the data said, ready for JSON."""

    def plain(candidate: Candidate) -> dict[str, Any]:
        # One context alone says nothing about others, and JSON has no infinity.
        return {name: x if isfinite(x) else None for name, x in candidate._asdict().items()}

    return {
        "chosen": None if selection.chosen is None else plain(selection.chosen),
        "candidates": [plain(candidate) for candidate in selection.candidates],
        "contributions": selection.contributions.tolist(),
    }


def _plain(family: Family, numbers: Tensor) -> tuple[dict[int, Any], dict[int, tuple[float, ...]]]:
    """Policies and gains of the layers that change, with plain numbers."""
    policies, gains = {}, {}
    for index, rule in family.rules(numbers).items():
        if rule.policy is not None:
            parameters = {
                name: value.double().numpy().round(6) for name, value in asdict(rule.policy).items()
            }
            policies[index] = type(rule.policy)(**parameters)
        if rule.gain is not None:
            gains[index] = tuple(round(factor, 6) for factor in rule.gain.tolist())
    return policies, gains
