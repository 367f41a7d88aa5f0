from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.common.cells import p_value, with_deviation
from experiments.common.documents import fill
from experiments.common.methods import look
from experiments.common.significance import paired_p_value
from experiments.max_retrieval.records import Record, compare
from experiments.max_retrieval.records import Table as Results
from experiments.max_retrieval.rows import recipe_text
from experiments.max_retrieval.tables import (
    anatomy_table,
    beyond_table,
    further_table,
    headline_table,
    inference_table,
    pages,
    paper_table,
    selected_table,
    tables,
    trained_table,
    training_table,
)
from sharpmax.report._page.tables import Table


def _rows(table: Table) -> dict[str, list[str]]:
    return {row[0]: list(row[1:]) for row in table.rows}


def _mean(cell: str) -> float:
    return float(cell.strip("*").split(" ")[0])


def _record(method: str, accuracy: tuple[float, ...], n: int = 16, **fields: str) -> Record:
    values = {"weights": "averaged", "recipe": "standard", "group": "inference", **fields}
    return Record(method=method, trained_with="softmax", n=n, sets=50, accuracy=accuracy, **values)


def _results(*records: Record) -> Results:
    return Results("a command", (0, 1), {}, records)


@pytest.mark.parametrize("weights", ["averaged", "last"])
def test_figures_at_inference_are_those_of_the_data(table: Results, weights: str) -> None:
    made = inference_table(table, weights)
    rows = _rows(made)
    sizes = [int(head.replace(",", "")) for head in made.header[1:]]
    assert sizes == table.sizes()
    for record in table.select(group="inference", weights=weights):
        name = look(record.method).label + (" ‡" if record.method == "oracle" else "")
        cell = rows[name][sizes.index(record.n)]
        assert cell.strip("*") == with_deviation(record.accuracy)
        assert _mean(cell) == pytest.approx(100 * record.mean, abs=0.051)


def test_the_best_of_each_size_is_bold_and_the_oracle_never(table: Results) -> None:
    made = inference_table(table)
    rows = {name: cells for name, cells in _rows(made).items() if not name.startswith("p, ")}
    oracle = rows.pop("oracle ‡")
    assert not any("*" in cell for cell in oracle)
    for column in range(len(table.sizes())):
        best = max(_mean(cells[column]) for cells in rows.values())
        for cells in rows.values():
            assert cells[column].startswith("**") == (_mean(cells[column]) == best)
    assert "‡ an upper bound: it uses the label" in made.caption


def test_p_value_of_the_law_against_the_paper(table: Results) -> None:
    row = _rows(inference_table(table))["p, exponential law against paper's rule"]
    where = {"group": "inference", "weights": "averaged", "n": 1024}
    law, paper = (table.find(method=name, **where) for name in ("exponential", "paper"))
    expected = paired_p_value(law.accuracy, paper.accuracy)
    assert row[table.sizes().index(1024)] == p_value(expected)


def test_sizes_of_few_lines_are_left_out() -> None:
    sizes = {"softmax": (16, 32, 64), "ssmax": (16, 64), "linear": (16, 64)}
    made = trained_table(
        _results(
            *(
                _record(method, (0.5, 0.6), n, group="trained")
                for method, of_method in sizes.items()
                for n in of_method
            )
        )
    )
    assert list(made.header[1:]) == ["16", "64"]


def test_the_papers_table_marks_what_is_recalled(table: Results) -> None:
    made = paper_table(table)
    rows = _rows(made)
    assert rows["16,384"][:3] == ["12.4", "14.0", "4e-3"]
    assert rows["32"][:3] == ["97.1†", "97.1†", ""]
    assert rows["8,192"][:2] == ["15.7†", "17.5†"]
    assert sum("†" in cell for cells in rows.values() for cell in cells) == 4
    assert "† quoted from memory, not confirmed" in made.caption
    assert made.header[4] == "softmax, last iterate"
    last = table.find(group="inference", weights="last", method="softmax", n=1024)
    averaged = table.find(group="inference", weights="averaged", method="paper", n=1024)
    assert rows["1,024"][3] == with_deviation(last.accuracy)
    assert rows["1,024"][7] == with_deviation(averaged.accuracy)
    # Sizes that were not measured stay empty.
    assert rows["64"][3:] == [""] * 6


