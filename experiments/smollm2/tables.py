"""Tables of the documents about SmolLM2."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sharpmax._resampling import clustered_interval
from sharpmax._settings import TASKS
from sharpmax.models import Calibration, Diagnosis, Evaluation
from sharpmax.models._evaluation.heads import changed_heads
from sharpmax.report._page.tables import Table, wrapped
from sharpmax.report.calibration import tables as calibration
from sharpmax.report.calibration.text import verdict_sentence
from sharpmax.report.diagnosis import tables as diagnosis
from sharpmax.report.diagnosis.verdicts import VERDICTS, counts

__all__ = [
    "METHODS",
    "alternatives_table",
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
        results: A folder with diagnosis.json, evaluation.json and families/*.json.
    """
    measured, evaluation, families = load(results)
    verdict = evaluation.verdict(families)
    found = {
        "smollm2-verdicts": diagnosis.verdicts_table(measured),
        "smollm2-heads": diagnosis.heads_table(measured, measured.worst()[:WORST]),
        "smollm2-headline": headline_table(evaluation, ("plain", "constant+gain")),
        "smollm2-summary": calibration.summary_table(evaluation, families, verdict),
        "smollm2-arms": calibration.arms_table(evaluation),
        "smollm2-dispersing": dispersing_table(families["constant"], measured),
    }
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


def alternatives_table(result: dict[str, Any]) -> Table:
    """Return a table with one row per method: size, time, accuracy, loss on text.

    Args:
        result: What the command `alternatives` wrote.
    """
    fits = {each["method"]: each for each in result["records"] if each["task"] == "fit"}
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for each in result["records"]:
        if each["task"] == "fit":
            continue
        kind = "text" if each["task"] == "text" else each["wording"]
        found.setdefault(each["method"], {}).setdefault(kind, []).append(each)
    rows = []
    for method, label in METHODS.items():
        if method not in fits:
            continue
        fit, cells = fits[method], found.get(method, {})
        fitted = fit["numbers"] > 0
        figures = [
            f"{fit['numbers']:,}" if fitted else "",
            f"{fit['seconds'] / 60:.1f}" if fitted else "",
            f"{fit['bytes'] / 1000:,.1f} kB" if fitted else "",
            f"{fit['kept']:g}" if fitted else "",
        ]
        for kind in ("usual", "unseen", "text"):
            of_text = kind == "text"
            pairs = _paired(cells.get(kind, []), found.get("plain", {}).get(kind, []))
            own = [value for each in cells.get(kind, []) for value in each["values"]]
            mean = calibration.level(sum(own) / len(own), of_text) if own else ""
            if method != "plain" and pairs and method != "examples" * of_text:
                values = [ours - theirs for _, ours, theirs in pairs]
                interval = clustered_interval(values, [context for context, _, _ in pairs])
                shown = calibration.change(sum(values) / len(values), interval, of_text)
                mean = f"{mean}, {shown}"
            figures.append(mean)
        rows.append([label, *figures])
    header = [
        "method", "numbers", "minutes", "shipped", "kept", "seen wordings, %",
        "unseen wordings, %", "text loss",
    ]  # fmt: skip
    settings = result["settings"]
    caption = (
        f"{settings['steps']} steps each, on the same data. Passkey and key-value at"
        f" {settings['length']:,} tokens, {settings['questions']} questions per task and wording."
        " Behind each figure, the paired change from the plain model, with a 95% interval from"
        " resampled contexts: in points, and for text in nats per token. Kept: the share of the"
        " fitted change that the guard on text allows; 0 means that nothing held."
    )
    return Table(header, rows, caption=caption)


def _paired(
    ours: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]]
) -> list[tuple[Any, float, float]]:
    """Return context and both values of all items that both were measured on."""
    theirs = {each["task"]: each for each in plain}
    return [
        ((each["task"], context), a, b)
        for each in ours
        if each["task"] in theirs
        for context, a, b in zip(
            each["contexts"], each["values"], theirs[each["task"]]["values"], strict=True
        )
    ]


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
