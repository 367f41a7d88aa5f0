"""The kernels as operators of PyTorch: compiled, exported, checked, batched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import sharpmax
from attention_cases import POLICIES, of_tensors
from sharpmax._attention.temperature import table_of
from sharpmax.policies import EntropyTarget, Exponential, LogLength, Paper, Policy


class Doubling(Policy):
    """A policy that only Python knows."""

    def inverse_temperature(self, statistics, tempered=None):
        return 1.0 + statistics.entropy()


def made(length: int = 20, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(length)
    query = torch.randn(2, 4, length, 8, generator=generator).to(dtype)
    key, value = torch.randn(2, 2, 2, length, 8, generator=generator).to(dtype).unbind()
    return query, key, value


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_opcheck(policy: Policy) -> None:
    query, key, value = (x.requires_grad_() for x in made())
    encoded = table_of(policy, 4)
    assert encoded is not None
    form, table = encoded
    arguments = (
        query, key, value, torch.randn(2, 4, 20, 20), torch.randn(4), None,
        table, int(form), False, 0.3, 2.0, 7, 0, 0, True,
    )  # fmt: skip
    torch.library.opcheck(torch.ops.sharpmax.attention.default, arguments)


class Recorder(TorchDispatchMode):
    """Keeps one call of each of sharpmax's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, tuple[Any, ...]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "sharpmax":
            self.calls.setdefault(func, args)
        return func(*args, **(kwargs or {}))


@of_tensors("reference", "composed")
def test_opcheck_of_every_operator(impl: str) -> None:
    """Schema, fake, autograd and compilation of whatever operators an implementation calls."""
    leaves = [x.requires_grad_() for x in made()]
    bias = torch.randn(2, 4, 20, 20, generator=torch.Generator().manual_seed(0)).requires_grad_()
    options = {"enable_gqa": True, "impl": impl}
    with Recorder() as recorder:
        for policy in (Exponential(1.0), Doubling()):
            output = sharpmax.attention(*leaves, bias, policy=policy, softcap=2.0, **options)
            output.sum().backward()
        with torch.no_grad():
            sharpmax.attention(*leaves, policy=LogLength(2.0), is_causal=True, **options)
            sharpmax.attention_statistics(*leaves[:2], is_causal=True, **options)
    assert recorder.calls
    for operator, arguments in recorder.calls.items():
        names = [each.name for each in operator._schema.arguments]
        last = any(word in str(operator) for word in ("backward", "gradient"))
        differentiated = () if last else ("query", "key", "value")
        prepared = [
            x.detach().requires_grad_(name in differentiated) if isinstance(x, torch.Tensor) else x
            for name, x in zip(names, arguments, strict=True)
        ]
        torch.library.opcheck(operator, tuple(prepared))


@of_tensors("reference", "composed")
@pytest.mark.parametrize("policy", [Paper(warn=False), Exponential([0.5, 1, 1.5, 2])], ids=repr)
def test_compiled_with_dynamic_lengths(impl: str, policy: Policy) -> None:
    torch.compiler.reset()

    def function(query, key, value):
        output, statistics = sharpmax.attention(
            query,
            key,
            value,
            policy=policy,
            is_causal=True,
            alignment="lower_right",
            enable_gqa=True,
            return_statistics=True,
            impl=impl,
        )
        return output * 2, statistics.entropy()

    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    for length in (20, 33, 48):
        inputs = [x.requires_grad_() for x in made(length)]
        inputs[0] = inputs[0].detach()[:, :, -11:]
        expected, entropy = function(*inputs)
        output, compiled_entropy = compiled(*inputs)
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(compiled_entropy, entropy)
        gradients = torch.autograd.grad(output.square().sum(), inputs[1:])
        for ours, theirs in zip(
            gradients, torch.autograd.grad(expected.square().sum(), inputs[1:]), strict=True
        ):
            torch.testing.assert_close(ours, theirs)


class Layer(torch.nn.Module):
    def __init__(self, impl: str) -> None:
        super().__init__()
        self.impl = impl

    def forward(self, query, key, value):
        return sharpmax.attention(
            query, key, value, policy=EntropyTarget(1.0), enable_gqa=True, impl=self.impl
        )


@of_tensors("reference", "composed")
def test_exported(impl: str) -> None:
    length = torch.export.Dim("length", min=2, max=4096)
    inputs, layer = made(), Layer(impl)
    program = torch.export.export(layer, inputs, dynamic_shapes=[{2: length}] * 3)
    for size in (20, 57):
        torch.testing.assert_close(program.module()(*made(size)), layer(*made(size)))


@of_tensors("reference", "composed")
def test_vmap(impl: str) -> None:
    query, key, value = (torch.stack([x, x.flip(2), -x]) for x in made())
    mask = torch.rand(3, 20, 20, generator=torch.Generator().manual_seed(0)) < 0.8

    def function(query, key, value, mask):
        return sharpmax.attention(
            query, key, value, policy=Exponential(1.0), enable_gqa=True, attn_mask=mask, impl=impl
        )

    mapped = torch.func.vmap(function)(query, key, value, mask)
    one_by_one = torch.stack(
        [function(*entry) for entry in zip(query, key, value, mask, strict=True)]
    )
    torch.testing.assert_close(mapped, one_by_one)
    shared = torch.func.vmap(function, in_dims=(0, None, None, None))(
        query, key[0], value[0], mask[0]
    )
    for k in range(3):
        torch.testing.assert_close(shared[k], function(query[k], key[0], value[0], mask[0]))
    entropies = torch.func.vmap(
        lambda q, k: sharpmax.attention_statistics(q, k, enable_gqa=True, impl=impl).entropy()
    )(query, key)
    torch.testing.assert_close(
        entropies[1], sharpmax.attention_statistics(query[1], key[1], enable_gqa=True).entropy()
    )


def test_vmap_over_the_sink_says_that_it_cannot() -> None:
    query, key, value = made()
    with pytest.raises(NotImplementedError, match="vmap over a sink"):
        torch.func.vmap(
            lambda sink: sharpmax.attention(
                query, key, value, policy=Exponential(1.0), enable_gqa=True, sink=sink, impl="cpu"
            )
        )(torch.zeros(3, 4))
