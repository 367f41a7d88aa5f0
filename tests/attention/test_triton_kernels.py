"""What the Triton kernels do in their own way: products in three parts, logits kept in few bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import sharpmax
from sharpmax._attention import check
from sharpmax._attention.impl import triton
from sharpmax._attention.impl.triton import launch as launching
from sharpmax.policies import Constant, EntropyTarget, Exponential, Policy
from triton_interpreter import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")


def made(queries: int, keys: int, width: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(keys)
    query = 2 * torch.randn(1, 4, queries, width, generator=generator)
    key, value = torch.randn(2, 1, 2, keys, width, generator=generator).unbind()
    return [x.to(dtype) for x in (query, key, value)]


def run(tensors: list[torch.Tensor], policy: Policy, impl: str = "triton") -> Any:
    return sharpmax.attention(
        *tensors, policy=policy, enable_gqa=True, return_statistics=True, impl=impl
    )


def in_three_parts(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply as NVIDIA's matrix units do with tf32x3: operands have 10 bits, and what they lack.

    NaN of the small products is 0, as Triton makes it.
    """

    def rounded(x: np.ndarray) -> np.ndarray:
        bits = x.astype(np.float32).view(np.uint32)
        return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)

    large = [np.where(np.isfinite(x), rounded(x), x) for x in (a, b)]
    small = [rounded(x - each) for x, each in zip((a, b), large, strict=True)]
    rest = small[0] @ large[1] + large[0] @ small[1]
    found: np.ndarray = large[0] @ large[1] + np.where(np.isnan(rest), 0.0, rest)
    return found.astype(np.float32)


