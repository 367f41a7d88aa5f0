from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from experiments.models_speed import benchmark
from experiments.models_speed.benchmark import QUICK, Settings, describe, load, plan
from experiments.models_speed.passes import small_model

TINY = replace(QUICK, diagnosed=256, shown=128, prefill=128, decoded=2, seconds=1e-6, least=1)


def test_records_are_tidy(monkeypatch: pytest.MonkeyPatch) -> None:
    # The processes that measure memory have a test of their own.
    monkeypatch.setattr(benchmark, "measure_apart", lambda *case: case[-2] * 2**10)
    model, tokens = load(TINY)
    found = {name: step() for name, step in plan(model, tokens, TINY).items()}
    json.dumps(found, allow_nan=False)
    records = {
        record["workload"]: record for each in found.values() for record in each.get("records", ())
    }
    assert list(records) == ["diagnose", "weights", "prefill", "decode"]
    assert len({tuple(record) for record in records.values()}) == 1
    for record in records.values():
        assert record["ratio"] == record["seconds"] / record["baseline_seconds"]
        speeds = record["baseline_tokens_per_second"] / record["tokens_per_second"]
        assert record["ratio"] == pytest.approx(speeds)
        assert record["target"] is None, "a small model has no targets"
    assert records["decode"]["tokens_per_second"] == 2 / records["decode"]["seconds"]
    assert describe(model)["heads"] == 4
    memory = [entry for each in found.values() for entry in each.get("memory", ())]
    assert [(entry["model"], entry["method"]) for entry in memory] == [
        ("model", "forward"),
        ("model", "diagnose"),
        ("model", "output_attentions"),
        ("small model", "diagnose"),
        ("small model", "diagnose"),
    ]
    assert [entry["mebibytes"] for entry in memory[-2:]] == [0.5, 1.0]


def test_a_real_model_has_targets() -> None:
    settings = replace(TINY, model="a real model")
    model, tokens = small_model(256), torch.arange(256) % 256
    bounds = {}
    for name, step in plan(model, tokens, settings).items():
        if not name.startswith("memory"):
            (record,) = step()["records"]
            bounds[record["workload"]] = (record["bound"], record["target"])
    assert bounds == {
        "diagnose": ("at most", 1.3),
        "weights": (None, None),
        "prefill": ("at least", 0.9),
        "decode": ("at least", 0.95),
    }
    assert Settings().diagnosed == 4096
    assert Settings().memory[-1] == 32768


def test_a_wrong_diagnosis_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnose = benchmark.diagnose
    monkeypatch.setattr(benchmark, "diagnose", lambda *args: diagnose(*args, sink=True))
    step = plan(*load(TINY), TINY)["weights, 1 thread"]
    with pytest.raises(AssertionError, match=r"^layer 0, head 0: the diagnosis has an entropy of"):
        step()
