from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend

from experiments.attention_speed import benchmark, device
from experiments.attention_speed.benchmark import BASELINE, Settings, plan
from experiments.attention_speed.device import finished, plain_attention, settings_of
from experiments.attention_speed.inputs import Shape
from experiments.attention_speed.memory import extra_memory
from experiments.attention_speed.workloads import (
    COMPILED,
    KINDS,
    POLICIES,
    TARGETS,
    Workload,
    quick_workloads,
)
from experiments.common.memory import measure_apart
from sharpmax.policies import Identity
from triton_interpreter import missing

TINY = Settings(threads=(1,), seconds=1e-6, least=1, memory_lengths=())


def _records(workloads: Sequence[Workload]) -> list[dict[str, Any]]:
    return [record for step in plan(workloads, TINY).values() for record in step()["records"]]


def _first(kind: str) -> Workload:
    return next(each for each in quick_workloads() if each.kind == kind)


def test_records_are_tidy() -> None:
    records = _records([each for each in quick_workloads() if each.shape.keys <= 1024])
    json.dumps(records, allow_nan=False)
    assert len({tuple(record) for record in records}) == 1, "every record has the same fields"
    for record in records:
        assert record["ratio"] == record["seconds"] / record["baseline_seconds"]
        targets = TARGETS.get(record["workload"], (None, None))
        assert (record["target"], record["stretch_target"]) == targets
        assert record["rounds"] >= 1
    expected = KINDS.keys() - {"memory", "profile", "decode"}
    assert {record["workload"] for record in records} == expected
    dtypes = {each["dtype"] for each in records if each["workload"] == "precision"}
    assert dtypes == {"float32", "bfloat16", "float16"}
    sharp = [record for record in records if record["workload"] == "sharp"]
    assert min(record["least_largest_weight"] for record in sharp) >= 0.99
    implementations = {
        each["implementation"] for each in records if each["workload"] == "comparison"
    }
    assert implementations == {"sharpmax cpu", "textbook", "entmax by bisection"}


def test_workloads_with_the_same_inputs_share_a_step() -> None:
    settings = Settings(memory_lengths=(1024,))
    names = list(plan(quick_workloads(), settings))
    assert names[0] == "prefill, statistics, entropy-target: 256 x 256, width 64, causal"
    assert "comparison: 512 x 512, width 64, causal" in names
    assert names[-2:] == [f"memory: {name}, 1,024 keys" for name in ("sharpmax cpu", BASELINE)]
    assert json.loads(json.dumps(settings.to_dict()))["threads"] == [1, 2]


def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "attention", lambda query, *_, **__: 0.0 * query)
    with pytest.raises(AssertionError, match=r"differs from the mathematics"):
        _records([_first("curve")])


def test_rows_that_are_not_sharp_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = _first("sharp")
    monkeypatch.setitem(POLICIES["sharp"], workload.policy or "", Identity())
    with pytest.raises(AssertionError, match=r"expected one key with 99% of every row"):
        _records([workload])


@pytest.mark.skipif(missing() is not None, reason=missing() or "")
def test_another_implementation_and_dtype() -> None:
    # As on a GPU, but interpreted.
    settings = replace(TINY, impl="triton", dtype="bfloat16")
    shape = Shape(queries=48, keys=48, is_causal=True)
    workloads = [
        Workload("prefill", shape, "Exponential"),
        Workload("statistics", shape, None, "statistics"),
        Workload("backward", shape, "Exponential", "forward and backward"),
    ]
    records = [r for step in plan(workloads, settings).values() for r in step()["records"]]
    assert {record["implementation"] for record in records} == {"sharpmax triton"}
    assert len(records) == 3


def test_without_a_gpu_its_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="finds no GPU"):
        settings_of("cuda")
    for name in ("tpu", "mps", ""):
        with pytest.raises(ValueError, match="expected cpu or cuda"):
            settings_of(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert replace(Settings(), **settings_of("cuda:1")).to_dict()["impl"] == "triton"


def test_calls_wait_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    assert finished(lambda: 3, "cuda:0")() == 3
    assert finished(lambda: 4, "cpu")() == 4
    assert waited == ["cuda:0"]


def test_the_baseline_on_a_gpu_is_pytorchs_flash_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensors = torch.randn(3, 1, 2, 8, 16).unbind()
    asked: list[object] = []
    monkeypatch.setattr(device, "sdpa_kernel", lambda kind: asked.append(kind) or nullcontext())
    output = plain_attention("cuda")(*tensors, is_causal=True)
    torch.testing.assert_close(output, plain_attention("cpu")(*tensors, is_causal=True))
    assert asked == [SDPBackend.FLASH_ATTENTION]


@pytest.mark.slow
def test_compiled_methods_agree_with_the_mathematics() -> None:
    shape = Shape(queries=256, keys=256)
    assert len(_records([Workload("comparison", shape, "Paper", each) for each in COMPILED])) == 2


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux reports memory")
def test_no_implementation_holds_all_scores() -> None:
    # 2048 x 2048 scores would take 16 MiB.
    for impl in ("cpu", ""):
        extra = measure_apart(extra_memory, impl, 2048, 64, 1, 1)
        assert extra is not None
        assert 0 <= extra < 8 * 2**20


def test_memory_is_recorded_per_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "measure_apart", lambda *_: 6 * 2**20)
    steps = plan([], Settings(threads=(1, 2), memory_lengths=(16384,)))
    ours, baseline = (step()["memory"] for step in steps.values())
    assert [entry["mebibytes_per_thread"] for entry in ours] == [6.0, 3.0]
    assert [entry["target"] for entry in (*ours, *baseline)] == [8.0, 8.0, None, None]
    monkeypatch.setattr(benchmark, "measure_apart", lambda *_: None)
    assert [step()["memory"] for step in steps.values()] == [[], []]
