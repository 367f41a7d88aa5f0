"""Find which heads of a model to change, and by how much, without harm to ordinary text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from math import isfinite
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from sharpmax._resampling import clustered_interval
from sharpmax._settings import CalibrationSettings
from sharpmax._statistics import RowStatistics
from sharpmax.models._attachment import statistics_to
from sharpmax.models._calibration import objectives
from sharpmax.models._calibration.fit import EarlyStopping, Term, fit
from sharpmax.models._calibration.objectives import Objective, Splits, Window
from sharpmax.models._calibration.parameters import FamilyName, HeadParameters
from sharpmax.models._calibration.result import Calibration
from sharpmax.models._calibration.select import Selection, losses_of, select
from sharpmax.models._calibration.shared import Shared
from sharpmax.models._handle import Sharpened, neutral_rules
from sharpmax.models._inspect import check_causal_lm, check_items
from sharpmax.models._open import open_model
from sharpmax.models._share import digest
from sharpmax.models._torch_module.way import TorchModule
from sharpmax.models._way import in_precision

_OBJECTIVES: dict[str, tuple[str, Objective, Objective | None]] = {
    "text": ("nats per token", objectives.text_loss, None),
    "answers": ("nats per answer", objectives.answer_loss, None),
    "exact": ("share of wrong answers", objectives.answer_loss, objectives.answer_wrong),
}  # the unit, the function that is fitted, and the judge if it differs


_CHECKED = 4  # early stopping looks at every fourth group of the second split


class Stage(NamedTuple):
    """The progress of a calibration.

    Attributes:
        name: "fit", "select" or "test".
        step: number of finished steps of this stage.
        steps: number of steps of this stage.
        losses: after a step of the fit: the objective, and the drift on ordinary text.
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
    tolerance: float = CalibrationSettings.tolerance,
    family: FamilyName = "constant",
    flatten: bool = CalibrationSettings.flatten,
    steps: int = CalibrationSettings.steps,
    batch: int = CalibrationSettings.batch,
    text_batch: int = CalibrationSettings.text_batch,
    text_weight: float = CalibrationSettings.text_weight,
    learning_rate: float = CalibrationSettings.learning_rate,
    shrink: float = CalibrationSettings.shrink,
    seed: int = CalibrationSettings.seed,
    fit_dtype: torch.dtype | None = None,
    check_every: int = CalibrationSettings.check_every,
    shared: Shared | None = None,
    on_progress: Callable[[Stage], None] | None = None,
) -> Calibration:
    """Fit one or two numbers per head, and keep those that help on unseen data.

    The weights stay frozen. The first split fits the numbers by gradient descent through the
    attention. On the second split, heads that do not help are reset, and the rest is kept only if
    the loss on ordinary text stays within the tolerance. The third split gives the figures
    `before` and `after`, with intervals in `notes["test"]`; nothing is chosen by it. Every context
    counts once, regardless of its number of questions. If nothing helps, the calibration is empty.

    A lower objective does not show that the temperature caused it: compare with the family "gain",
    which changes no temperature, as `sharpmax calibrate` does.

    Prior work: HeadScale (arXiv 2404.12224) has one temperature per head. SEAL (arXiv 2501.15225)
    has one scalar per head output, merged into the weights. SSMax (arXiv 2501.19399) scales logits
    by log n, as `sharpmax.policies.LogLength` does.

    Args:
        model: a transformers model, which is unchanged afterwards. It must be a causal language
            model, unless the objective is a function and `text` is None. Then it may be any PyTorch
            module that `sharpmax.sharpen` can reach.
        data: three splits of items. For "text": windows (see `text_splits`). For "answers" and
            "exact": questions, as in `sharpmax.tasks`. For a function: whatever it accepts.
        objective: "text", the mean loss of the next token; "answers", the negative log-probability
            of the answer; "exact", the share of wrong answers under greedy decoding, where the fit
            minimises "answers" and the share selects heads; or a function of the model and some
            items that returns one differentiable loss per item.
        text: windows of ordinary text, in three splits, for the guard. Required unless the
            objective is "text"; None with an infinite tolerance switches the guard off.
        tolerance: largest increase of the loss on ordinary text, in nats per token, with two
            standard errors included.
        family: the numbers of a head. "constant": log beta, the same for every row. "entropy": a in
            log beta = a * max(0, H - reference), where the reference is the head's entropy at the
            lengths of the fit. "gain": the logarithm of a factor of the head's output.
            "constant+gain" and "entropy+gain": both.
        flatten: whether beta may be below 1; not with "entropy".
        steps: number of steps of the fit.
        batch: items per step; questions of one context count as one.
        text_batch: windows of ordinary text per step.
        text_weight: weight of ordinary text: of the KL divergence from the original predictions in
            the fit, and of the loss in the choice of heads.
        learning_rate: of Adam.
        shrink: weight of the sum of absolute values, which pulls numbers towards zero.
        seed: seed of the order of the data.
        fit_dtype: precision of the weights while numbers are fitted and heads selected, for a
            causal language model; None for its own. The test always uses its own precision. On
            processors with products in bfloat16, that halves the time.
        check_every: number of steps after which the fit is checked on every fourth context and
            window of the second split; 0 for never. The fit ends when the last steps between two
            checks brought less than a twentieth of the decrease of the loss so far, and the numbers
            of the best check are kept.
        shared: what calibrations of the same model on the same data have in common: pass the same
            `sharpmax.models.Shared()` to each of them, and it is computed once.
        on_progress: called with the stage after each step.

    Returns:
        The calibration: pass it to `sharpmax.sharpen`, or `save` it.

    Raises:
        CannotSharpenError: no attention layer can be reached, the model is already sharpened, or it
            is not a causal language model where one is required.
        NotImplementedError: the heads of the model are distributed over ranks.
        TypeError, ValueError: names the argument, what was expected and what came.
    """
    way = open_model(model)
    inner, layers = way.model, way.layers
    if text is not None or not callable(objective):
        # Texts and answers are measured token by token.
        if not way.of_transformers:
            raise TypeError(
                "objective, text: expected a function and None for a model that is not of "
                f"transformers, got {objective!r} and {type(text).__name__}"
            )
        check_causal_lm(inner, layers)
    unit, measure, judge = _objective(objective)
    way.check_one_rank()
    if not isinstance(data, Splits):
        raise TypeError(
            "data: expected Splits(fit=…, select=…, test=…), three disjoint splits, got "
            f"{type(data).__name__}"
        )
    _check_numbers(1, steps=steps, batch=batch, text_batch=text_batch)
    _check_numbers(
        0.0, tolerance=tolerance, text_weight=text_weight, shrink=shrink, check_every=check_every
    )
    if not learning_rate > 0:
        raise ValueError(f"learning_rate: expected a number above 0, got {learning_rate}")
    if way.of_transformers:
        for name, splits in (("data", data), ("text", text)):
            check_items(inner, name, chain(*vars(splits).values()) if splits else ())
    elif fit_dtype is not None:
        raise ValueError(
            f"fit_dtype: expected None for a model that is not of transformers, got {fit_dtype}"
        )
    shared = Shared() if shared is None else shared
    shared.bind(objective, model, data, text)
    share = way.share
    share.agree(
        model=way.identity, objective=unit, family=family, steps=steps, batch=(batch, text_batch),
        numbers=(tolerance, text_weight, learning_rate, shrink, flatten, check_every), seed=seed,
        data=[*map(digest, vars(data).values())],
        text=text and [*map(digest, vars(text).values())],
    )  # fmt: skip
    if text is None and objective != "text" and tolerance != float("inf"):
        raise ValueError(
            "text: expected windows of ordinary text for the guard, got None; to go without a "
            f"guard, pass tolerance=float('inf') instead of {tolerance}"
        )

    if isinstance(way, TorchModule):
        way.probe(lambda found: measure(found, data.fit[:1]))

    def report(name: Any, step: int, steps: int, losses: Sequence[float] = ()) -> None:
        if on_progress is not None and share.first:
            on_progress(Stage(name, step, steps, tuple(losses)))

    def terms(split: str) -> list[Term]:
        """Return the objective and the guard on one split."""
        key = None if objective == "text" else lambda item: getattr(item, "context", id(item))
        found = [Term(measure, getattr(data, split), batch, key=key, judge=judge)]
        if text is not None:
            drift = objectives.drift(partial(neutral_rules, sharpened), shared)
            guard = drift if split == "fit" else objectives.text_loss
            found.append(Term(guard, getattr(text, split), text_batch, text_weight))
        return found

    def watched() -> list[Term]:
        """Return what the fit minimises, on a part of the second split."""
        found = []
        for fitted, selecting in zip(terms("fit"), terms("select"), strict=True):
            items = [*chain(*selecting.groups()[::_CHECKED])]
            found.append(replace(fitted, items=items, judge=None))
        return found

    with Sharpened(way, stock=False) as sharpened, ExitStack() as stack:
        stack.enter_context(in_precision(inner, fit_dtype))
        measured = None
        if "entropy" in family.split("+"):
            # The usual entropy is that of ordinary text, where there is any.
            usual = Term(measure, data.fit, 1)
            if text is not None:
                usual = Term(objectives.text_loss, text.fit, 1)
            measured = references(sharpened, usual)
        reachable = [layer for layer in layers if layer.unreachable is None]
        parameters = HeadParameters(family, reachable, flatten, measured)
        measured_by = partial(_total, sharpened, parameters, watched())
        stopping = EarlyStopping(check_every, measured_by) if check_every else None
        fitted = fit(
            sharpened, parameters, terms("fit"), steps=steps, learning_rate=learning_rate,
            shrink=shrink, seed=seed, on_step=partial(report, "fit"), stopping=stopping,
        )  # fmt: skip
        selection = select(
            sharpened, parameters, fitted, *terms("select"),
            tolerance=tolerance, on_step=partial(report, "select"), shared=shared,
        )  # fmt: skip
        stack.close()
        report("test", 0, 1)
        figures = _test(sharpened, parameters, selection.numbers, terms("test"), shared)
        report("test", 1, 1)

    policies, gains = _plain(parameters, selection.numbers)
    notes = {
        "family": family, "flatten": flatten, "steps": steps, "seed": seed,
        "tolerance": None if tolerance == float("inf") else tolerance, "text_weight": text_weight,
        "shrink": shrink, "learning_rate": learning_rate, "own_temperatures": list(sharpened.notes),
        "fit_dtype": way.dtype if fit_dtype is None else str(fit_dtype).removeprefix("torch."),
        "checks": stopping.checks if stopping else [],
        "select": _selection_notes(selection), "test": figures,
    }  # fmt: skip
    return Calibration.of(
        way,
        policies,
        gains=gains,
        lengths=sorted({len(item.ids) for item in data.fit if hasattr(item, "ids")}),
        objective=unit,
        before=figures["objective"]["before"],
        after=figures["objective"]["after"],
        split_sizes=data.sizes(),
        notes=notes,
    )


