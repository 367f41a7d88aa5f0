from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import sharpmax
from experiments.attention_speed import benchmark as attention_bench
from experiments.attention_speed import memory as attention_memory
from experiments.attention_speed import peers as attention_peers
from experiments.attention_speed.benchmark import Settings, run, steps
from experiments.attention_speed.inputs import examine, make_inputs
from experiments.attention_speed.works import (
    COMPILED,
    GROUPS,
    POLICIES,
    TARGETS,
    Work,
    full_works,
    quick_works,
)
from sharpmax.policies import Identity, Paper

TINY = Settings(threads=(1,), seconds=1e-6, least=1, memory_lengths=())


def test_the_works_are_those_of_the_table() -> None:
    works = full_works()
    assert {work.group for work in works} | {"memory"} == set(GROUPS)
    names = [(work.name, work.inputs) for work in works]
    assert len(set(names)) == len(names)

    def seen(group: str, field: str) -> set[Any]:
        return {getattr(work, field) for work in works if work.group == group}

    for group in ("prefill", "sharp", "statistics", "entropy-target"):
        assert seen(group, "length") == {1024, 4096, 8192, 16384}
        assert seen(group, "width") == {64, 128}
        assert seen(group, "is_causal") == {True, False}
    assert seen("prefill", "policy") == seen("sharp", "policy") == {"Paper", "Exponential"}
    assert seen("decode", "length") == {4096, 32768, 131072}
    assert (seen("decode", "heads"), seen("decode", "key_heads")) == ({32}, {8})
    assert seen("backward", "way") == {"forward and backward"}
    assert set(COMPILED) <= seen("comparison", "way")
    assert seen("curve", "length") == {1024 * 2**power for power in range(8)}
    for work in works:
        assert (work.target, work.aim) == TARGETS.get(work.group, (None, None))


def test_the_quick_works_compile_nothing() -> None:
    assert not any(work.way in COMPILED for work in quick_works())
    assert max(work.length for work in quick_works()) <= 4096


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("length", [512, 4096])
def test_sharp_rows_are_sharp_after_sharpening_and_not_before(
    length: int, width: int, is_causal: bool
) -> None:
    shape = {"queries": length, "keys": length, "width": width, "heads": 1}
    inputs = make_inputs("sharp", **shape, is_causal=is_causal)
    for policy in POLICIES["sharp"].values():
        assert examine(inputs, policy, sample=64).largest_weight >= 0.99
    last = replace(inputs, query=inputs.query[:, :, -1:], is_causal=False)
    assert examine(last, Identity()).largest_weight < 0.9


def test_sharp_keys_are_anywhere() -> None:
    inputs = make_inputs("sharp", queries=64, keys=512, width=64, heads=2)
    targets = (inputs.query @ inputs.key.transpose(-2, -1)).argmax(dim=-1)
    assert targets.unique().numel() > 100
    assert targets.float().mean().item() == pytest.approx(256, abs=50)


@pytest.mark.parametrize("keys", [1024, 16384])
def test_dispersed_rows_give_the_policies_work(keys: int) -> None:
    inputs = make_inputs("dispersed", queries=64, keys=keys, width=64, heads=1)
    for policy in POLICIES["dispersed"].values():
        examined = examine(inputs, policy, sample=16)
        assert 4.5 < examined.entropy < 5.7
        assert examined.inverse_temperature > 1.2
        assert examined.largest_weight < 0.5


def test_examined_rows_are_those_of_the_reference() -> None:
    inputs = make_inputs(
        "dispersed", queries=16, keys=300, width=16, heads=4, key_heads=2, is_causal=True
    )
    policy = POLICIES["dispersed"]["Exponential"]
    examined = examine(inputs, policy, sample=4)
    reference = sharpmax.attention(
        inputs.query,
        inputs.key,
        inputs.value,
        policy=policy,
        is_causal=True,
        enable_gqa=True,
        impl="reference",
    )
    torch.testing.assert_close(reference[:, :, list(examined.rows)], examined.output)


@pytest.mark.parametrize("is_causal", [True, False])
def test_the_textbook_version_agrees(is_causal: bool) -> None:
    inputs = make_inputs("dispersed", queries=300, keys=300, width=16, heads=2)
    tensors = (inputs.query, inputs.key, inputs.value)
    torch.testing.assert_close(
        attention_peers.textbook_attention(*tensors, is_causal=is_causal),
        sharpmax.attention(
            *tensors, policy=Paper(warn=False), is_causal=is_causal, impl="reference"
        ),
        atol=1e-4,
        rtol=1e-3,
    )


