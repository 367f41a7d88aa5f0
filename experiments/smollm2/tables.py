"""Tables of the documents about SmolLM2."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.common.timing import read_benchmark
from sharpmax._resampling import clustered_interval
from sharpmax._settings import TASKS, WORDINGS
from sharpmax.models import Calibration, Diagnosis, Evaluation
from sharpmax.models._evaluation.heads import changed_heads
from sharpmax.report._page.tables import Table, wrapped
from sharpmax.report.calibration import tables as calibration
from sharpmax.report.calibration.text import verdict_sentence
from sharpmax.report.diagnosis import tables as diagnosis
from sharpmax.report.diagnosis.verdicts import VERDICTS, counts

__all__ = [
    "METHODS",
    "alternatives_tables",
    "dispersing_table",
    "headline_table",
    "load",
    "pages",
    "tables",
]

WIDTH = 100
"""Columns of a document."""

WORST = 8
"""Heads of the diagnosis in a table."""

METHODS = {
    "plain": "nothing",
    "constant": "calibration, temperatures (HeadScale)",
    "gain": "calibration, gains (SEAL per head)",
    "constant+gain": "calibration, both",
    "channel": "one factor per channel (SEAL per channel)",
    "lora 1": "LoRA, r = 1",
    "lora 4": "LoRA, r = 4",
    "lora 16": "LoRA, r = 16",
    "examples": "three examples in the prompt",
}
"""What a calibration is compared with."""

SHOWN = {"usual": "seen", "unseen": "unseen"}
"""How wordings are called: seen by the fit, or not."""

MOST_HELPFUL = 27
"""Heads that count as most helpful: one tenth of the heads of the model."""


def load(results: Path) -> tuple[Diagnosis, Evaluation, dict[str, Calibration]]:
    """Read the diagnosis, the evaluation and the calibrations by name.

    Args:
        results: A folder with diagnosis.json, evaluation.json and families/*.json.
    """
    families = sorted((results / "families").glob("*.json"))
    return (
        Diagnosis.load(results / "diagnosis.json"),
        Evaluation.load(results / "evaluation.json"),
        {path.stem: Calibration.load(path) for path in families},
    )


def tables(results: Path) -> dict[str, str]:
    """Return the tables as Markdown by the names of their markers.

    Args:
        results: A folder with diagnosis.json, evaluation.json and families/*.json. Folders in it
            that hold a diagnosis or alternatives.json are those of further models.
    """
    measured, evaluation, families = load(results)
    verdict = evaluation.verdict(families)
    found = {
        "smollm2-headline": headline_table(evaluation, ("plain", "constant+gain")),
        "smollm2-summary": calibration.summary_table(evaluation, families, verdict),
        "smollm2-arms": calibration.arms_table(evaluation),
        "smollm2-dispersing": dispersing_table(families["constant"], measured),
    }
    models = {"smollm2": results} | {
        path.parent.name: path.parent for path in sorted(results.glob("*/diagnosis.json"))
    }
    for name, folder in models.items():
        diagnosed = Diagnosis.load(folder / "diagnosis.json")
        found[f"{name}-verdicts"] = diagnosis.verdicts_table(diagnosed)
        found[f"{name}-heads"] = diagnosis.heads_table(diagnosed, diagnosed.worst()[:WORST])
        compared = folder / "alternatives" / "alternatives.json"
        if compared.exists():
            made = alternatives_tables(read_benchmark(compared))
            found |= zip((f"{name}-cost", f"{name}-alternatives"), made, strict=True)
    markdown = {name: table.to_markdown(WIDTH) for name, table in found.items()}
    return markdown | {"smollm2-verdict": wrapped(verdict_sentence(verdict), WIDTH)}


def pages(results: Path) -> dict[str, str]:
    """Return the tables that are too long for a document: Markdown by file name.

    Args:
        results: A folder with diagnosis.json, evaluation.json and families/*.json.
    """
    _, evaluation, _ = load(results)
    found = (calibration.means_table(evaluation), calibration.changes_table(evaluation))
    parts = [f"## {table.title}\n\n{table.to_markdown(WIDTH)}" for table in found]
    return {"accuracy.md": "\n\n".join(["# SmolLM2: all tasks, arms and lengths", *parts])}


def headline_table(evaluation: Evaluation, arms: Sequence[str]) -> Table:
    """Return a table with one row per task and length, and one column per arm.

    It shows the cells in the usual wording that all of the arms answered.

    Args:
        evaluation: The results.
        arms: The arms, in the order of the columns.
    """
    asked = {result.cell for result in evaluation.results if result.wording != "unseen"}
    rows = []
    for cell in sorted(asked, key=lambda cell: (TASKS.index(cell.task), cell.length)):
        found = [evaluation.find(arm, cell) for arm in arms]
        means = [calibration.mean(result) for result in found if result is not None]
        if len(means) == len(arms):
            name = "text loss, nats per token" if cell.task == "text" else f"{cell.task}, % correct"
            rows.append([name, f"{cell.length:,}", *means])
    return Table(["task", "tokens", *arms], rows, caption=calibration.source(evaluation))