def test_trained_methods(table: Results) -> None:
    rows = _rows(trained_table(table))
    assert list(rows) == ["softmax", "paper's rule", "SSMax", "sigmoid", "of-my-own"]
    record = table.find(group="trained", weights="averaged", method="ssmax", n=128)
    assert rows["SSMax"][1].strip("*") == with_deviation(record.accuracy)


def test_a_method_that_was_trained_twice_is_told_apart() -> None:
    twice = (
        _record("softmax", (0.9, 0.8), group="trained", recipe="short"),
        _record("softmax", (0.9, 0.9), group="trained", recipe="long"),
    )
    assert list(_rows(trained_table(_results(*twice)))) == ["softmax (short)", "softmax (long)"]


def test_details_of_the_training(table: Results) -> None:
    made = training_table(table, "last")
    first = made.rows[0]
    assert first[:3] == [
        "standard-20k",
        "20,000 steps; rate 0.001, constant; decay 0.001, decoupled",
        "softmax",
    ]
    assert made.rows[1][:3] == ["standard-20k", "", "paper's rule"]
    record = table.find(group="training", recipe="cosine", weights="last", method="paper", n=4096)
    [row] = [row for row in made.rows if row[0] == "cosine" and row[2] == "paper's rule"]
    assert row[-1] == with_deviation(record.accuracy)


def test_changes_alone_and_together(table: Results) -> None:
    made = beyond_table(table)
    rows = _rows(made)
    names = list(rows)
    assert names[0] == "none: plain softmax, last iterate"
    assert {"averaged weights", "exponential law", "near ties"} <= set(names[1:6])
    together = "near ties + cosine + averaged weights + exponential law"
    assert names.index(together) > names.index("near ties + cosine")
    record = table.find(
        group="beyond", recipe="near-ties+cosine", weights="averaged", method="exponential", n=4096
    )
    assert rows[together][-1].strip("*") == with_deviation(record.accuracy)


def test_the_headline_has_the_best_recipe_beyond() -> None:
    beyond = {"group": "beyond"}
    made = headline_table(
        _results(
            _record("softmax", (0.2, 0.3), n=1024),
            _record("exponential", (0.6, 0.7), n=1024),
            _record("hard", (0.9, 0.9), n=1024),
            _record("exponential", (0.6, 0.7), n=1024, **beyond),
            _record("exponential", (0.8, 0.8), n=1024, recipe="near-ties", **beyond),
            _record("exponential", (0.9, 0.9), n=1024, recipe="near-ties+cosine", **beyond),
        )
    )
    assert _rows(made) == {
        "softmax": ["25.0 ± 7.1"],
        "exponential law": ["65.0 ± 7.1"],
        "exponential law, head trained with near ties + cosine": ["**90.0 ± 0.0**"],
    }


def test_sizes_beyond_the_paper_have_a_table_of_their_own(table: Results) -> None:
    with pytest.raises(LookupError, match="16,384"):
        further_table(table)
    far = (
        _record("softmax", (0.1, 0.2), n=65536),
        _record("hard", (0.75, 0.85), n=65536),
        _record("hard", (0.99, 0.98), n=16),
    )
    made = further_table(_results(*far))
    assert made.header[1:] == ["65,536"]
    assert _rows(made)["standard · averaged weights · hard"] == ["**80.0 ± 7.1**"]
    assert "65,536" not in inference_table(_results(*far)).header


def test_the_short_table_of_recipes(table: Results) -> None:
    rows = _rows(selected_table(table))
    assert next(iter(rows)) == "standard 40k, softmax"
    assert "near ties + cosine, exponential law" in rows
    assert not any("hard" in name for name in rows), "class-blind alone"
    assert len(rows) == 6