def test_sparse_attention_attends() -> None:
    query, key = torch.randn(2, 1, 2, 20, 8).unbind()
    ones = torch.ones(1, 2, 20, 3)
    torch.testing.assert_close(attention_peers.entmax_attention(query, key, ones), ones)


def test_without_entmax_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "entmax", None)
    query, key, value = torch.zeros(3, 1, 1, 2, 4).unbind()
    with pytest.raises(sharpmax.MissingExtraError, match=r"sharpmax\[report\]"):
        attention_peers.entmax_attention(query, key, value)


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    works = [work for work in quick_works() if work.length <= 1024]
    lines: list[str] = []
    result = run(works, TINY, progress=lines.append)
    assert len(lines) == steps(works, TINY)
    return result


def test_records_are_tidy(measured: dict[str, Any]) -> None:
    assert json.loads(json.dumps(measured, allow_nan=False)) == json.loads(json.dumps(measured))
    assert measured["machine"]["vector_extension"]
    fields = {tuple(record) for record in measured["records"]}
    assert len(fields) == 1, "every record has the same fields"
    for record in measured["records"]:
        assert record["ratio"] == record["seconds"] / record["peer_seconds"]
        assert record["reached"] in (None, record["ratio"] <= (record["target"] or 0.0))
        assert record["rounds"] >= 1
    assert {record["work"] for record in measured["records"]} == set(GROUPS) - {"memory", "decode"}
    sharp = [record for record in measured["records"] if record["work"] == "sharp"]
    assert min(record["least_largest_weight"] for record in sharp) >= 0.99


def test_the_textbook_is_compared_with_ours_where_the_target_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention_bench, "TEXTBOOK_LENGTH", 512)
    works = [
        work
        for work in quick_works()
        if work.group == "comparison" and work.way in ("forward", "textbook")
    ]
    records = run(works, TINY)["records"]
    against_ours = [record for record in records if record["bound"] == "at least"]
    assert [record["peer"] for record in against_ours] == ["sharpmax cpu"] * 2
    for record in against_ours:
        assert record["reached"] == (record["ratio"] >= record["target"])


def test_growth_is_the_ratio_of_ratios() -> None:
    records = [
        {"work": "curve", "threads": threads, "length": length, "ratio": ratio}
        for threads, length, ratio in [(1, 8192, 0.5), (1, 131072, 0.6), (2, 8192, 0.5)]
    ]
    records.append({"work": "decode", "threads": 2, "length": 131072, "ratio": 9.0})
    (growth,) = attention_bench._growth(records)
    assert growth["threads"] == 1
    assert growth["growth"] == pytest.approx(1.2)
    assert growth["reached"]


def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    work = next(work for work in quick_works() if work.group == "curve")
    monkeypatch.setattr(attention_bench, "attention", lambda query, *_, **__: 0.0 * query)
    with pytest.raises(AssertionError, match=r"differs from the mathematics"):
        run([work], TINY)


def test_rows_that_are_not_sharp_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    work = next(work for work in quick_works() if work.group == "sharp")
    monkeypatch.setitem(POLICIES["sharp"], work.policy or "", Identity())
    with pytest.raises(AssertionError, match=r"expected rows in which one key holds 99%"):
        run([work], TINY)


@pytest.mark.slow
def test_what_is_compiled_agrees_too() -> None:
    works = [
        Work(
            group="comparison",
            length=256,
            queries=256,
            width=64,
            heads=1,
            key_heads=1,
            policy="Paper",
            way=way,
        )
        for way in COMPILED
    ]
    assert len(run(works, TINY)["records"]) == 2


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells")
def test_memory_is_found_where_there_is_some() -> None:
    # 2048 x 2048 scores would be 16 MiB: neither implementation has them.
    for implementation in attention_memory.IMPLEMENTATIONS:
        extra = attention_memory.extra_memory(
            implementation, length=2048, width=64, heads=1, threads=1
        )
        assert extra is not None
        assert 0 <= extra < 8 * 2**20
    with pytest.raises(ValueError, match=r"^implementation: expected one of sharpmax"):
        attention_memory.extra_memory("flash", length=1, width=1, heads=1, threads=1)
