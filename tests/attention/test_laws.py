"""Identities that attention with a policy has to keep, whatever the implementation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

import sharpmax
from attention_cases import (
    SLOW,
    attend,
    every_impl,
    every_impl_and_policy,
    implementations,
    may_refuse,
    run,
)
from sharpmax.policies import EntropyTarget, Exponential, Identity, LogLength, Policy


def made(*shape: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, *shape, generator=generator).unbind()
    return 2 * query, key, value


@every_impl
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_identity_is_pytorchs_attention(impl: str, dtype: torch.dtype, causal: bool) -> None:
    if impl != "composed" and may_refuse(impl, dtype):
        return
    query, key, value = (x.to(dtype) for x in made(2, 3, 40, 16))
    ours = run(query, key, value, policy=Identity(), is_causal=causal, impl=impl)
    exact = F.scaled_dot_product_attention(
        query.double(), key.double(), value.double(), is_causal=causal
    )
    theirs = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    error = (theirs.double() - exact).abs().max()
    assert (ours.double() - exact).abs().max() <= 3 * error + 8 * torch.finfo(dtype).eps


@every_impl
@pytest.mark.parametrize(("queries", "keys"), [(5, 9), (9, 5), (7, 7)])
def test_causal_alignment(impl: str, queries: int, keys: int) -> None:
    query, key, value = made(1, 2, 9, 8)
    query, key, value = query[:, :, :queries], key[:, :, :keys], value[:, :, :keys]
    theirs = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    ours = run(query, key, value, policy=Identity(), is_causal=True, impl=impl)
    torch.testing.assert_close(ours, theirs)
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    expected = sharpmax.attention(
        query, key, value, policy=Exponential(0.5), attn_mask=mask, impl="reference"
    )
    aligned = run(
        query,
        key,
        value,
        policy=Exponential(0.5),
        is_causal=True,
        alignment="lower_right",
        impl=impl,
    )
    torch.testing.assert_close(aligned, expected)


@every_impl_and_policy
def test_decoding_step_by_step_gives_the_rows_of_the_whole(impl: str, policy: Policy) -> None:
    query, key, value = made(2, 4, 40, 16)
    whole = attend(query, key, value, policy=policy, is_causal=True, impl=impl)
    for length in range(1, 41, 13 if impl in SLOW else 1):
        step = attend(
            query[:, :, length - 1 : length],
            key[:, :, :length],
            value[:, :, :length],
            policy=policy,
            impl=impl,
        )
        # 1e-3 for the policy that solves an equation, to 1e-4 nats, in another order of summation
        torch.testing.assert_close(step, whole[:, :, length - 1 : length], atol=1e-3, rtol=1e-3)


@every_impl_and_policy
def test_order_of_the_keys_does_not_matter(impl: str, policy: Policy) -> None:
    query, key, value = made(1, 2, 50, 16)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    straight = attend(query, key, value, policy=policy, impl=impl)
    permuted = attend(query, key[:, :, order], value[:, :, order], policy=policy, impl=impl)
    torch.testing.assert_close(permuted, straight, atol=1e-3, rtol=1e-3)


@every_impl_and_policy
def test_a_padded_batch_gives_the_unpadded_rows(impl: str, policy: Policy) -> None:
    query, key, value = made(2, 2, 30, 16)
    lengths = [30, 17]
    visible = torch.arange(30) < torch.tensor(lengths)[:, None]
    # What lies in the padding must not matter, however large it is.
    key = torch.where(visible[:, None, :, None], key, 50.0)
    padded = attend(query, key, value, policy=policy, attn_mask=visible[:, None, None], impl=impl)
    for k, length in enumerate(lengths):
        alone = attend(
            query[k : k + 1],
            key[k : k + 1, :, :length],
            value[k : k + 1, :, :length],
            policy=policy,
            impl=impl,
        )
        torch.testing.assert_close(padded[k : k + 1], alone, atol=1e-3, rtol=1e-3)


@every_impl_and_policy
def test_rows_that_see_nothing_are_zeros(impl: str, policy: Policy) -> None:
    query, key, value = made(1, 2, 30, 8)
    mask = torch.ones(30, 30, dtype=torch.bool)
    mask[[0, 7, 29]] = False
    query.requires_grad_()
    output = attend(query, key, value, policy=policy, attn_mask=mask, impl=impl)
    assert (output[:, :, [0, 7, 29]] == 0).all()
    assert torch.isfinite(output).all()
    output.square().sum().backward()
    assert query.grad is not None
    assert torch.isfinite(query.grad).all()
    assert (query.grad[:, :, [0, 7, 29]] == 0).all()


@every_impl
@pytest.mark.parametrize("shape", [(0, 2, 5, 5), (2, 2, 0, 5), (2, 2, 5, 0)])
def test_nothing_at_all(impl: str, shape: tuple[int, int, int, int]) -> None:
    batch, heads, queries, keys = shape
    query = torch.randn(batch, heads, queries, 8)
    key, value = torch.randn(2, batch, heads, keys, 8).unbind()
    output, statistics = run(
        query, key, value, policy=Exponential(0.5), impl=impl, return_statistics=True
    )
    assert output.shape == (batch, heads, queries, 8)
    assert (output == 0).all()
    assert (statistics.count == 0).all()


@every_impl
def test_parameters_over_heads(impl: str) -> None:
    query, key, value = made(2, 3, 20, 8)
    references = [0.2, 1.0, 2.5]
    together = attend(query, key, value, policy=Exponential(references), impl=impl)
    for head, reference in enumerate(references):
        one = slice(head, head + 1)
        alone = attend(
            query[:, one], key[:, one], value[:, one], policy=Exponential(reference), impl=impl
        )
        torch.testing.assert_close(together[:, one], alone)


@every_impl
def test_length_is_what_a_row_may_see(impl: str) -> None:
    query, key, value = (
        torch.zeros(1, 1, 64, 8),
        torch.zeros(1, 1, 64, 8),
        torch.eye(64)[None, None],
    )
    key = torch.randn(1, 1, 64, 8, generator=torch.Generator().manual_seed(0))
    query = query + 1.0
    weights = attend(query, key, value, policy=LogLength(), is_causal=True, impl=impl, scale=0.1)
    for row in (5, 40, 63):
        logits = 0.1 * (query[0, 0, row] @ key[0, 0, : row + 1].T)
        expected = torch.softmax(logits * torch.log(torch.tensor(row + 1.0)), dim=-1)
        torch.testing.assert_close(weights[0, 0, row, : row + 1], expected)


@every_impl
@pytest.mark.parametrize("queries", [1, 70])
def test_bit_identical_again(impl: str, queries: int) -> None:
    query, key, value = made(2, 2, 300, 16)
    once, again = (
        run(query[:, :, :queries], key, value, policy=Exponential(1.0), impl=impl) for _ in range(2)
    )
    assert torch.equal(once, again)


def test_bit_identical_again_and_close_whatever_the_threads() -> None:
    threads = torch.get_num_threads()
    query, key, value = made(2, 3, 300, 32)
    long_key, long_value = torch.randn(2, 1, 2, 20_000, 32).unbind()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for _ in range(2):
                prefill = sharpmax.attention(query, key, value, policy=Exponential(1.0), impl="cpu")
                decode = sharpmax.attention(
                    query[:1, :2, :1], long_key, long_value, policy=Exponential(1.0), impl="cpu"
                )
                results.append((prefill, decode))
    finally:
        torch.set_num_threads(threads)
    for k in range(0, len(results), 2):
        for one, other in zip(results[k], results[k + 1], strict=True):
            assert torch.equal(one, other)
        for one, other in zip(results[0], results[k], strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("policy", [Exponential(1.0), EntropyTarget(1.0)], ids=repr)
def test_gradients_are_bit_identical_again_and_close_whatever_the_threads(policy: Policy) -> None:
    threads = torch.get_num_threads()
    query, key, value = made(2, 4, 300, 32)
    generator = torch.Generator().manual_seed(1)
    bias, sink = torch.randn(4, 300, 300, generator=generator), torch.randn(4, generator=generator)
    leaves = [x.requires_grad_() for x in (query, key[:, :2], value[:, :2], bias, sink)]
    found = []
    try:
        for count in (1, 1, 2, 2, 3, 3):
            torch.set_num_threads(count)
            output = sharpmax.attention(
                *leaves[:4], is_causal=True, enable_gqa=True, sink=sink, policy=policy, impl="cpu"
            )
            found.append(torch.autograd.grad(output.square().sum(), leaves))
    finally:
        torch.set_num_threads(threads)
    for k in range(0, len(found), 2):
        for one, again, first in zip(found[k], found[k + 1], found[0], strict=True):
            assert torch.equal(one, again)
            torch.testing.assert_close(one, first, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_every_framework_gets_the_bits_of_one_kernel(dtype: torch.dtype) -> None:
    tensors = [x.to(dtype) for x in made(1, 2, 80, 16)]
    options = {"policy": Exponential(1.0), "is_causal": True, "softcap": 3.0}
    ours = run(*tensors, impl="cpu", **options)
    for impl in ("numpy", "jax cpu"):
        assert torch.equal(run(*tensors, impl=impl, **options), ours)


@implementations("jax", "ranks", "triton")  # adapters and the interpreter are not for threads
def test_threads_that_call_at_once(impl: str) -> None:
    def work(number: int) -> list[torch.Tensor]:
        query, key, value = made(1, 2, 30 + 60 * number, 16, seed=number)
        query.requires_grad_(impl != "numpy")
        output = run(query, key, value, policy=Exponential(1.0), is_causal=True, impl=impl)
        if impl == "numpy":
            return [output]
        return [output.detach(), *torch.autograd.grad(output.square().sum(), query)]

    alone = [work(number) for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        for number, found in enumerate(pool.map(work, [*range(6)] * 10)):
            torch.testing.assert_close(found, alone[number % 6])


@implementations("jax", "ranks")  # which compile it, or warn in processes of their own
def test_paper_warns_of_rows_without_correction(impl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sharpmax.policies import EntropyRangeWarning, Paper, _polynomial

    monkeypatch.setattr(_polynomial, "_warned", [])
    zeros = torch.zeros(1, 1, 1000, 8)
    with pytest.warns(EntropyRangeWarning):
        run(zeros[:, :, :2], zeros, zeros, policy=Paper(), impl=impl)
