"""Check and time the implementations of `sharpmax.attention`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import sharpmax
from sharpmax import kernels
from sharpmax._attention import problem as checked
from sharpmax._attention.api import IMPLEMENTATIONS
from sharpmax._extras import available
from sharpmax.cli._doctor.problems import Problem, Result, upstream
from sharpmax.cli._doctor.timing import best_times
from sharpmax.policies import Exponential

PACKAGES = ("numpy", "torch", "triton", "transformers")


def facts() -> dict[str, str]:
    """Describe what attention in PyTorch can run on."""
    found = {"PyTorch's vector instructions": torch.backends.cpu.get_cpu_capability()}
    if not kernels.unavailable():
        found["vector instructions of impl='cpu'"] = kernels.instructions()
    built = torch.version.cuda or torch.version.hip
    found["PyTorch built for"] = (
        f"{'ROCm' if torch.version.hip else 'CUDA'} {built}" if built else "CPU"
    )
    for number in range(torch.cuda.device_count()):
        each = torch.cuda.get_device_properties(number)
        name = getattr(each, "gcnArchName", f"sm_{each.major}{each.minor}")
        memory = f"{each.total_memory / 2**30:.0f} GiB"
        found[f"GPU {number}"] = (
            f"{each.name}, {name}, {memory}, {each.multi_processor_count} units"
        )
    if os.environ.get("TRITON_INTERPRET") == "1":
        found["Triton"] = "interprets kernels on the CPU (TRITON_INTERPRET=1)"
    return found


def devices() -> list[str]:
    """Return the CPU and the accelerator that PyTorch would use."""
    accelerator = (
        torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    )
    return ["cpu", *([str(accelerator)] if accelerator is not None else [])]


def missing(name: str, device: str) -> str | None:
    """Say why an implementation cannot serve on a device, or None. Builds what it needs."""
    tensor = torch.zeros(1, 1, 1, 8, device=device)
    problem = checked.check(
        tensor, tensor, tensor, attn_mask=None, is_causal=False, alignment="upper_left",
        scale=None, softcap=None, sink=None, sink_role="key", window=None, enable_gqa=False,
        dropout=0.0,
    )  # fmt: skip
    implementation = IMPLEMENTATIONS[name]
    reason: str | None = implementation.unsupported(problem, None)
    if reason is None and hasattr(implementation, "prepare"):
        reason = implementation.prepare()
    return reason


def solve(problem: Problem, name: str, device: str) -> Result:
    """Run a problem.

    Raises:
        NotImplementedError: the implementation does not serve it.
    """
    dtype = getattr(torch, problem.dtype)
    wanted = problem.gradients

    def tensor(array: Any, dtype: torch.dtype = dtype) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device, dtype)[None]

    given = {key: tensor(array).requires_grad_(wanted) for key, array in problem.arrays.items()}
    mask = given.get("bias") if problem.mask is None else tensor(problem.mask, torch.bool)
    sink = given.get("sink")
    call = partial(
        sharpmax.attention,
        given["query"],
        given["key"],
        given["value"],
        mask,
        is_causal=problem.is_causal,
        enable_gqa=True,
        policy=problem.policy,
        softcap=problem.softcap,
        window=problem.window,
        sink=None if sink is None else sink[0],
        sink_role="apart" if problem.sink_apart else "key",
        impl=name,
        return_statistics=True,
    )
    output, statistics = call()
    if not torch.equal(output, call()[0]):
        raise ArithmeticError("the same call gave two different outputs")
    gradients: tuple[Tensor, ...] = ()
    if wanted:
        gradient = tensor(upstream(problem), output.dtype)
        gradients = torch.autograd.grad(output, tuple(given.values()), gradient)
    return Result(
        _plain(output),
        _plain(statistics.entropy()),
        _plain(statistics.count),
        {key: _plain(gradient) for key, gradient in zip(given, gradients, strict=wanted)},
    )


def timings(ready: list[tuple[str, str]]) -> dict[str, Callable[[], dict[str, float]]]:
    """Return what to time, by title: each gives seconds per call, that of PyTorch's own first."""
    found: dict[str, Callable[[], dict[str, float]]] = {}
    for device in dict.fromkeys(device for _, device in ready):
        names = [name for name, where in ready if where == device and name != "reference"]
        if device == "cpu" and "triton" in names:
            names.remove("triton")  # an interpreter
        if not names:
            continue
        gpu = device != "cpu"
        dtype, width = (torch.bfloat16, 128) if gpu else (torch.float32, 64)
        long, short = (131072, 8192) if gpu else (8192, 1024)
        for title, queries, keys, heads in (
            (f"prefill, {short:,} tokens", short, short, (4, 4)),
            (f"decode, {long:,} keys", 1, long, (32, 8)),
        ):
            what = f"{title}, width {width}, {str(dtype).removeprefix('torch.')}, {device}"
            found[what] = partial(_time, names, device, dtype, width, queries, keys, heads)
    return found


def _time(
    names: list[str],
    device: str,
    dtype: torch.dtype,
    width: int,
    queries: int,
    keys: int,
    heads: Any,
) -> dict[str, float]:
    query = torch.randn(1, heads[0], queries, width, device=device, dtype=dtype)
    key, value = torch.randn(2, 1, heads[1], keys, width, device=device, dtype=dtype).unbind()
    options: dict[str, Any] = {"is_causal": queries > 1, "enable_gqa": heads[0] != heads[1]}
    calls: dict[str, Callable[[], object]] = {
        "scaled_dot_product_attention": partial(
            F.scaled_dot_product_attention, query, key, value, **options
        )
    }
    policy = Exponential(4.0)
    for name in names:
        call: Any = partial(sharpmax.attention, query, key, value, **options)
        calls[name] = partial(call, policy=policy, impl=name)
    finish = torch.accelerator.synchronize if device != "cpu" else lambda: None
    with torch.no_grad():
        return best_times(calls, finish)


def notes(ready: list[tuple[str, str]]) -> list[str]:
    """Say what this machine could use and does not."""
    said = []
    if ("cpu", "cpu") not in ready:
        said.append("impl='cpu' is missing: attention on the CPU is slower than it could be")
    gpu = torch.cuda.is_available()
    if gpu and "triton" not in [name for name, where in ready if where != "cpu"]:
        said.append("impl='triton' is missing: attention on the GPU is slower than it could be")
    if not gpu and available("triton") and torch.version.cuda:
        said.append("PyTorch is built for CUDA and finds no GPU: check the driver")
    return said


def _plain(tensor: Tensor) -> Any:
    return tensor.detach()[0].cpu().double().numpy()
