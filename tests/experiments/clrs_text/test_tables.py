from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from experiments.clrs_text.__main__ import APPLICATION
from experiments.clrs_text.figures import draw_entropy, figures
from experiments.clrs_text.records import ENTROPY, Record, Table
from experiments.clrs_text.tables import pages, slopes, tables
from experiments.clrs_text.view import View, Way, label_of
from experiments.common.documents import EXPERIMENTS, fill
from sharpmax._files import write_sealed

_COMMAND = "python -m experiments.clrs_text run"
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
    lengths = {"minimum": [8, 16], "quicksort": [8, 16], "bfs": [8, 16]}
    settings = {"times": [1.5, 2, 3, 4], "lengths": lengths}
    return Table(_COMMAND, (0, 1, 2), {}, tuple(records), settings=settings)


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
    return {"command": _COMMAND, "arms": {"numbers-softmax": entry}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of results."""
    _table().save(tmp_path / "table.json")
    write_sealed(tmp_path / "entropy.json", ENTROPY, _entropy())
    return tmp_path


def test_a_view_averages_and_compares() -> None:
    view = View(_table(), "numbers")
    assert view.learned == ["minimum", "quicksort"]
    softmax, paper = Way("softmax", "softmax"), Way("softmax", "paper")
    assert view.shares(softmax, ["bfs"], "training") == pytest.approx((0.4, 0.4, 0.4))
    assert view.shares(softmax, ["bfs"], 2) == pytest.approx((0.2, 0.19, 0.18))
    assert view.shares(softmax, ["minimum", "bfs"], 1.0) == pytest.approx((0.695,) * 3)
    beyond = np.mean([view.shares(paper, ["bfs"], times) for times in (1.5, 2, 3, 4)], axis=0)
    assert view.shares(paper, ["bfs"], "beyond") == pytest.approx(tuple(beyond))
    assert view.gain(paper, ["bfs"], 1.0) == (0.0, 1.0)
    assert view.shares(Way("paper", "paper"), ["bfs"], 1.0) == ()
    assert view.gain(Way("paper", "paper"), ["bfs"], 1.0) == (None, None)


def _unwrapped(folder: Path) -> dict[str, str]:
    """The tables, with captions on one line."""
    return {name: text.replace("\n", " ") for name, text in tables(folder).items()}


def test_tables_show_what_was_measured(folder: Path) -> None:
    found = _unwrapped(folder)
    assert list(found) == ["clrs-text-answer", "clrs-text-learned"]
    assert "| minimum | 8 to 16 | **99.0** | 99.50 | **99.0** |" in found["clrs-text-learned"]
    assert "| bfs | 8 to 16 | 40.0 | 70.0 | 40.0 | 70.0 |" in found["clrs-text-learned"]
    answer = found["clrs-text-answer"]
    assert "| numbers | paper's rule, inference only | training | none | none | 3 |" in answer
    assert "|  |  | beyond | none | bfs -9.8 | 2 |" in answer
    for text in found.values():
        assert f"Written by `{_COMMAND}`." in text


def test_pages_have_the_longer_tables(folder: Path) -> None:
    found = {name: text.replace("\n", " ") for name, text in pages(folder).items()}
    assert list(found) == ["sizes.md", "algorithms.md", "tokens.md", "entropy.md"]
    sizes, algorithms, tokens, entropy = found.values()
    assert "| numbers | softmax | 96.0 ± 0.0 |  | 63.0 ± 1.0 |" in sizes
    assert "|  | paper's rule | +0.0 | 1 | +10.0 |" in sizes
    assert "|  | paper's rule | +0.0 | 1 | -10.0 |" in sizes
    assert "over the algorithms learned with every tokenizer (minimum, quicksort)" in sizes
    assert "| paper's rule, inference only | 96.0 ± 0.0 | 1 |" in sizes
    assert "over the learned algorithms (minimum, quicksort)." in sizes
    assert "| quicksort | 39.7 ± 1.0 | +10.0 | +0.0 |" in sizes
    assert "| all learned | 41.0 ± 1.0 | +10.0 | +0.0 |" in sizes
    assert "| bfs | 16.5 ± 1.0 | **-9.8** | +0.0 |" in sizes
    assert "| bfs | softmax | 40.0 ± 0.0 |" in algorithms
    assert "|  | paper's rule | +0.0 | 1 | +5.0 |" in tokens
    assert "| softmax | 98.0 ± 0.0 |" in tokens
    assert "Correct answer tokens in percent" in tokens
    assert "| numbers-softmax | 0 |" in entropy
    for text in found.values():
        assert f"Written by `{_COMMAND}`." in text
    _table().save(folder / "others" / "table.json")
    assert "| minimum | 8 to 16 | **99.0** |" in pages(folder)["others.md"]


def test_where_nothing_is_learned_the_caption_says_so(tmp_path: Path) -> None:
    table = _table()
    few = tuple(table.select(algorithm="bfs"))
    settings = {**table.settings, "lengths": {"bfs": [8, 16]}}
    replace(table, records=few, settings=settings).save(tmp_path / "table.json")
    found = pages(tmp_path)
    sizes = found["sizes.md"].replace("\n", " ")
    assert "over all algorithms, because none is learned to 90%" in sizes
    assert "entropy.md" not in found


def test_slopes_are_those_of_the_curves() -> None:
    found = slopes(_entropy()["arms"]["numbers-softmax"])
    np.testing.assert_allclose(found, [[1.0, 0.5], [0.0, 0.25]], atol=1e-9)


def test_labels() -> None:
    assert label_of(Way("softmax", "softmax")) == "softmax"
    assert label_of(Way("ssmax", "ssmax")) == "SSMax, trained"
    assert label_of(Way("softmax", "exponential")) == "exponential law, inference only"


def test_every_figure_is_drawn(folder: Path) -> None:
    drawn = figures(folder)
    assert [path.name for path in drawn] == [
        "accuracy-numbers.svg",
        "accuracy-characters.svg",
        "entropy-numbers-softmax.svg",
    ]
    texts = [path.read_text(encoding="utf-8") for path in drawn]
    assert all("<svg" in text for text in texts)
    assert [path.read_text(encoding="utf-8") for path in figures(folder)] == texts
    entry = _entropy()["arms"]["numbers-softmax"]
    assert draw_entropy(entry, folder / "entropy.png", "numbers-softmax").exists()


_RESULTS = EXPERIMENTS / "clrs_text" / "results"
_README = (_RESULTS.parent / "README.md").read_text(encoding="utf-8")


def test_the_readme_and_the_pages_have_the_published_tables() -> None:
    found = tables(_RESULTS)
    assert fill(_README, found) == _README
    assert set(re.findall(r"<!-- table: (.*) -->", _README)) == set(found)
    for block in re.findall(r"<!-- table: .*? -->(.*?)<!-- end -->", _README, re.DOTALL):
        assert block.count("\n|") <= 22, "a header, a rule and at most 20 rows"
    for name, text in pages(_RESULTS).items():
        assert (_RESULTS / name).read_text(encoding="utf-8").rstrip() == text.rstrip()
        assert f"(results/{name})" in _README


def test_published_commands_can_be_parsed() -> None:
    published = re.findall(
        r"^\$ (python -m experiments.*?[^\\])$", _README, re.DOTALL | re.MULTILINE
    )
    for name in ("table.json", "entropy.json", "others/table.json"):
        published += json.loads((_RESULTS / name).read_text(encoding="utf-8"))["command"].split(
            " && "
        )
    assert len(published) > 10
    group: Any = typer.main.get_command(APPLICATION)
    for command in published:
        words = shlex.split(command.replace("\\\n", " "), comments=True)
        assert words[:3] == ["python", "-m", "experiments.clrs_text"]
        group.commands[words[3]].make_context(words[3], words[4:])
