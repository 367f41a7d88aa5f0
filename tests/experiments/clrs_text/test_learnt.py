from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.clrs_text.interventions import INTERVENTIONS
from experiments.clrs_text.learnt import learnt_tables
from experiments.clrs_text.records import Record, Table
from experiments.clrs_text.tables import pages
from sharpmax._files import write_sealed

_LEVEL = {6: 0.99, 8: 1.0, 12: 0.5, 16: 0.25}


def _score(exact: float) -> list[float]:
    return [exact, exact]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two algorithms, two seeds, sizes 1.5x and 2x: "paper" gains half of the oracle's gain."""
    records = []
    for name in ("minimum", "quicksort"):
        for method in ("softmax", "paper"):
            for n, level in _LEVEL.items():
                gain = (1 - level) / 2 * (method == "paper" and n > 8)
                shares = (level + gain, level + 1.02 * gain)
                records.append(Record(method, "softmax", "numbers", name, n, 64, shares, shares))
    settings = {"times": [1.5, 2], "lengths": {"minimum": [6, 8], "quicksort": [6, 8]}}
    Table("a command", (0, 1), {}, tuple(records), settings=settings).save(tmp_path / "table.json")
    sizes = {
        kind: {
            str(n): {
                "set": _score(reached),
                "plain": _score(_LEVEL[n]),
                "few": _score(0.25),
                "single": [[_score(reached / 2), _score(0.0)]],
            }
            for n in (12, 16)
        }
        for kind, reached in (("oracle", 1.0), ("hard", 0.75))
    }
    of_seed: dict[str, Any] = {
        name: {kind: {"heads": [[0, 0]], "sizes": each} for kind, each in sizes.items()}
        for name in ("minimum", "quicksort")
    }
    none: dict[str, Any] = {
        name: {kind: {**each, "heads": []} for kind, each in own.items()}
        for name, own in of_seed.items()
    }
    content = {"command": "a command", "seeds": {"0": of_seed, "1": none}}
    write_sealed(tmp_path / "interventions.json", INTERVENTIONS, content)
    return tmp_path


def test_every_attention_stands_beside_its_bounds(folder: Path) -> None:
    inside, sizes, recovered, single, every = (
        each.to_markdown(200) for each in learnt_tables(folder)
    )
    assert "| minimum | 99.50 | 99.0 | 6 |" in inside
    assert "| softmax | 100.00 ± 0.00 | 50.0 ± 0.0 | 25.0 ± 0.0 |" in sizes
    # Three tests: the one at 1x has p = 1, and the others 0.0064, thrice and twice that.
    assert "| paper's rule, inference only | 100.00 ± 0.00 | **75.2 ± 0.4** |" in sizes
    assert "after Holm's correction for 3 tests" in sizes
    assert "attend to the right items |  | 100.00 ± 0.00 | 100.00 ± 0.00 |" in sizes
    assert "attend to the largest logit |  | 75.0 ± 0.0 | 75.0 ± 0.0 |" in sizes
    assert "| paper's rule, inference only | 50 | 50 |" in recovered
    assert "| minimum | oracle | 0.0 none | +12 | +12 |" in single
    assert "|  | hard | 0.0 none | +6 | +6 |" in single
    assert every.count("bound:") == 4
    assert "| quicksort | softmax | 100.00 ± 0.00 | 50.0 ± 0.0 | 25.0 ± 0.0 |" in every


def test_the_page_is_made_of_a_run_and_of_published_results(folder: Path) -> None:
    own = pages(folder)["learnt.md"]
    (folder / "learnt").mkdir()
    for name in ("table.json", "interventions.json"):
        (folder / "learnt" / name).write_bytes((folder / name).read_bytes())
    (folder / "interventions.json").unlink()
    assert pages(folder)["learnt.md"] == own
    assert own.startswith("# Models that learnt their sizes")
