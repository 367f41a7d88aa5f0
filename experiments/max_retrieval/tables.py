"""Tables of the max-retrieval experiment, from its results: the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from experiments.common.methods import ORACLE, look
from experiments.max_retrieval.cells import (
    WEIGHTS,
    caption_of,
    cell_of,
    heads,
    p_value,
    percent,
    recipe_text,
    records_of,
    rows_of,
    sets_and_seeds,
    source,
)
from experiments.max_retrieval.selection import (
    LONGEST,
    Line,
    compare,
    lines,
    main_recipe,
    sizes_of,
    weights_kinds,
)
from sharpmax.report._page.tables import Table

if TYPE_CHECKING:
    from experiments.max_retrieval.records import Table as Results
    from experiments.max_retrieval.records import WeightsKind

__all__ = [
    "anatomy_table",
    "beyond_table",
    "further_table",
    "headline_table",
    "inference_table",
    "paper_table",
    "tables",
    "trained_table",
    "training_table",
]

_PUBLISHED: Final[Mapping[int, tuple[float, float, str]]] = {
    16: (98.6, 98.6, ".4"),
    32: (97.1, 97.1, ""),
    64: (94.3, 94.5, ".002"),
    128: (89.7, 89.9, ""),
    256: (81.3, 82.1, "2e-4"),
    512: (70.1, 72.5, ""),
    1024: (53.8, 57.7, "1e-4"),
    2048: (35.7, 39.4, ""),
    4096: (22.6, 24.9, ".02"),
    8192: (15.7, 17.5, ""),
    16384: (12.4, 14.0, "4e-3"),
}
"""Table 1 of the paper by size: baseline, adaptive temperature, p-value."""

_HEADLINE: Final = (16, 64, 256, 1024, 4096, 16384)
"""Sizes of the short table."""

_FORETOLD: Final = (1024, 16384)
"""Sizes at which the accuracy of hard attention is foretold."""

_MOST: Final = 0.9
"""A size has a column if such a share of the lines has it."""

_RECALLED: Final = frozenset({32, 8192})
"""Sizes at which the paper's figures are recalled and not confirmed in a source."""


def tables(table: Results) -> dict[str, str]:
    """All tables that documents may ask for, as Markdown by name.

    Args:
        table: The results. A table of which they have nothing is left out.

    Returns:
        Markdown by name: max-retrieval-headline, -paper, -further, -beyond; -inference, -trained
        and -training with averaged weights, and each with "-last" for the last iterate.
    """
    found: dict[str, str] = {}
    for name, make in (
        ("headline", headline_table),
        ("paper", paper_table),
        ("further", further_table),
        ("beyond", beyond_table),
    ):
        try:
            found[f"max-retrieval-{name}"] = make(table).to_markdown()
        except LookupError:
            continue
    for group, of_weights in (
        ("inference", inference_table),
        ("trained", trained_table),
        ("training", training_table),
    ):
        for weights, suffix in (("averaged", ""), ("last", "-last")):
            try:
                text = of_weights(table, weights).to_markdown()  # type: ignore[arg-type]
            except LookupError:
                continue
            found[f"max-retrieval-{group}{suffix}"] = text
    return found


def headline_table(table: Results) -> Table:
    """The few figures that say it all: averaged weights, a few sizes.

    Args:
        table: The results.

    Returns:
        Softmax, the paper's rule and the exponential law on the same weights, then the exponential
        law on the recipe that goes furthest beyond.

    Raises:
        LookupError: There is nothing at inference.
    """
    found: dict[str, Line] = {}
    for method, line in _by_method(table, "averaged").items():
        if method in ("softmax", "paper", "exponential"):
            found[look(method).label] = line
    sizes = [n for n in _sizes(found, "methods at inference") if n in _HEADLINE]
    beyond = {
        recipe: line
        for (recipe, method), line in lines(table, "beyond", "averaged").items()
        if method == "exponential" and recipe != main_recipe(table) and sizes[-1] in line
    }
    if beyond:
        best = max(beyond, key=lambda recipe: beyond[recipe][sizes[-1]].mean)
        label = f"{look('exponential').label}, trained with {best.replace('-', ' ')}"
        found[label] = beyond[best]
    rows = rows_of(list(found), found.values(), sizes)
    below = caption_of(table, found.values(), sizes, "averaged")
    return Table(["right at n items, %", *heads(sizes)], rows, caption=below)


