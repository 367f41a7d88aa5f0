"""Fill the tables of the documents from the files under results/."""

import json
from pathlib import Path

from sharpmax.report.attention import attention_tables
from sharpmax.report.tables import fill

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "docs/attention.md")

if __name__ == "__main__":
    result = json.loads((ROOT / "results/attention/benchmark.json").read_text(encoding="utf-8"))
    for name in DOCUMENTS:
        document = ROOT / name
        text = document.read_text(encoding="utf-8")
        document.write_text(fill(text, attention_tables(result)), encoding="utf-8")