def test_deviations_are_left_out_where_there_are_many_sizes() -> None:
    sizes = [2**k for k in range(4, 12)]
    made = inference_table(_results(*(_record("softmax", (0.5, 0.6), n) for n in sizes)))
    assert set(made.rows[0][1:]) == {"**55.0**"}
    assert "deviations over seeds up to 7.1 points" in made.caption


def test_a_size_that_only_the_oracle_has() -> None:
    made = inference_table(_results(_record("oracle", (1.0, 1.0), 32), _record("hard", (0.5, 0.5))))
    assert _rows(made) == {"hard": ["**50.0 ± 0.0**", ""], "oracle ‡": ["", "100.00 ± 0.00"]}


def test_all_tables_fill_a_document(table: Results, small_table: Results, tmp_path: Path) -> None:
    table.save(tmp_path / "table.json")
    made = tables(tmp_path)
    expected = ("inference", "trained", "training", "headline", "paper", "beyond")
    assert set(made) == {f"max-retrieval-{name}" for name in expected}
    assert list(pages(tmp_path)) == [
        "inference-last.md",
        "trained-last.md",
        "training.md",
        "beyond.md",
    ]
    filled = fill("<!-- table: max-retrieval-trained -->\n<!-- end -->", made)
    assert "| SSMax |" in filled
    small_table.save(tmp_path / "table.json")
    assert set(tables(tmp_path)) == {"max-retrieval-paper"}
    assert list(pages(tmp_path)) == ["inference-last.md"]
    _results().save(tmp_path / "table.json")
    assert tables(tmp_path) == pages(tmp_path) == {}


def test_what_is_missing_is_said(small_table: Results) -> None:
    for make in (inference_table, trained_table, training_table, beyond_table, selected_table):
        with pytest.raises(LookupError, match="the results have no"):
            make(small_table)
    with pytest.raises(LookupError, match="softmax"):
        paper_table(_results(_record("hard", (0.5,))))


def test_one_seed_has_no_deviation_and_no_p_value(small_table: Results) -> None:
    made = inference_table(small_table, "last")
    assert "±" not in made.to_markdown()
    assert "p, exponential law against paper's rule" not in _rows(made) or all(
        cell in ("", "1") for cell in _rows(made)["p, exponential law against paper's rule"]
    )


def test_the_same_difference_on_every_seed_has_no_p_value() -> None:
    # 0.3 - 0.2 and 0.7 - 0.6 differ in binary, by rounding alone.
    ours, theirs = _record("hard", (0.3, 0.7)), _record("softmax", (0.2, 0.6))
    assert compare({16: ours}, {16: theirs}, 16) is None
    assert compare({16: ours}, {16: ours}, 16) == 1.0
    assert compare({16: ours}, {16: replace(theirs, accuracy=(0.1,))}, 16) is None
    assert compare({16: ours}, {}, 16) is None


def test_recipe_text() -> None:
    assert recipe_text(None) == ""
    recipe = {"steps": 100_000, "tested_after": 40_000, "weight_decay": 0.0, "ties": {"share": 0.5}}
    assert recipe_text(recipe) == "40,000 steps; no decay; near ties"
    assert recipe_text({"weight_decay": 1e-4, "decoupled": False}) == "decay 0.0001, coupled"


def test_what_logits_are_made_of_stands_beside_its_prediction() -> None:
    results = _results(
        _record("hard", (0.9, 0.8), n=1024),
        _record("hard", (0.4, 0.5), n=16384),
        _record("softmax", (0.1, 0.1), n=1024),
    )
    entry = {
        "slope": [400.0, 420.0],
        "deviation": [2e-4, 1e-4],
        "predicted": {"1024": [0.86, 0.86], "16384": [0.41, 0.43]},
    }
    anatomy = {"recipes": {"standard": {"averaged": entry, "last": entry}, "other": {}}}
    made = anatomy_table(results, anatomy)
    assert made.rows == [
        ["standard", "averaged weights", "410", "1.50", "86.0", "85.0", "42.0", "45.0"]
    ]
    with pytest.raises(LookupError, match="prediction"):
        anatomy_table(_results(_record("hard", (0.9,), n=1024)), anatomy)