@pytest.mark.parametrize("queries", [1, 40])
def test_products_in_three_parts_are_as_good_as_single_precision(
    queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    tensors = [x.requires_grad_() for x in made(queries, 70, 40, torch.float32)]
    doubles = [x.detach().double().requires_grad_() for x in tensors]
    policy = Exponential(1.0)

    def error() -> list[tuple[float, float]]:
        found = []
        for each, impl in ((tensors, "triton"), (doubles, "reference")):
            output, statistics = run(each, policy, impl)
            gradients = torch.autograd.grad(output.square().sum(), each)
            found.append([output, statistics.entropy(), *gradients])
        pairs = [(x.detach().double(), y.detach()) for x, y in zip(*found, strict=True)]
        return [(float((x - y).abs().max()), float(y.abs().max())) for x, y in pairs]

    single = error()
    products = 0

    def dot(_: Any, a: Any, b: Any, d: Any, *__: Any) -> Any:
        nonlocal products
        products += 1
        return TensorHandle(in_three_parts(a.data, b.data) + d.data, d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot)
    for (ours, size), (theirs, _) in zip(error(), single, strict=True):
        assert ours <= 4 * theirs + 2**-19 * size
    assert products


@pytest.mark.parametrize("beta", [0.05, 0.3, 1.0, 4.0, 500.0])
def test_twelve_bits_of_a_logit_move_an_output_less_than_bfloat16(
    beta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = made(1, 200, 32, torch.bfloat16)
    output, statistics = run(tensors, Constant(beta))
    monkeypatch.setattr(triton, "score_bits", lambda _: 32)
    exact, same = run(tensors, Constant(beta))
    for ours, theirs in zip(statistics, same, strict=True):
        assert torch.equal(ours, theirs)
    value = tensors[2].float()
    largest = (value.amax(2) - value.amin(2)).repeat_interleave(2, 1)[:, :, None]
    moved = (output.float() - exact.float()).abs()
    rounding = torch.finfo(torch.bfloat16).eps * exact.float().abs()
    assert (moved <= 2**-8.8 * largest + rounding).all()
    if not 0.125 <= beta <= 128:  # the logits were made again
        assert torch.equal(output, exact)


def test_kept_logits_are_read_back_within_their_bound() -> None:
    """One key of each block has a value, so that the output tells its weight."""
    width = 16
    distances = torch.cat([torch.zeros(1), torch.logspace(-4, 2, 63)])
    key = torch.zeros(1, 1, 64, width, dtype=torch.bfloat16)
    key[..., 0] = -distances.bfloat16()
    query = torch.zeros(1, 1, 1, width, dtype=torch.bfloat16)
    query[..., 0] = 1.0
    exact = key[0, 0, :, 0].float()
    weight = torch.exp(exact)
    for place in (0, 5, 31, 32, 40, 50):
        value = torch.zeros(1, 1, 64, width, dtype=torch.bfloat16)
        value[0, 0, place] = 1.0
        output, _ = sharpmax.attention(
            query, key, value, scale=1.0, policy=Constant(1.0), return_statistics=True,
            impl="triton",
        )  # fmt: skip
        expected = weight[place] / weight.sum()
        # The rounding of all weights, of this one to bfloat16, and of the output.
        bound = ((exact[place].abs() + 2**-8) * 2**-9 + 2**-9 + 2**-8 + 2**-8) * expected
        assert (output[0, 0, 0, 0].float() - expected).abs() <= bound


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_kept_logits_that_are_not_finite(odd: float) -> None:
    query, key, value = made(1, 150, 16, torch.bfloat16)
    query = query.abs()
    key[0, 0, 70] = odd
    for policy in (Constant(2.0), Exponential(1.0)):
        output, statistics = run([query, key, value], policy)
        expected, same = run([query, key, value], policy, "reference")
        torch.testing.assert_close(output, expected, atol=0.02, rtol=0.02, equal_nan=True)
        torch.testing.assert_close(
            statistics.maximum, same.maximum.float(), atol=0.01, rtol=0.01, equal_nan=True
        )


def test_statistics_do_not_read_twelve_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    run_ = launching.Launch.run
    monkeypatch.setattr(
        launching.Launch, "run", lambda launch: (read.append(launch.constants), run_(launch))[1]
    )
    run(made(1, 200, 40, torch.bfloat16), EntropyTarget(2.0))
    tempered = [each["BITS"] for each in read if each.get("TEMPERED")]
    assert tempered
    assert set(tempered) == {24}


@pytest.mark.parametrize("width", [17, 40])
def test_rows_that_are_not_aligned_are_copied(width: int) -> None:
    odd = [x[..., 1:] for x in made(33, 50, width + 1, torch.float16)]
    assert launching.aligned(odd[0]).shape[3] == -(-width // 8) * 8
    found = []
    for tensors in (odd, [x.contiguous() for x in odd]):
        leaves = [x.detach().requires_grad_() for x in tensors]
        output, _ = run(leaves, Exponential(1.0))
        found.append([output, *torch.autograd.grad(output.float().square().sum(), leaves)])
    expected, _ = run([x.double() for x in odd], Exponential(1.0), "reference")
    torch.testing.assert_close(found[0][0].double(), expected, atol=4e-3, rtol=4e-3)
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


def test_rows_that_are_aligned_are_not_copied() -> None:
    fused = torch.zeros(2, 30, 3, 4, 64, dtype=torch.bfloat16)
    for x in fused.unbind(2):
        assert launching.aligned(x.transpose(1, 2)).data_ptr() == x.data_ptr()


def test_gpus_that_triton_does_not_serve_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeTensorMode():
        tensor = torch.empty(1, 1, 1, 8, device="cuda")
        problem = check(
            tensor, tensor, tensor, attn_mask=None, is_causal=False, alignment="upper_left",
            scale=None, softcap=None, sink=None, sink_role="key", window=None, enable_gqa=False,
            dropout=0.0,
        )  # fmt: skip
    for capability, reason in (((7, 5), "compute capability 8.0"), ((8, 0), ""), ((12, 0), "")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        assert reason in (triton.unsupported(problem, None) or "")
        assert bool(reason) == bool(triton.unsupported(problem, None))


def test_the_question_for_a_gpu_is_a_constant_of_a_compiled_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))

    @torch.compile(fullgraph=True, backend="eager")
    def call(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if triton._too_old(x.device) else x

    assert call(torch.zeros(1)).item() == 1.0
