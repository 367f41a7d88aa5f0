"""Measure the time of `sharpmax.attention` as a ratio to PyTorch's attention, and its memory.

Workloads over the same inputs are timed in turn with `scaled_dot_product_attention` on these
inputs. The kernels are those of `impl="cpu"`, or `impl="triton"` on a GPU, by name: where they
cannot run, the benchmark says why and stops.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from experiments.attention_speed.device import finished, plain_attention
from experiments.attention_speed.inputs import Inputs, Sample, make_inputs, sample_rows
from experiments.attention_speed.memory import extra_memory
from experiments.attention_speed.peers import (
    entmax_attention,
    flex_second_pass,
    textbook_attention,
)
from experiments.attention_speed.workloads import COMPILED, OWN, POLICIES, TARGETS, Workload
from experiments.common.memory import measure_apart
from experiments.common.timing import Step, Timing, interleave, thread_count
from sharpmax import attention, attention_statistics

__all__ = ["BASELINE", "QUICK", "Settings", "plan"]

BASELINE = "scaled_dot_product_attention"

MEMORY_TARGET, MEMORY_LENGTH = 8.0, 16384
"""Largest number of MiB per thread at this many keys; in proportion at others."""

SHARP_WEIGHT = 0.99
"""Least weight of one key in every sharp row after sharpening."""

TOLERANCE = {"float32": 0.02, "float16": 0.03, "bfloat16": 0.06}
"""Largest difference of an output from the mathematics, which is in single precision. Beta
multiplies logits of about ten by up to a hundred. This finds mistakes; the tests check accuracy."""


@dataclass(frozen=True)
class Settings:
    """Settings of a run.

    Attributes:
        threads: Numbers of threads to time.
        seconds: Time that each call may use, as in `interleave`.
        least: Smallest number of timed rounds per call.
        seed: Seed of the inputs.
        memory_lengths: Numbers of keys at which memory is measured.
        device: Where to run.
        impl: The implementation of `sharpmax.attention`.
        dtype: That of the inputs.
    """

    threads: tuple[int, ...] = (1, 2)
    seconds: float = 0.6
    least: int = 3
    seed: int = 0
    memory_lengths: tuple[int, ...] = (MEMORY_LENGTH, 2 * MEMORY_LENGTH)
    device: str = "cpu"
    impl: str = "cpu"
    dtype: str = "float32"

    @property
    def ours(self) -> str:
        """The name of the implementation in records."""
        return f"sharpmax {self.impl}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with the policies."""
        policies = {
            character: {name: policy.to_dict() for name, policy in by_name.items()}
            for character, by_name in POLICIES.items()
        }
        return {**vars(self), "policies": policies}


QUICK = Settings(threads=(1,), seconds=0.05, memory_lengths=(1024,))
"""Settings of a run that shows that everything works; its times mean little."""


def plan(workloads: Sequence[Workload], settings: Settings) -> dict[str, Step]:
    """Return the steps of a benchmark, by name.

    Every implementation is checked against the mathematics on some rows before it is timed.

    Args:
        workloads: What to time.
        settings: How to time it.

    Returns:
        One step per group of workloads with the same inputs, then one per measurement of memory.
        A step raises NotImplementedError if the CPU kernels cannot run here, and AssertionError if
        an output differs from the mathematics.
    """
    groups: dict[Any, list[Workload]] = {}
    for workload in workloads:
        groups.setdefault(workload.group, []).append(workload)
    steps: dict[str, Step] = {}
    for group in groups.values():
        kinds = ", ".join(dict.fromkeys(workload.kind for workload in group))
        shape = group[0].shape
        size = f"{shape.queries:,} x {shape.keys:,}, width {shape.width}"
        mask = "causal" if shape.is_causal else "full"
        dtype = f", {group[0].dtype}" if group[0].dtype else ""
        steps[f"{kinds}: {size}, {mask}{dtype}"] = partial(_time_group, group, settings)
    for length, name in itertools.product(settings.memory_lengths, (settings.ours, BASELINE)):
        steps[f"memory: {name}, {length:,} keys"] = partial(_memory, name, length, settings)
    return steps


def _time_group(
    workloads: Sequence[Workload], settings: Settings
) -> dict[str, list[dict[str, Any]]]:
    """Time workloads over the same inputs, at every number of threads."""
    settings = replace(settings, dtype=workloads[0].dtype or settings.dtype)
    inputs = make_inputs(workloads[0].shape, settings.seed).rounded(settings.dtype)
    samples = {
        workload: sample_rows(inputs, POLICIES[inputs.shape.character][workload.policy])
        for workload in workloads
        if workload.policy is not None
    }
    for workload, sample in samples.items():
        if inputs.shape.character == "sharp" and sample.largest_weight < SHARP_WEIGHT:
            raise AssertionError(
                f"{workload.name}: expected one key with {SHARP_WEIGHT:.0%} of every row,"
                f" got {sample.largest_weight:.3%}"
            )
    records = []
    for threads in settings.threads:
        # One check is enough: the output does not depend on the number of threads.
        to_check = samples if threads == settings.threads[0] else {}
        with thread_count(threads):
            timing = _time(workloads, inputs, to_check, settings)
        records += [
            _record(each, timing, threads, samples.get(each), settings) for each in workloads
        ]
    return {"records": records}