def _objective(objective: Any) -> tuple[str, Objective, Objective | None]:
    if callable(objective):
        name = getattr(objective, "__name__", type(objective).__name__)
        return name, objectives.checked(objective), None
    if objective not in tuple(_OBJECTIVES):
        raise ValueError(
            f"objective: expected 'text', 'answers', 'exact' or a function, got {objective!r}"
        )
    return _OBJECTIVES[objective]


def _check_numbers(least: float, **numbers: float) -> None:
    for name, number in numbers.items():
        if not number >= least:
            raise ValueError(f"{name}: expected at least {least:g}, got {number}")


def _total(
    sharpened: Sharpened, parameters: HeadParameters, terms: list[Term], numbers: Tensor
) -> float:
    """Return the weighted loss of some terms."""
    return sum(term.weight * losses_of(sharpened, parameters, numbers, term).mean for term in terms)


class _Entropies(defaultdict[int, list[Tensor]]):
    """Record the mean entropy of each head over the second half of the rows."""

    def record(self, layer: int, statistics: RowStatistics) -> None:
        entropy: Any = statistics.entropy()
        self[layer].append(entropy[..., entropy.shape[-1] // 2 :].mean((0, 2)))


def references(sharpened: Sharpened, term: Term) -> dict[int, Tensor]:
    """Measure the entropy of each head in the original model, on up to eight groups of a term."""
    entropies = _Entropies(list)
    recording = partial(Sharpened, sharpened._way, observe=statistics_to(entropies))

    def measured(items: list[Any]) -> dict[int, list[Tensor]]:
        entropies.clear()
        term.objective(sharpened.model, items)
        return {layer: [each.cpu() for each in found] for layer, found in entropies.items()}

    with sharpened.disabled(), recording(), torch.no_grad():
        groups = sharpened._way.share.map(measured, term.groups()[:8])
    return {
        layer: torch.stack([each for found in groups for each in found.get(layer, ())]).mean(0)
        for layer in sorted(set().union(*groups))
    }


def _test(
    sharpened: Sharpened,
    parameters: HeadParameters,
    numbers: Tensor,
    terms: list[Term],
    shared: Shared,
) -> dict[str, Any]:
    """Return losses before and after, and the change with its interval, per term."""
    found = {}
    for name, term in zip(("objective", "text"), terms, strict=False):
        neutral = partial(losses_of, sharpened, parameters, parameters.neutral(), term)
        before = shared.losses(("test", name, sharpened._way.dtype), neutral)
        after = losses_of(sharpened, parameters, numbers, term) if numbers.any() else before
        change = (after.by_context - before.by_context).tolist()
        found[name] = {
            "before": before.mean,
            "after": after.mean,
            "change": sum(change) / len(change),
            "interval": clustered_interval(change, range(len(change))),
            "items": len(before.values),
            "contexts": len(change),
        }
    return found


def _selection_notes(selection: Selection) -> dict[str, Any]:
    # With one context the bounds are infinite, which JSON cannot express.
    chosen, *candidates = (
        each and {name: x if isfinite(x) else None for name, x in each._asdict().items()}
        for each in (selection.chosen, *selection.candidates)
    )
    contributions = selection.contributions.tolist()
    return {"chosen": chosen, "candidates": candidates, "contributions": contributions}


def _plain(
    parameters: HeadParameters, numbers: Tensor
) -> tuple[dict[int, Any], dict[int, tuple[float, ...]]]:
    """Return the policies and gains of the changed layers, with rounded plain numbers."""
    policies, gains = {}, {}
    for index, rule in parameters.rules(numbers).items():
        if rule.policy is not None:
            values = asdict(rule.policy).items()
            rounded = {name: value.double().numpy().round(6) for name, value in values}
            policies[index] = type(rule.policy)(**rounded)
        if rule.gain is not None:
            gains[index] = tuple(round(factor, 6) for factor in rule.gain.tolist())
    return policies, gains
