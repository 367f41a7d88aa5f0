"""Tables of models that learnt their training sizes, with the bounds from interventions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from experiments.clrs_text.interventions import FEW, HEADS, INTERVENTIONS, KINDS, Kind
from experiments.clrs_text.records import Table as Results
from experiments.clrs_text.view import PLAIN, View, label_of
from experiments.common.cells import percent, source, with_deviation
from experiments.common.significance import adjusted
from sharpmax._files import read_sealed
from sharpmax.report._page.tables import Table

__all__ = ["learnt_tables"]

_BOUNDS: Final[Mapping[Kind, str]] = {
    "oracle": f"bound: {HEADS} heads attend to the right items",
    "hard": f"bound: {HEADS} heads attend to the largest logit",
}
_SIGNIFICANT: Final = 0.05


def learnt_tables(folder: Path) -> list[Table]:
    """Make the tables of models that learnt their training sizes.

    Args:
        folder: A folder with `table.json` and `interventions.json`.

    Returns:
        The accuracy at training sizes, that of every attention at larger sizes with the bounds,
        the share of the oracle's gain that each of them reaches, single heads, and every algorithm.
    """
    results = Results.load(folder / "table.json")
    bounds = read_sealed(folder / "interventions.json", INTERVENTIONS)["seeds"]
    view = View(results, results.records[0].tokenizer)
    return [
        _inside(view),
        *(make(view, bounds) for make in (_sizes, _recovered, _single, _all)),
    ]


def _bound(
    view: View, bounds: Mapping[str, Any], kind: Kind, names: Sequence[str], times: float
) -> list[float]:
    """Return the accuracy with the chosen set of heads replaced, per seed."""
    sizes = {name: str(int(np.ceil(times * view.results.lengths[name][1]))) for name in names}
    return [
        float(np.mean([of_seed[name][kind]["sizes"][n]["set"][0] for name, n in sizes.items()]))
        for of_seed in bounds.values()
    ]


def _inside(view: View) -> Table:
    rows = []
    for name in view.algorithms:
        found = view.results.select(
            tokenizer=view.tokenizer, algorithm=name, method="softmax", trained_with="softmax"
        )
        by_size = {each.n: each.mean for each in found if view.results.is_seen(each)}
        worst = min(by_size, key=by_size.__getitem__)
        mean = float(np.mean(list(by_size.values())))
        rows.append([name, percent(mean), percent(by_size[worst]), str(worst)])
    caption = (
        "Accuracy of plain softmax in percent over all training sizes, mean over seeds. "
        f"{len(view.results.seeds)} seeds. {source(view.results.command)}"
    )
    header = ["algorithm", "mean over sizes", "lowest size", "which"]
    return Table(header, rows, title="Training sizes", caption=caption)


def _sizes(view: View, bounds: Mapping[str, Any]) -> Table:
    sizes, names = view.multiples, view.algorithms
    tested = [
        (way, times, p)
        for way in view.ways
        if way != PLAIN
        for times in sizes
        if (p := view.gain(way, names, times)[1]) is not None
    ]
    corrected = adjusted([p for *_, p in tested])
    significant = {
        (way, times)
        for (way, times, _), p in zip(tested, corrected, strict=True)
        if p < _SIGNIFICANT
    }
    rows = []
    for way in view.ways:
        row = [label_of(way)]
        for times in sizes:
            cell = with_deviation(view.shares(way, names, times))
            row.append(f"**{cell}**" if (way, times) in significant else cell)
        rows.append(row)
    for kind in KINDS:
        cells = [with_deviation(_bound(view, bounds, kind, names, times)) for times in sizes[1:]]
        rows.append([_BOUNDS[kind], "", *cells])
    caption = (
        "Accuracy in percent, mean ± standard deviation over seeds, averaged over all algorithms. "
        "Sizes are multiples of the largest training size. Bold: p < 0.05 against softmax in the "
        f"paired t-test over seeds, after Holm's correction for {len(tested)} tests. The heads of "
        "the bounds were chosen per seed and algorithm on other questions. "
        f"{len(view.results.seeds)} seeds. {source(view.results.command)}"
    )
    header = ["attention", *(f"{times:g}x" for times in sizes)]
    return Table(header, rows, title="Larger sizes", caption=caption)


def _recovered(view: View, bounds: Mapping[str, Any]) -> Table:
    sizes, names = view.multiples[1:], view.algorithms
    rows = []
    for way in (way for way in view.ways if way != PLAIN):
        row = [label_of(way)]
        for times in sizes:
            plain = np.mean(view.shares(PLAIN, names, times))
            possible = np.mean(_bound(view, bounds, "oracle", names, times)) - plain
            gained = np.mean(view.shares(way, names, times)) - plain
            row.append(f"{100 * gained / possible:.0f}" if possible > 0 else "")
        rows.append(row)
    caption = (
        "What an attention gains over softmax, in percent of what the oracle gains in its heads; "
        f"empty where the oracle gains nothing. {source(view.results.command)}"
    )
    header = ["attention", *(f"{times:g}x" for times in sizes)]
    return Table(header, rows, title="Share of the oracle's gain", caption=caption)


def _single(view: View, bounds: Mapping[str, Any]) -> Table:
    rows = []
    for name in view.algorithms:
        for kind in KINDS:
            own = [of_seed[name][kind] for of_seed in bounds.values()]
            first = [tuple(each["heads"][0]) if each["heads"] else None for each in own]
            shown = ["none" if head is None else f"{head[0]}.{head[1]}" for head in first]
            row = ["" if kind != KINDS[0] else name, kind, " ".join(shown)]
            for times in view.multiples[1:]:
                n = str(int(np.ceil(times * view.results.lengths[name][1])))
                gained = [
                    0.0
                    if head is None
                    else sizes[n]["single"][head[0]][head[1]][0] - sizes[n]["few"][0]
                    for head, sizes in zip(first, (each["sizes"] for each in own), strict=True)
                ]
                row.append(f"{100 * np.mean(gained):+.0f}")
            rows.append(row)
    caption = (
        "Points of accuracy gained when one head alone attends to the right items (oracle) or to "
        f"the largest logit (hard), on {FEW} questions per size, mean over seeds. Per seed the "
        "layer and head that gains most on other questions. Where hard attention gains as much as "
        "the oracle, the logits are right and dispersion is the cause. "
        f"{source(view.results.command)}"
    )
    header = ["algorithm", "replaced by", "heads", *(f"{t:g}x" for t in view.multiples[1:])]
    return Table(header, rows, title="Single heads", caption=caption, words=3)


def _all(view: View, bounds: Mapping[str, Any]) -> Table:
    rows = []
    for name in view.algorithms:
        lines = {label_of(way): [view.shares(way, [name], 1.0)] for way in view.ways}
        lines |= {_BOUNDS[kind]: [()] for kind in KINDS}
        for times in view.multiples[1:]:
            for way in view.ways:
                lines[label_of(way)].append(view.shares(way, [name], times))
            for kind in KINDS:
                lines[_BOUNDS[kind]].append(tuple(_bound(view, bounds, kind, [name], times)))
        for number, (label, found) in enumerate(lines.items()):
            rows.append(["" if number else name, label, *map(with_deviation, found)])
    caption = (
        f"Accuracy in percent, mean ± standard deviation over seeds. {source(view.results.command)}"
    )
    header = ["algorithm", "attention", *(f"{times:g}x" for times in view.multiples)]
    return Table(header, rows, title="Every algorithm", caption=caption, words=2)
