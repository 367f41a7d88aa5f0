"""Write the report of max retrieval as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from experiments.common.cells import percent
from experiments.common.methods import look
from experiments.max_retrieval import rows, tables
from experiments.max_retrieval.figures import draw_all
from experiments.max_retrieval.records import Line
from experiments.max_retrieval.records import Table as Results
from sharpmax.policies import Paper
from sharpmax.report._page.html import (
    code,
    data_uri,
    entries,
    figure_html,
    folded,
    opening,
    paragraphs,
    section,
    table_html,
    write_html,
)
from sharpmax.report._page.tables import Table

__all__ = ["write_page"]

_NAMED: Final = {
    "softmax": "with plain softmax",
    "paper": "with the paper's rule",
    "exponential": "with sharpmax's exponential law",
}

_WHY: Final = (
    "Softmax over more items must spread its weight: with bounded logits, every coefficient falls"
    " like 1/n. A head that learned to look up one item among few therefore fails among many. A"
    " temperature that follows the entropy of each row restores the weight, as far as the order of"
    " the logits is right."
)
_FORMULA: Final = "beta = exp(max(0, H - reference));   weights = softmax(beta * logits)"
_COMPARED: Final = (
    "The 16 items of highest priority in 32 sets, from small sets to large ones. A bright first"
    " column means that the head attends to the right item."
)
_SOFTMAX: Final = "Plain softmax at every size: the weight of the right item vanishes."
_FIT: Final = (
    "Each point is a row: its entropy under plain softmax, and the inverse temperature at which the"
    " largest item gets the most weight. The lines are rules that only know the entropy."
)
_PLANE: Final = "Entropy falls with the temperature for any logits."
_PLANE_ALT: Final = (
    "Heat map of the entropy of softmax over ten powers of a base, against the base and the"
    " temperature: low for small temperatures and large bases, and log 10 at base 1."
)
_GROUP_ALT: Final = "Accuracy against the number of items {}; the table below has the figures."


def write_page(
    path: str | Path,
    table: Results,
    figures: dict[str, Any] | None = None,
    *,
    title: str = "Attention that stays sharp as sets grow",
) -> Path:
    """Write the report: figures, tables, how the method works, and what ran.

    Pictures are inside the file, and nothing is fetched. Parts that the data lack are left out.

    Args:
        path: The file.
        table: The results; one recipe, one seed and a few methods at inference are enough.
        figures: Data of the figures; None leaves out the attention maps and the fit.
        title: Title of the page.

    Raises:
        LookupError: The results have no method at inference.
    """
    kinds = table.weights_kinds("inference")
    if not kinds:
        raise LookupError("the results have no method at inference to report on")
    data = figures or {}
    found = table.at_inference(kinds[0])
    reference = data.get("fit", {}).get("reference")
    with TemporaryDirectory() as folder:
        drawn = draw_all(table, figures, Path(folder))
        pictures = {each.name: data_uri(each.read_bytes(), each.suffix) for each in drawn}

    def figure(name: str, alt: str, caption: str = "") -> str:
        return figure_html(pictures, name, alt, caption)

    def group(heading: str, name: str, what: str, make: Callable[[Results], Table]) -> str:
        alt = _GROUP_ALT.format(what)
        return section(heading, figure(f"accuracy-{name}.svg", alt), *_tables(table, make))

    fit_alt = (
        "Best inverse temperature of rows against their entropy, with the published polynomial,"
        f" which is 1 above {Paper.LAST_ENTROPY} nats, a polynomial fitted here, and the"
        " exponential law."
    )
    sections = [
        opening(title, _lead(table, found), _WHY),
        section(
            "Accuracy against the number of items",
            *_tables(table, tables.headline_table),
            figure("accuracy-inference.svg", _accuracy_alt(found)),
            table_html(tables.inference_table(table, kinds[0])),
            *(
                folded(
                    f"The same with {rows.WEIGHTS[kind]}",
                    table_html(tables.inference_table(table, kind)),
                )
                for kind in kinds[1:]
            ),
            *_folded(table, "The table of the paper next to this one", tables.paper_table),
            *_folded(table, "Larger sets", tables.further_table),
        ),
        group(
            "A head trained differently",
            "beyond",
            "for changes of training and method",
            tables.beyond_table,
        ),
        section(
            "Where the weight goes",
            figure("attention-compared.png", _attention_alt(data, None), _COMPARED),
            figure("attention-softmax.png", _attention_alt(data, "softmax"), _SOFTMAX),
        ),
        section("The temperature that a row needs", figure("fit.svg", fit_alt, _FIT)),
        section(
            "How it works",
            code(_FORMULA),
            paragraphs(_mechanism(reference)),
            figure("entropy-plane.png", _PLANE_ALT, _PLANE),
        ),
        group(
            "Trained with the method",
            "trained",
            "for heads trained and tested with the same method",
            tables.trained_table,
        ),
        section("Details of the training", *_tables(table, tables.training_table)),
        section(
            "What to do next",
            paragraphs("Sharpen your own rows or attention:"),
            code(_code(reference)),
            paragraphs("Run this again, and see at which length a head must disperse:"),
            code(
                "\n".join([*_commands(table, data), "sharpmax theory --spread 5.69 --epsilon 0.01"])
            ),
        ),
        section("What ran", entries(_ran(table, data))),
    ]
    return write_html(path, title, sections)


def _tables(table: Results, make: Callable[[Results], Table]) -> list[str]:
    """A table, if the results can fill it."""
    try:
        return [table_html(make(table))]
    except LookupError:
        return []


def _folded(table: Results, summary: str, make: Callable[[Results], Table]) -> list[str]:
    return [folded(summary, content) for content in _tables(table, make)]


def _lead(table: Results, found: Mapping[str, Line]) -> str:
    shown = [name for name in _NAMED if name in found] or list(found)[:3]
    common = set.intersection(*(set(found[name]) for name in shown))
    if not common:
        shown, common = shown[:1], set(found[shown[0]])
    n, first = max(common), min(common)
    largest = table.recipes.get(table.main_recipe or "", {}).get("largest")
    trained = f" on sets of at most {largest:,} items" if largest else ""
    each = [
        f"{percent(found[name][n].mean)}% {_NAMED.get(name, 'with ' + look(name).label)}"
        for name in shown
    ]
    accuracies = each[0] if len(each) == 1 else f"{', '.join(each[:-1])} and {each[-1]}"
    task = "name the class of the item with the highest priority; guessing gives 10%"
    sentences = [f"An attention head was trained{trained} to {task}."]
    if first != n:
        share = percent(found[shown[0]][first].mean)
        sentences.append(f"Its accuracy on {first:,} items is {share}%.")
    sentences += [
        f"On {n:,} items it is {accuracies}.",
        "The weights are the same each time: only the temperature of the attention differs.",
    ]
    if best := rows.best_beyond(table, n):
        sentences.append(
            f"A head trained differently, with {rows.words(best[0])}, reaches"
            f" {percent(best[1][n].mean)}% on {n:,} items with the exponential law."
        )
    return " ".join(sentences)


def _accuracy_alt(found: Mapping[str, Line]) -> str:
    # A text that is read aloud keeps to what matters; the table has the rest.
    shown = {name: found[name] for name in _NAMED if name in found} or found
    each = [
        f"{look(name).label} from {percent(line[min(line)].mean)}% at {min(line):,} items to"
        f" {percent(line[max(line)].mean)}% at {max(line):,}"
        for name, line in shown.items()
    ]
    return f"Accuracy against the number of items: {'; '.join(each)}."


def _attention_alt(data: Mapping[str, Any], only: str | None) -> str:
    attention = data.get("attention")
    if not attention:
        return ""
    each = []
    for name, weights in zip(attention["methods"], attention["weights"], strict=True):
        if only in (None, name):
            means = [sum(row[0] for row in weights[end]) / len(weights[end]) for end in (0, -1)]
            each.append(f"{look(name).label} from {means[0]:.3f} to {means[1]:.3f}")
    sizes = attention["sizes"]
    return (
        f"Heat maps of attention from {sizes[0]:,} to {sizes[-1]:,} items. Mean weight of the item"
        f" with the highest priority: {'; '.join(each)}."
    )


def _mechanism(reference: float | None) -> str:
    where = "" if reference is None else f" ({reference:.2f} nats for this head)"
    return (
        "H is the entropy of a row under plain softmax, in nats. The reference is the entropy at"
        f" sizes where the head works{where}, so little changes there. Each further nat of entropy"
        " means that e times as many items compete, and the logits become e times as steep. The"
        " law takes one pass over the row, no training and no labels. The paper's rule is a"
        " polynomial in H that never exceeds 2.42 and switches itself off above"
        f" {Paper.LAST_ENTROPY} nats."
    )


def _code(reference: float | None) -> str:
    if reference is None:
        first = "reference = sharpmax.entropy(logits_at_a_length_that_works).mean()\n"
        first += "policy = Exponential(reference=reference)\n"
    else:
        first = f"policy = Exponential(reference={reference:.2f})  # of this head; measure yours\n"
    return (
        "import sharpmax\nfrom sharpmax.policies import Exponential\n\n"
        f"{first}weights = sharpmax.softmax(logits, policy)\n"
        "output = sharpmax.attention(query, key, value, policy=policy)"
    )


def _commands(table: Results, data: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(filter(None, (table.command, data.get("command", "")))))


def _ran(table: Results, data: Mapping[str, Any]) -> dict[str, str]:
    trainings = [
        f"{name}: {described}"
        for name, recipe in table.recipes.items()
        if (described := rows.recipe_text(recipe))
    ]
    found = {
        "Command": " && ".join(_commands(table, data)),
        "Trainings": ". ".join(trainings),
        "Seeds": ", ".join(map(str, table.seeds)),
        "Versions": ", ".join(f"{name} {value}" for name, value in table.versions.items()),
        "Machine": ", ".join(f"{name} {value}" for name, value in table.machine.items()),
    }
    return {name: value for name, value in found.items() if value}