def _time(
    workloads: Sequence[Workload],
    inputs: Inputs,
    to_check: Mapping[Workload, Sample],
    settings: Settings,
) -> Timing:
    """Time workloads in turn with the baseline, after checking some of them."""
    backward = workloads[0].method == "forward and backward"
    if any(workload.method in COMPILED for workload in workloads):
        # Code is compiled for a number of threads.
        torch.compiler.reset()
    inputs = inputs.to(settings.device, settings.dtype)
    tensors = tuple(
        tensor.detach().requires_grad_(backward)
        for tensor in (inputs.query, inputs.key, inputs.value)
    )
    upstream = torch.randn(inputs.query.shape, generator=torch.Generator().manual_seed(1))
    upstream = upstream.to(inputs.query)
    shape: dict[str, Any] = {"is_causal": inputs.shape.is_causal, "enable_gqa": inputs.group > 1}

    def on_inputs(function: Callable[..., Any]) -> Callable[[], object]:
        if not backward:
            return finished(lambda: function(*tensors), settings.device)
        return finished(
            lambda: torch.autograd.grad(function(*tensors), tensors, upstream), settings.device
        )

    calls = {BASELINE: on_inputs(partial(plain_attention(settings.device), **shape))}
    with torch.set_grad_enabled(backward):
        for workload in workloads:
            function = _function(workload, inputs, shape, settings.impl)
            if workload in to_check:
                output = function(*tensors).detach().cpu().float()
                _check_output(workload, output, to_check[workload], TOLERANCE[settings.dtype])
            calls[workload.name] = on_inputs(function)
        return interleave(calls, baseline=BASELINE, seconds=settings.seconds, least=settings.least)


def _function(
    workload: Workload, inputs: Inputs, shape: dict[str, Any], impl: Any
) -> Callable[..., Any]:
    """Return the function of query, key and value that a workload times."""
    method = workload.method
    if method == "statistics":
        return lambda query, key, _: attention_statistics(query, key, **shape, impl=impl)
    if method == "entmax by bisection":
        return entmax_attention
    if method == "textbook":
        return partial(textbook_attention, is_causal=inputs.shape.is_causal)
    if method == "textbook, compiled":
        return torch.compile(textbook_attention, fullgraph=True, dynamic=False)
    assert workload.policy is not None
    policy = POLICIES[inputs.shape.character][workload.policy]
    if method == "FlexAttention, compiled, second pass":
        return flex_second_pass(inputs.query, inputs.key, policy)
    return partial(attention, policy=policy, **shape, detach_temperature=True, impl=impl)


def _check_output(workload: Workload, output: Tensor, sample: Sample, tolerance: float) -> None:
    difference = (output[:, :, list(sample.rows)] - sample.output).abs().max().item()
    if not difference < tolerance:
        raise AssertionError(f"{workload.name}: differs from the mathematics by {difference:.2g}")


def _record(
    workload: Workload, timing: Timing, threads: int, sample: Sample | None, settings: Settings
) -> dict[str, Any]:
    shape = workload.shape
    target, stretch_target = TARGETS.get(workload.kind, (None, None))
    return {
        "workload": workload.kind,
        "implementation": settings.ours if workload.method in OWN else workload.method,
        "baseline": BASELINE,
        "length": shape.keys,
        "queries": shape.queries,
        "width": shape.width,
        "causal": shape.is_causal,
        "heads": shape.heads,
        "key_heads": shape.key_heads,
        "dtype": settings.dtype,
        "policy": workload.policy,
        "rows": shape.character,
        "threads": threads,
        "seconds": timing.best[workload.name],
        "baseline_seconds": timing.best[BASELINE],
        "rounds": timing.rounds[workload.name],
        "ratio": timing.ratio(workload.name),
        "target": target,
        "stretch_target": stretch_target,
        "entropy": None if sample is None else sample.entropy,
        "inverse_temperature": None if sample is None else sample.inverse_temperature,
        "least_largest_weight": None if sample is None else sample.largest_weight,
    }


def _memory(name: str, length: int, settings: Settings) -> dict[str, list[dict[str, Any]]]:
    """Measure the memory of one implementation, at every number of threads."""
    entries = []
    impl = settings.impl if name == settings.ours else ""
    where = (settings.device, settings.dtype)
    for threads in settings.threads:
        extra = measure_apart(extra_memory, impl, length, 64, 1, threads, *where)
        if extra is not None:
            entries.append(
                {
                    "implementation": name,
                    "length": length,
                    "width": 64,
                    "threads": threads,
                    "mebibytes_per_thread": extra / 2**20 / threads,
                    "target": MEMORY_TARGET * length / MEMORY_LENGTH if impl == "cpu" else None,
                }
            )
    return {"memory": entries}