def paper_table(table: Results) -> Table:
    """The paper's Table 1 next to the same measurement here, with either kind of weights.

    Args:
        table: The results.

    Returns:
        A row a size.

    Raises:
        LookupError: There is no softmax at inference.
    """
    ours = {}
    for weights in reversed(weights_kinds(table, "inference")):
        found = _by_method(table, weights)
        if "softmax" in found:
            ours[weights] = found["softmax"], found.get("paper", {})
    if not ours:
        raise LookupError("the results have no softmax at inference to put beside the paper's")
    measured = [line for pair in ours.values() for line in pair]
    rows = []
    for n in sizes_of([*measured, dict.fromkeys(_PUBLISHED)], up_to=LONGEST):  # type: ignore[list-item]
        cells = [f"{n:,}", *_published(n)]
        for softmax, paper in ours.values():
            cells += [cell_of(softmax, n), cell_of(paper, n), p_value(compare(paper, softmax, n))]
        rows.append(cells)
    header = ["n", "softmax, published", "its rule, published", "p"]
    for weights in ours:
        header += [f"softmax, {WEIGHTS[weights]}", f"paper's rule, {WEIGHTS[weights]}", "p"]
    below = (
        "Percent right. † recalled, not confirmed in a source. Ours: mean ± standard deviation,"
        f" {sets_and_seeds(records_of(measured))}; p is that of the paired t-test of the rule"
        f" against softmax on the same weights. {source(table)}"
    )
    return Table(header, rows, title="The paper's table and ours", caption=below, words=0)


def inference_table(table: Results, weights: WeightsKind = "averaged") -> Table:
    """What a change of the weighting alone does, at inference, to heads trained with softmax.

    Args:
        table: The results.
        weights: The kind of weights of the heads.

    Returns:
        A row a method, the oracle below them, then the p-value of the exponential law
        against the paper's rule. The best of each size is bold, among those that do not peek.

    Raises:
        LookupError: There is nothing of the kind.
    """
    by_method = _by_method(table, weights)
    sizes = _sizes(by_method, f"methods at inference with {WEIGHTS[weights]}")
    oracle = by_method.pop(ORACLE, None)
    rows = rows_of([look(name).label for name in by_method], by_method.values(), sizes)
    notes = ""
    if oracle is not None:
        rows.append([f"{look(ORACLE).label} ‡", *(cell_of(oracle, n, sizes) for n in sizes)])
        notes = f" ‡ {look(ORACLE).note}."
    if {"exponential", "paper"} <= set(by_method):
        pair = by_method["exponential"], by_method["paper"]
        values = [p_value(compare(*pair, n)) for n in sizes]
        if any(values):
            rows.append([f"p, {look('exponential').label} against {look('paper').label}", *values])
    lines_shown = [*by_method.values(), *([oracle] if oracle else [])]
    below = caption_of(table, lines_shown, sizes, weights) + notes
    return Table(["method at inference", *heads(sizes)], rows, caption=below)


def trained_table(table: Results, weights: WeightsKind = "averaged") -> Table:
    """Heads that were trained and tested with the same method.

    Args:
        table: The results.
        weights: The kind of weights of the heads.

    Returns:
        A row a method; the best of each size is bold.

    Raises:
        LookupError: There is nothing of the kind.
    """
    found = lines(table, "trained", weights)
    sizes = _sizes(found, f"methods that were trained in, with {WEIGHTS[weights]}")
    methods = [method for _, method in found]
    names = [
        look(method).label if methods.count(method) == 1 else f"{look(method).label} ({recipe})"
        for recipe, method in found
    ]
    rows = rows_of(names, found.values(), sizes)
    below = caption_of(table, found.values(), sizes, weights)
    return Table(["trained and tested with", *heads(sizes)], rows, caption=below)


def training_table(table: Results, weights: WeightsKind = "averaged") -> Table:
    """What details of the training of plain softmax do to it, and to what follows at inference.

    Args:
        table: The results.
        weights: The kind of weights of the heads.

    Returns:
        A row a recipe and method.

    Raises:
        LookupError: There is nothing of the kind.
    """
    found = lines(table, "training", weights)
    sizes = _sizes(found, f"details of the training with {WEIGHTS[weights]}")
    rows: list[list[str]] = []
    for (recipe, method), line in found.items():
        # Said once for each recipe.
        told = bool(rows) and rows[-1][0] == recipe
        what = "" if told else recipe_text(table.recipes.get(recipe))
        cells = [cell_of(line, n, sizes) for n in sizes]
        rows.append([recipe, what, look(method).label, *cells])
    below = caption_of(table, found.values(), sizes, weights)
    header = ["training", "what it is", "at inference", *heads(sizes)]
    return Table(header, rows, caption=below, words=3)


