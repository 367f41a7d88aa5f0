from __future__ import annotations

from typing import Any

from experiments.attention_speed.workloads import (
    COMPILED,
    KINDS,
    TARGETS,
    full_workloads,
    quick_workloads,
)


def test_full_workloads_are_those_of_the_document() -> None:
    workloads = full_workloads()
    assert {each.kind for each in workloads} | {"memory", "profile"} == set(KINDS)
    names = [(each.name, each.group) for each in workloads]
    assert len(set(names)) == len(names)

    def seen(kind: str, field: str) -> set[Any]:
        return {getattr(each.shape, field) for each in workloads if each.kind == kind}

    for kind in ("prefill", "sharp", "statistics", "entropy-target"):
        assert seen(kind, "keys") == seen(kind, "queries") == {1024, 4096, 8192, 16384}
        assert seen(kind, "width") == {64, 128}
        assert seen(kind, "is_causal") == {True, False}
    for kind in ("prefill", "sharp", "decode", "backward"):
        assert {each.policy for each in workloads if each.kind == kind} == {"Paper", "Exponential"}
    assert seen("decode", "keys") == {4096, 32768, 131072}
    assert (seen("decode", "heads"), seen("decode", "key_heads")) == ({32}, {8})
    assert seen("curve", "keys") == {1024 * 2**power for power in range(8)}
    assert seen("few", "queries") == {9, 16, 24}
    assert (seen("few", "heads"), seen("few", "key_heads")) == ({1}, {1})
    dtypes = {each.dtype for each in workloads if each.kind == "precision"}
    assert dtypes == {"float32", "bfloat16", "float16"}
    methods = {kind: {each.method for each in workloads if each.kind == kind} for kind in KINDS}
    assert methods["backward"] == {"forward and backward"}
    assert set(COMPILED) <= methods["comparison"]
    assert TARGETS.keys() <= KINDS.keys()


def test_quick_workloads_are_small_and_not_compiled() -> None:
    assert not any(each.method in COMPILED for each in quick_workloads())
    assert max(each.shape.keys for each in quick_workloads()) <= 4096
