from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.clrs_text.figures import draw_accuracy, draw_all, draw_entropy
from experiments.clrs_text.records import Record, Table
from experiments.clrs_text.tables import Way, label_of, learnt, slopes, tables

_SIZES = (8, 16, 24, 32, 48, 64)


def _record(
    method: str, trained_with: str, tokenizer: str, name: str, n: int, shares: tuple[float, ...]
) -> Record:
    tokens = tuple((1 + share) / 2 for share in shares)
    return Record(method, trained_with, tokenizer, name, n, 64, shares, tokens)


def _table() -> Table:
    records = []
    for tokenizer, gain in (("numbers", 0.1), ("characters", -0.1)):
        for trained_with, method in (
            ("softmax", "softmax"),
            ("softmax", "paper"),
            ("ssmax", "ssmax"),
        ):
            for name, level in (("minimum", 0.99), ("quicksort", 0.93), ("bfs", 0.4)):
                for n in _SIZES:
                    right = level * min(1.0, 16 / n)
                    right += gain * (method == "paper" and n > 16)
                    shares = tuple(max(0.0, right - 0.01 * seed * (n > 16)) for seed in range(3))
                    records.append(_record(method, trained_with, tokenizer, name, n, shares))
    lengths = {"minimum": (8, 16), "quicksort": (8, 16), "bfs": (8, 16)}
    settings = {"times": [1.5, 2, 3, 4]}
    return Table("sharpmax reproduce clrs-text", (0, 1, 2), {}, tuple(records), lengths, settings)


def _entropy() -> dict[str, Any]:
    visible = np.array([12.0, 20.0, 28.0, 36.0, 52.0, 68.0])
    slope = np.array([[1.0, 0.5], [0.0, 0.25]])
    mean = slope * np.log(visible)[:, None, None]
    entry = {
        "multiples": [0.5, 1.0, 1.5, 2, 3, 4],
        "visible": visible.tolist(),
        "mean": mean.tolist(),
        "deviation": (0.1 * mean).tolist(),
    }
    return {"command": "", "arms": {"numbers-softmax": entry}}


def test_tables_say_what_was_measured() -> None:
    table = _table()
    assert learnt(table, "numbers") == ["minimum", "quicksort"]
    found = tables(table, _entropy())
    assert list(found) == [
        "clrs-text-learnt",
        "clrs-text-answer",
        "clrs-text-inference",
        "clrs-text-inference-tokens",
        "clrs-text-sizes-numbers",
        "clrs-text-tokens-numbers",
        "clrs-text-gains-numbers",
        "clrs-text-token-gains-numbers",
        "clrs-text-algorithms-numbers",
        "clrs-text-sizes-characters",
        "clrs-text-tokens-characters",
        "clrs-text-gains-characters",
        "clrs-text-token-gains-characters",
        "clrs-text-algorithms-characters",
        "clrs-text-dispersion",
    ]
    assert "| minimum | 8 to 16 | **99.0** | 99.50 | **99.0** |" in found["clrs-text-learnt"]
    assert "| bfs | 8 to 16 | 40.0 | 70.0 | 40.0 | 70.0 |" in found["clrs-text-learnt"]
    inference = found["clrs-text-inference"]
    assert "| numbers | softmax | 96.0 ± 0.0 |  | 63.0 ± 1.0 |" in inference
    assert "|  | paper's rule | +0.0 | 1 | +10.0 |" in inference
    assert "|  | paper's rule | +0.0 | 1 | -10.0 |" in inference
    assert "mean over the algorithms learnt with every tokenizer (minimum, quicksort)" in inference
    assert "|  | paper's rule | +0.0 | 1 | +5.0 |" in found["clrs-text-inference-tokens"]
    answer = found["clrs-text-answer"]
    assert (
        "| numbers | paper's rule, at inference alone | in training | none | none | 3 |" in answer
    )
    assert "|  |  | beyond | none | bfs -9.8 | 2 |" in answer
    sizes = found["clrs-text-sizes-numbers"]
    assert "| paper's rule, at inference alone | 96.0 ± 0.0 | 1 |" in sizes
    assert "mean over the algorithms learnt (minimum, quicksort); sizes" in sizes
    tokens = found["clrs-text-tokens-numbers"]
    assert "| softmax | 98.0 ± 0.0 |" in tokens
    assert "Percent of the tokens of answers that are right" in tokens
    gains = found["clrs-text-gains-numbers"]
    assert "| quicksort | 39.7 ± 1.0 | +10.0 | +0.0 |" in gains
    assert "| all that are learnt | 41.0 ± 1.0 | +10.0 | +0.0 |" in gains
    assert "| bfs | 16.5 ± 1.0 | **-9.8** | +0.0 |" in found["clrs-text-gains-characters"]
    assert "| numbers-softmax | 0 |" in found["clrs-text-dispersion"]
    for text in found.values():
        assert "Written by `sharpmax reproduce clrs-text`." in text


def test_where_nothing_is_learnt_it_says_so() -> None:
    table = _table()
    few = tuple(table.select(algorithm="bfs"))
    found = tables(replace(table, records=few, lengths={"bfs": (8, 16)}))
    assert (
        "mean over all algorithms, since none is learnt to 90%" in found["clrs-text-sizes-numbers"]
    )
    assert "clrs-text-dispersion" not in found


def test_slopes_are_those_of_the_curves() -> None:
    found = slopes(_entropy()["arms"]["numbers-softmax"])
    np.testing.assert_allclose(found, [[1.0, 0.5], [0.0, 0.25]], atol=1e-9)


def test_labels() -> None:
    assert label_of(Way("softmax", "softmax")) == "softmax"
    assert label_of(Way("ssmax", "ssmax")) == "SSMax, trained in"
    assert label_of(Way("softmax", "exponential")) == "exponential law, at inference alone"


def test_every_figure_is_drawn(tmp_path: Path) -> None:
    drawn = draw_all(_table(), _entropy(), tmp_path / "figures")
    assert [path.name for path in drawn] == [
        "accuracy-numbers.svg",
        "accuracy-characters.svg",
        "entropy-numbers-softmax.svg",
    ]
    text = drawn[0].read_text(encoding="utf-8")
    assert "<svg" in text
    again = draw_accuracy(_table(), tmp_path / "again.svg", "numbers")
    assert again.read_text(encoding="utf-8") == text
    entry = _entropy()["arms"]["numbers-softmax"]
    assert draw_entropy(entry, tmp_path / "entropy.png", "numbers-softmax").exists()
    with pytest.raises(LookupError, match="no tokenizer 'words'"):
        draw_accuracy(_table(), tmp_path / "none.svg", "words")
