"""Tables of the experiment, made from its results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from experiments.clrs_text.learnt import learnt_tables
from experiments.clrs_text.levers import levers_table
from experiments.clrs_text.records import Table as Results
from experiments.clrs_text.records import load_entropy
from experiments.clrs_text.view import LEARNED, PLAIN, Measure, View, Way, Where, label_of, views
from experiments.common.cells import p_value, percent
from experiments.common.methods import look
from sharpmax.report._page.tables import Table

__all__ = [
    "algorithms_table",
    "answer_table",
    "dispersion_table",
    "gains_table",
    "inference_table",
    "learned_table",
    "pages",
    "sizes_table",
    "slopes",
    "tables",
]

_SIGNIFICANT: Final = 0.05
_WIDTH: Final = 100  # Columns of captions in documents.
_MEASURES: Final = {
    "accuracy": "Accuracy in percent",
    "tokens": "Correct answer tokens in percent, given the correct tokens before them",
}


def tables(folder: Path) -> dict[str, str]:
    """Make the tables of the documents from a folder of results.

    Args:
        folder: A folder with `table.json`.

    Returns:
        Markdown by the name of the marker.
    """
    results = Results.load(folder / "table.json")
    found = {"clrs-text-answer": answer_table(results), "clrs-text-learned": learned_table(results)}
    return {name: each.to_markdown(_WIDTH) for name, each in found.items()}


def pages(folder: Path) -> dict[str, str]:
    """Make the pages for the tables that the README leaves out.

    Args:
        folder: A folder with `table.json` and, if there are any, the entropies in `entropy.json`
            the other algorithms in `others/table.json`, the models of `--learnt`, here or in
            `learnt/`, and what `levers` measured, in `levers/`.

    Returns:
        Markdown by file name.
    """
    results = Results.load(folder / "table.json")
    by_size = [inference_table(results)]
    by_algorithm: list[Table] = []
    by_token = [inference_table(results, "tokens")]
    for view in views(results):
        tokens = View(results, view.tokenizer, "tokens")
        by_size += [sizes_table(view), gains_table(view)]
        by_algorithm.append(algorithms_table(view))
        by_token += [sizes_table(tokens), gains_table(tokens)]
    found = {
        "sizes.md": _page("Accuracy beyond training sizes", by_size),
        "algorithms.md": _page("Accuracy by algorithm and size", by_algorithm),
        "tokens.md": _page("Correct answer tokens", by_token),
    }
    if (entropy := folder / "entropy.json").exists():
        found["entropy.md"] = _page("Entropy by layer", [dispersion_table(load_entropy(entropy))])
    for where in (folder, folder / "learnt"):
        if (where / "interventions.json").exists():
            found["learnt.md"] = _page("Models that learnt their sizes", learnt_tables(where))
    if (others := folder / "others" / "table.json").exists():
        found["others.md"] = _page("The other 22 algorithms", [learned_table(Results.load(others))])
    if (levers := folder / "levers").exists():
        found["levers.md"] = _page("Levers of the recipe", [levers_table(levers)])
    return found


def _page(title: str, found: Sequence[Table]) -> str:
    parts = [f"# {title}"]
    for table in found:
        parts += [f"## {table.title}"] * bool(table.title) + [table.to_markdown(_WIDTH)]
    return "\n\n".join(parts)


def learned_table(results: Results) -> Table:
    """Show what plain softmax learns at training sizes: one row per algorithm."""
    header = ["algorithm", "training sizes"]
    rows = [[name, f"{low} to {high}"] for name, (low, high) in results.lengths.items()]
    for view, tokens in zip(views(results), views(results, "tokens"), strict=True):
        header += [view.tokenizer, "tokens"]
        for name, row in zip(view.algorithms, rows, strict=True):
            whole, parts = (each.shares(PLAIN, [name], "training") for each in (view, tokens))
            cells = [percent(float(np.mean(each))) if each else "" for each in (whole, parts)]
            if whole and np.mean(whole) >= LEARNED:
                cells[0] = f"**{cells[0]}**"
            row += cells
    caption = (
        "Accuracy of plain softmax in percent, per tokenizer, averaged over training sizes and "
        f"seeds; bold from {percent(LEARNED)}. tokens: correct answer tokens in percent, given the "
        f"correct tokens before them. {_measured(results)}"
    )
    return Table(header, rows, caption=caption, words=2)


def sizes_table(view: View, *, p_values: bool = True) -> Table:
    """Compare all ways at every size, averaged over the learned algorithms: one row per way.

    Args:
        view: The results to show.
        p_values: Whether each size has a column of p-values; a terminal has no room for them.
    """
    names = view.learned
    rows = []
    for way in view.ways:
        row = [label_of(way)]
        for times in view.multiples:
            row.append(_with_deviation(view.shares(way, names, times)))
            if p_values:
                row.append("" if way == PLAIN else p_value(view.gain(way, names, times)[1]))
        rows.append(row)
    caption = (
        f"{_MEASURES[view.measure]}, mean ± standard deviation over seeds, averaged over "
        f"{view.averaged}. Sizes are multiples of the largest training size. "
        f"{'p: paired t-test against softmax. ' if p_values else ''}{_measured(view.results)}"
    )
    header = ["attention", *(_with_p(view) if p_values else map(_times, view.multiples))]
    return Table(header, rows, title=f"All sizes, tokenizer: {view.tokenizer}", caption=caption)


def algorithms_table(view: View) -> Table:
    """Show every algorithm, way and size: one row per algorithm and way."""
    rows: list[list[str]] = []
    for name in view.algorithms:
        first = name
        for way in view.ways:
            shares = [view.shares(way, [name], times) for times in view.multiples]
            if any(shares):
                rows.append([first, label_of(way), *map(_with_deviation, shares)])
                first = ""
    caption = (
        f"{_MEASURES[view.measure]}, mean ± standard deviation over seeds. Sizes are multiples of "
        f"the largest training size. {_measured(view.results)}"
    )
    header = ["algorithm", "attention", *map(_times, view.multiples)]
    title = f"Every algorithm, tokenizer: {view.tokenizer}"
    return Table(header, rows, title=title, caption=caption, words=2)


def gains_table(view: View) -> Table:
    """Show what every way gains beyond training sizes: one row per algorithm."""
    others = [way for way in view.ways if way != PLAIN]
    rows = []
    groups = [(name, [name]) for name in view.algorithms]
    for label, names in [*groups, ("all learned", view.learned)]:
        row = [label, _with_deviation(view.shares(PLAIN, names, "beyond"))]
        for way in others:
            gained, p = view.gain(way, names, "beyond")
            cell = "" if gained is None else f"{gained:+.1f}"
            row.append(f"**{cell}**" if p is not None and p < _SIGNIFICANT else cell)
        rows.append(row)
    caption = (
        f"{_MEASURES[view.measure]}: softmax as mean ± standard deviation over seeds, the others "
        f"as points gained over it, averaged over {', '.join(map(_times, view.multiples[1:]))} the "
        f"largest training size. Bold: p < {_SIGNIFICANT} in the paired t-test over seeds. "
        f"{_measured(view.results)}"
    )
    header = ["algorithm", "softmax", *map(label_of, others)]
    title = f"Gains by algorithm, tokenizer: {view.tokenizer}"
    return Table(header, rows, title=title, caption=caption)


def inference_table(results: Results, measure: Measure = "accuracy") -> Table:
    """Show what each method changes at inference only: one row per tokenizer and method."""
    found = views(results, measure)
    shared = [name for name in results.lengths if all(name in view.learned for view in found)]
    rows = []
    for view in found:
        names = shared or view.learned
        for way in view.ways:
            if way == PLAIN:
                row = [view.tokenizer, look(way.method).label]
                for times in view.multiples:
                    row += [_with_deviation(view.shares(way, names, times)), ""]
            elif way.trained_with == "softmax":
                row = ["", look(way.method).label]
                for times in view.multiples:
                    gained, p = view.gain(way, names, times)
                    row += ["" if gained is None else f"{gained:+.1f}", p_value(p)]
            else:
                continue
            rows.append(row)
    which = f"the algorithms learned with every tokenizer ({', '.join(shared)})"
    if not shared:
        which = "; ".join(f"{view.tokenizer}: {view.averaged}" for view in found)
    caption = (
        f"{_MEASURES[measure]}: softmax as mean ± standard deviation over seeds, the methods as "
        f"points gained over it on the same weights, averaged over {which}. p: paired t-test over "
        f"seeds. {_measured(results)}"
    )
    return Table(["tokenizer", "attention", *_with_p(found[0])], rows, caption=caption, words=2)


def answer_table(results: Results) -> Table:
    """Show which algorithms each way helps or hurts: two rows per tokenizer and way."""
    rows = []
    for view in views(results):
        for way in view.ways:
            if way != PLAIN:
                first = [view.tokenizer, label_of(way)]
                rows.append([*first, "training", *_helped_and_hurt(view, way, "training")])
                rows.append(["", "", "beyond", *_helped_and_hurt(view, way, "beyond")])
    caption = (
        "Points of accuracy gained over plain softmax, averaged over sizes and seeds, for the "
        f"algorithms with p < {_SIGNIFICANT} in the paired t-test over seeds; one in twenty would "
        "be there by chance. Last column: number of algorithms without a significant change. "
        f"{_measured(results)}"
    )
    header = ["tokenizer", "attention", "sizes", "helps", "hurts", "neither"]
    return Table(header, rows, caption=caption, words=5)


def _helped_and_hurt(view: View, way: Way, where: Where) -> Iterator[str]:
    """Yield the algorithms that a way helps, those that it hurts, and the number of others."""
    gains = {name: view.gain(way, [name], where) for name in view.algorithms}
    certain = {
        name: gained
        for name, (gained, p) in gains.items()
        if gained is not None and p is not None and p < _SIGNIFICANT
    }
    for sign in (1, -1):
        found = [f"{name} {gained:+.1f}" for name, gained in certain.items() if sign * gained > 0]
        yield ", ".join(found) or "none"
    yield str(len(gains) - len(certain))


def dispersion_table(entropy: Mapping[str, Any]) -> Table:
    """Show where attention disperses as inputs grow: one row per training and layer.

    Args:
        entropy: What `load_entropy` returned.
    """
    rows = []
    for name, entry in entropy["arms"].items():
        means = np.asarray(entry["mean"])
        at_training = entry["multiples"].index(1.0)
        for layer, slope in enumerate(slopes(entry)):
            near, far = means[at_training, layer].mean(), means[-1, layer].mean()
            cells = [f"{each:.2f}" for each in (near, far, slope.mean(), slope.max())]
            rows.append([name if layer == 0 else "", str(layer), *cells])
    header = ["training", "layer", "nats at 1x", "nats at the largest", "slope", "largest slope"]
    caption = (
        "Entropy of the rows that predict answers, averaged over heads, first seed, plain softmax. "
        "Slope: against the logarithm of the visible tokens; uniform attention has slope 1. "
        f"Written by `{entropy['command']}`."
    )
    return Table(header, rows, caption=caption, words=2)


def slopes(entry: Mapping[str, Any]) -> np.ndarray:
    """Fit the slope of entropy against the logarithm of the visible tokens, [layers, heads].

    Args:
        entry: The entry of one arm, as `Study.measure_entropy` wrote it.
    """
    means = np.asarray(entry["mean"])
    fitted = np.polyfit(np.log(entry["visible"]), means.reshape(len(means), -1), 1)[0]
    return np.asarray(fitted).reshape(means.shape[1:])


def _with_p(view: View) -> list[str]:
    """Return column headers: each size, followed by its p-value."""
    return [name for times in view.multiples for name in (_times(times), "p")]


def _with_deviation(shares: Sequence[float]) -> str:
    if not shares:
        return ""
    if len(shares) == 1:
        return percent(shares[0])
    return f"{percent(float(np.mean(shares)))} ± {100 * np.std(shares, ddof=1):.1f}"


def _times(times: float) -> str:
    return f"{times:g}x"


def _measured(results: Results) -> str:
    """Say how much was tested, and by which command."""
    inside, beyond = (
        max((r.examples for r in results.records if results.is_seen(r) == seen), default=0)
        for seen in (True, False)
    )
    seeds = len(results.seeds)
    return (
        f"{seeds} seed{'s' if seeds > 1 else ''}; per algorithm and size, up to {inside} questions "
        f"within training and {beyond} beyond, the same for all. Written by `{results.command}`."
    )