def beyond_table(table: Results) -> Table:
    """What each change brings alone, and what they bring together.

    A change is one of the training, the averaging of the weights, or the method at inference.

    Args:
        table: The results.

    Returns:
        A row a set of changes, those of few changes first; the best of each size is bold.

    Raises:
        LookupError: There is nothing beyond the paper's set-up.
    """
    found: dict[tuple[str, ...], Line] = {}
    base = main_recipe(table)
    methods = {record.method for record in table.select(group="beyond")}
    for group in ("inference", "beyond"):
        for weights in weights_kinds(table, group):
            for (recipe, method), line in lines(table, group, weights).items():
                if method not in methods:
                    continue
                changes = [] if recipe == base else recipe.replace("-", " ").split("+")
                if weights == "averaged":
                    changes.append(WEIGHTS["averaged"])
                if method != "softmax":
                    changes.append(look(method).label)
                found.setdefault(tuple(changes), line)
    sizes = _sizes(found if methods else {}, "recipes that go beyond")
    ordered = sorted(found.items(), key=lambda item: len(item[0]))
    names = [" + ".join(changes) or "none: plain softmax, last iterate" for changes, _ in ordered]
    rows = rows_of(names, [line for _, line in ordered], sizes)
    below = caption_of(table, found.values(), sizes)
    return Table(["changes", *heads(sizes)], rows, caption=below)


def further_table(table: Results) -> Table:
    """Sizes beyond the largest of the paper.

    Args:
        table: The results.

    Returns:
        A row a training, kind of weights and method; the best of each size is bold.

    Raises:
        LookupError: No size is beyond 16,384.
    """
    found: dict[tuple[str, str, str], Line] = {}
    for group in ("inference", "beyond"):
        for weights in weights_kinds(table, group):
            for (recipe, method), line in lines(table, group, weights).items():
                longer = {n: record for n, record in line.items() if n > LONGEST}
                if longer and method != ORACLE:
                    found.setdefault((recipe, WEIGHTS[weights], look(method).label), longer)
    sizes = sizes_of(found.values())
    if not sizes:
        raise LookupError(f"the results have no size beyond {LONGEST:,}")
    rows = rows_of([" · ".join(key) for key in found], found.values(), sizes)
    below = caption_of(table, found.values(), sizes)
    return Table(["training · weights · method", *heads(sizes)], rows, caption=below)


def anatomy_table(table: Results, anatomy: Mapping[str, Any]) -> Table:
    """What the logits of heads are made of, and how well that foretells hard attention.

    Args:
        table: The results.
        anatomy: What `experiments.max_retrieval.anatomy.load_anatomy` gave.

    Returns:
        A row a training and kind of weights: slope of the logit by the priority, deviation of what
        a class adds in units of priority, and the accuracy of hard attention that follows from
        these alone beside the measured one.

    Raises:
        LookupError: There is nothing of the kind.
    """
    rows = []
    records = []
    for recipe, by_weights in anatomy["recipes"].items():
        for weights, entry in by_weights.items():
            found = {
                record.n: record
                for record in table.select(recipe=recipe, weights=weights, method="hard")
            }
            measured = [found[n] for n in _FORETOLD if n in found]
            if len(measured) != len(_FORETOLD):
                continue
            records += measured
            cells = [f"{_mean(entry['slope']):.0f}", f"{1e4 * _mean(entry['deviation']):.2f}"]
            for record in measured:
                cells += [percent(_mean(entry["predicted"][str(record.n)])), percent(record.mean)]
            rows.append([recipe, WEIGHTS[weights], *cells])
    if not rows:
        raise LookupError("the results have no hard attention to compare with what was foretold")
    header = ["training", "weights", "slope", "offsets, 1e-4"]
    for n in _FORETOLD:
        header += [f"foretold, {n:,}", f"measured, {n:,}"]
    below = (
        "Hard attention, percent right, means over seeds. Foretold: by the deviation of the"
        f" offsets alone. {sets_and_seeds(records).capitalize()}. {source(table)}"
    )
    return Table(header, rows, caption=below, words=2)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _by_method(table: Results, weights: WeightsKind) -> dict[str, Line]:
    return {method: line for (_, method), line in lines(table, "inference", weights).items()}


def _sizes(found: Mapping[Any, Line], what: str) -> list[int]:
    """The sizes that nearly all lines have, if there are any; some arms are tested at fewer."""
    sizes = sizes_of(found.values(), up_to=LONGEST)
    if not sizes:
        raise LookupError(f"the results have no {what}")
    have = {n: sum(n in line for line in found.values()) for n in sizes}
    return [n for n in sizes if have[n] >= _MOST * len(found)] or sizes


def _published(n: int) -> list[str]:
    if n not in _PUBLISHED:
        return ["", "", ""]
    softmax, rule, p = _PUBLISHED[n]
    mark = "†" if n in _RECALLED else ""
    return [f"{softmax}{mark}", f"{rule}{mark}", p]
