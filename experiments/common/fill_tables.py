"""Fill the tables of the documents from the files under results/."""

import json
from pathlib import Path

from experiments.attention_speed.tables import attention_tables, profile_table
from experiments.clrs_text import tables as clrs_text
from experiments.clrs_text.records import Table as AlgorithmsTable
from experiments.clrs_text.study import load_entropy
from experiments.max_retrieval import tables as max_retrieval
from experiments.max_retrieval.anatomy import load_anatomy
from experiments.max_retrieval.records import Table
from experiments.models_speed.tables import models_tables
from sharpmax.models import Calibration, Diagnosis
from sharpmax.models._evaluation.evaluation import Evaluation
from sharpmax.models._evaluation.verdict import judge
from sharpmax.report._page.tables import fill
from sharpmax.report.calibration import tables as calibration
from sharpmax.report.calibration.text import verdict_sentence
from sharpmax.report.diagnosis import tables as diagnosis

ROOT = Path(__file__).parent.parent
DOCUMENTS = (
    "README.md",
    "docs/attention.md",
    "docs/clrs_text.md",
    "docs/max_retrieval.md",
    "docs/models.md",
)

WORST = 8
"""Heads of a diagnosis in a document."""


def tables() -> dict[str, str]:
    """All tables by name, from what is under results/."""
    attention = ROOT / "results/attention"
    benchmark, profile = (
        json.loads((attention / name).read_text(encoding="utf-8"))
        for name in ("benchmark.json", "profile.json")
    )
    retrieval = ROOT / "results/max_retrieval"
    table = Table.load(retrieval / "table.json")
    anatomy = max_retrieval.anatomy_table(table, load_anatomy(retrieval / "anatomy.json"))
    language = ROOT / "results/clrs_text"
    algorithms = clrs_text.tables(
        AlgorithmsTable.load(language / "table.json"), load_entropy(language / "entropy.json")
    )
    others = AlgorithmsTable.load(ROOT / "results/clrs_text_others/table.json")
    cost = json.loads((ROOT / "results/models/benchmark.json").read_text(encoding="utf-8"))
    return {
        **attention_tables(benchmark),
        **models_tables(cost),
        "attention-profile": profile_table(profile).to_markdown(),
        **max_retrieval.tables(table),
        "max-retrieval-anatomy": anatomy.to_markdown(),
        **_models(),
        **algorithms,
        "clrs-text-others": clrs_text.learnt_table(others).to_markdown(),
    }


def _models() -> dict[str, str]:
    """Tables of a model that was diagnosed, calibrated and evaluated."""
    folder = ROOT / "results/smollm2"
    measured = Diagnosis.from_json(folder / "diagnosis.json")
    evaluation = Evaluation.load(folder / "evaluation.json")
    families = {path.stem: Calibration.load(path) for path in (folder / "families").glob("*.json")}
    verdict = judge(evaluation, families)
    found = {
        "smollm2-verdicts": diagnosis.verdicts_table(measured),
        "smollm2-heads": diagnosis.heads_table(measured, measured.worst()[:WORST]),
        "smollm2-headline": calibration.headline_table(evaluation, ("plain", "constant+gain")),
        "smollm2-summary": calibration.summary_table(evaluation, families, verdict),
        "smollm2-dispersing": calibration.dispersing_table(families["constant"], measured),
        "smollm2-answers": calibration.means_table(evaluation),
    }
    told = {name: table.to_markdown() for name, table in found.items()}
    return told | {"smollm2-verdict": verdict_sentence(verdict)}


if __name__ == "__main__":
    found = tables()
    for name in DOCUMENTS:
        document = ROOT / name
        text = document.read_text(encoding="utf-8")
        document.write_text(fill(text, found), encoding="utf-8")
