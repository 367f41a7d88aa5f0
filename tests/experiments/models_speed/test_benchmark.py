from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from experiments.models_speed import benchmark as models_bench
from experiments.models_speed.benchmark import QUICK, Settings, run, steps

TINY = replace(QUICK, diagnosed=256, shown=128, prefill=128, decoded=2, seconds=1e-6, least=1)


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear memory at once: the processes that measure it have a test of their own."""

    def extra(way: str, *_: Any, length: int, threads: int) -> int:
        return length * threads * (2**20 if way == "output_attentions" else 2**10)

    monkeypatch.setattr(models_bench.models_memory, "extra_memory", extra)


@pytest.mark.usefixtures("no_memory")
def test_records_are_tidy() -> None:
    lines: list[str] = []
    result = run(TINY, progress=lines.append)
    assert len(lines) == steps(TINY)
    assert json.loads(json.dumps(result, allow_nan=False))["experiment"] == "benchmark of models"
    records = {record["work"]: record for record in result["records"]}
    assert list(records) == ["diagnose", "weights", "prefill", "decode"]
    assert len({tuple(record) for record in result["records"]}) == 1
    for record in records.values():
        assert record["ratio"] == record["seconds"] / record["peer_seconds"]
        assert record["speed"] == pytest.approx(
            record["tokens_a_second"] / record["peer_tokens_a_second"]
        )
        assert record["target"] is None, "a small model has none"
    assert records["decode"]["tokens_a_second"] == 2 / records["decode"]["seconds"]
    assert result["model"]["heads"] == 4
    assert [entry["way"] for entry in result["memory"]] == [
        "forward", "diagnose", "output_attentions", "diagnose", "diagnose",
    ]  # fmt: skip
    assert result["growth"]["growth"] == 1.0
    assert result["growth"]["reached"]


def test_targets_of_a_real_model() -> None:
    for work, ratio, reached in (
        ("diagnose", 1.3, True),
        ("diagnose", 1.31, False),
        ("prefill", 1.1, True),
        ("prefill", 1.12, False),
        ("decode", 1.05, True),
        ("decode", 1.06, False),
        ("weights", 9.0, None),
    ):
        assert models_bench._judged(work, ratio)["reached"] is reached
    assert Settings().diagnosed == 4096
    assert Settings().memory[-1] == 32768


def test_memory_that_grows_faster_than_the_input_is_noticed() -> None:
    entries = [
        {"model": "a small model", "length": length, "mebibytes": length**2 / 2**20}
        for length in (1024, 2048, 4096)
    ]
    growth = models_bench._growth(entries)
    assert growth is not None
    assert growth["growth"] == 4.0
    assert not growth["reached"]
    assert models_bench._growth(entries[:1]) is None


def test_a_wrong_diagnosis_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnose = models_bench.diagnose
    monkeypatch.setattr(models_bench, "diagnose", lambda *args: diagnose(*args, sink=True))
    with pytest.raises(AssertionError, match=r"^layer 0, head 0: the diagnosis has an entropy of"):
        run(TINY)