def alternatives_tables(result: dict[str, Any]) -> list[Table]:
    """Return the cost of each method, and what it answers: one row per method in both tables.

    A method is left out until it was asked everything that the plain model was asked.

    Args:
        result: What the command `alternatives` wrote.
    """
    fits = {each["method"]: each for each in result["records"] if each["task"] == "fit"}
    found: dict[str, dict[Any, dict[str, Any]]] = {method: {} for method in fits}
    for each in result["records"]:
        if each["task"] != "fit":
            found[each["method"]][each["task"], each["length"], each["wording"]] = each
    plain = found.get("plain", {})
    asked = {
        # Examples in prompts change nothing about text.
        method: {key for key in plain if (method, key[0]) != ("examples", "text")}
        for method in fits
    }
    whole = {
        each: found[each] for each in METHODS if each in fits and asked[each] <= set(found[each])
    }
    lengths = sorted({length for _, length, _ in plain})
    cost, answers = [], []
    for method, cells in whole.items():
        fit = fits[method]
        text = [_change(cells, plain, [("text", length, "usual")]) for length in lengths]
        cost.append(
            [
                METHODS[method],
                f"{fit['numbers']:,}" if fit["numbers"] else "",
                "" if fit["seconds"] is None else f"{fit['seconds'] / 60:.1f}",
                f"{fit['bytes'] / 1000:,.1f}" if fit["numbers"] else "",
                f"{fit['kept']:g}" if fit["numbers"] else "",
                ("yes" if fit["merges"] else "no") if fit["numbers"] else "",
                max(filter(None, text), default=(0.0, ""))[1] if method != "plain" else "",
            ]
        )
        kinds = {
            (length, wording): [(task, length, wording) for task in ("passkey", "key-value")]
            for wording in WORDINGS
            for length in lengths
        }
        every = [key for keys in kinds.values() for key in keys]
        best = whole.get("constant+gain", {})
        answers.append(
            [
                METHODS[method],
                *(_accuracy(cells, keys) for keys in kinds.values()),
                (_change(cells, plain, every) or (0.0, ""))[1] if method != "plain" else "",
                (_change(cells, best, every) or (0.0, ""))[1] if method != "constant+gain" else "",
            ]
        )
    settings = result["settings"]
    return [
        Table(
            ["method", "numbers", "CPU minutes", "kB", "kept", "merges", "text loss"],
            cost,
            title="Cost of each method",
            caption=f"{settings['steps']} steps each, on the same data, under the same guard."
            " CPU minutes: processor time of the fit and the selection on all threads, which other"
            " programs on the machine change little; empty where the fit was taken over from an"
            " earlier run. That of adapters leaves out the predictions of the original model, which"
            " serve all of them. kB: size of what is shipped. Kept: the share of the fitted change"
            " that the guard allows; 0 means that nothing held. Merges: whether it goes into"
            " the weights. Text loss: largest increase over all lengths, in nats per token, with a"
            " 95% interval from resampled windows.",
        ),
        Table(
            [
                "method",
                *(f"{SHOWN[wording]}, {length:,}" for wording in WORDINGS for length in lengths),
                "vs plain",
                "vs calibration of both",
            ],
            answers,
            title="Accuracy of each method, in percent",
            caption="Passkey and key-value,"
            f" {settings['questions']} questions per task, length and wording, the same for all"
            " methods. The columns name the wording and the tokens per prompt; the fits saw prompts"
            f" of up to {max(settings['lengths']):,} tokens. Differences are paired, over all"
            " columns, in points, with 95% intervals from resampled contexts.",
        ),
    ]


def _accuracy(cells: dict[Any, dict[str, Any]], keys: Sequence[Any]) -> str:
    values = [value for key in keys for value in cells[key]["values"]]
    return calibration.level(sum(values) / len(values), of_text=False)


def _change(
    ours: dict[Any, dict[str, Any]], theirs: dict[Any, dict[str, Any]], keys: Sequence[Any]
) -> tuple[float, str] | None:
    """Return the mean paired difference over some cells, and how it is shown with its interval."""
    values, contexts = [], []
    for key in keys:
        if key in ours and key in theirs:
            pairs = zip(ours[key]["values"], theirs[key]["values"], strict=True)
            values += [a - b for a, b in pairs]
            contexts += ours[key]["contexts"]
    if not values:
        return None
    mean = sum(values) / len(values)
    of_text = keys[0][0] == "text"
    return mean, calibration.change(mean, clustered_interval(values, contexts), of_text)


def dispersing_table(constant: Calibration, measured: Diagnosis, most: int = MOST_HELPFUL) -> Table:
    """Return a table with one row per verdict of the diagnosis: what a calibration changes there.

    Args:
        constant: A calibration of temperatures in all layers.
        measured: A diagnosis of the same model.
        most: Number of heads that count as most helpful.
    """
    verdicts = {(head.layer, head.head): head.verdict for head in measured.heads}
    changes = changed_heads(constant)
    heads = [
        (layer, head)
        for layer, count in enumerate(constant.head_counts)
        for head in range(count or 0)
    ]
    # Contributions to the loss: helpful ones are negative.
    contributions = map(sum, zip(*constant.notes["select"]["contributions"], strict=True))
    ranked = sorted(zip(contributions, heads, strict=True))[:most]
    rows = []
    for verdict, number in counts(measured.heads).items():
        mine = [each for each in changes if verdicts[each.layer, each.head] == verdict]
        figures = (
            number,
            len(mine),
            sum(each.sharper for each in mine),
            sum(each.flatter for each in mine),
            sum(verdicts[head] == verdict for _, head in ranked),
        )
        rows.append([VERDICTS[verdict].label, *(f"{figure:,}" for figure in figures)])
    header = ["verdict", "heads", "changed", "sharper", "flatter", f"among the {most} most helpful"]
    return Table(header, rows)
