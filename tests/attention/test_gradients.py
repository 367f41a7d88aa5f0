"""Gradients: against finite differences, and against the specification."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

import sharpmax
from attention_cases import (
    WITHOUT,
    Case,
    attend,
    cases,
    examples,
    implementations,
    implementations_and_policies,
    may_refuse,
    of_tensors,
    precise,
)
from sharpmax.policies import (
    Constant,
    EntropyTarget,
    Exponential,
    Hard,
    LogLength,
    Monotone,
    Policy,
    Polynomial,
)


def made(seed: int = 0, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    query = 2 * torch.randn(1, 4, 5, 3, generator=generator, dtype=torch.float64)
    key, value = torch.randn(2, 1, 2, 7, 3, generator=generator, dtype=torch.float64).unbind()
    return [x.to(dtype).requires_grad_() for x in (query, key, value)]


@pytest.mark.parametrize("detach", [False, True])
@implementations_and_policies("reference", "composed", "numpy", "jax", "ranks")
def test_gradcheck(impl: str, policy: Policy, detach: bool) -> None:
    query, key, value = made(dtype=precise(impl))
    bias = torch.randn(4, 5, 7, dtype=query.dtype, requires_grad=True)
    sink = torch.randn(4, dtype=query.dtype, requires_grad=True)

    def function(query, key, value, bias, sink):
        return sharpmax.attention(
            query, key, value, policy=policy, attn_mask=bias, sink=sink, softcap=3.0, impl=impl,
            enable_gqa=True, detach_temperature=detach,
        )  # fmt: skip

    single = precise(impl) == torch.float32  # too rough for finite differences
    if single or (detach and not isinstance(policy, Constant | Hard)):
        # Finite differences see the temperature move; the specification knows it is held.
        _compare_with_reference(
            Case(query, key, value, policy, {"attn_mask": bias, "sink": sink, "softcap": 3.0}),
            detach=detach,
            impl=impl,
        )
        return
    # The kernel that solves for a target does so to 1e-4 nats: its finite differences are rough.
    tolerance = 2e-2 if isinstance(policy, EntropyTarget) else 1e-5
    if isinstance(policy, EntropyTarget):
        _compare_with_reference(
            Case(query, key, value, policy, {"attn_mask": bias, "sink": sink}),
            tolerance=tolerance,
            impl=impl,
        )
    else:
        assert torch.autograd.gradcheck(function, (query, key, value, bias, sink), atol=tolerance)


@of_tensors()
@pytest.mark.parametrize(
    "make",
    [
        lambda p: Exponential(p.abs()),
        lambda p: Exponential(0.5, strength=p.abs()),
        lambda p: Constant(1 / (p.abs() + 0.2)),
        lambda p: LogLength(p.abs() + 1.0),
        lambda p: EntropyTarget(0.5 + 0.2 * p.abs()),
        lambda p: EntropyTarget(0.0, 1.0 + p.abs()),
        lambda p: Polynomial(torch.stack([p[0] * 0 + 1.0, p[1]]), threshold=0.1),
        lambda p: Monotone(
            torch.stack([0.2 * p.abs() + 0.1, 0.2 * p.abs() + 1.0], -1),
            torch.stack([0 * p + 1.0, p.abs() + 1.5], -1),
        ),
    ],
    ids=["reference", "strength", "theta", "scale", "target", "limit", "coefficients", "knots"],
)
def test_gradients_of_the_policys_parameters(impl: str, make) -> None:
    query, key, value = (x.detach() for x in made(dtype=precise(impl)))
    parameter = torch.tensor([0.3, 0.9, 0.5, 0.7], dtype=torch.float64, requires_grad=True)
    gradients = {}
    for which in ("reference", impl):
        try:
            output = sharpmax.attention(
                query, key, value, policy=make(parameter), enable_gqa=True, impl=which
            )
        except NotImplementedError:
            assert may_refuse(impl, query.dtype)
            return
        (gradients[which],) = torch.autograd.grad(output.square().sum(), parameter)
    assert gradients["reference"].abs().max() > 0
    torch.testing.assert_close(gradients[impl], gradients["reference"], atol=2e-3, rtol=2e-3)
    if impl == "reference" and not isinstance(make(parameter), EntropyTarget):
        assert torch.autograd.gradcheck(
            lambda p: sharpmax.attention(
                query, key, value, policy=make(p), enable_gqa=True, impl="reference"
            ),
            parameter,
        )


@of_tensors("reference")
def test_a_law_without_strength_can_gain_some(impl: str) -> None:
    query, key, value = (x.detach() for x in made(dtype=precise(impl)))
    strength = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    gradients = {}
    for which in ("reference", impl):
        policy = Exponential(0.5, strength=strength)
        output = sharpmax.attention(query, key, value, policy=policy, enable_gqa=True, impl=which)
        (gradients[which],) = torch.autograd.grad(output.square().sum(), strength)
    assert gradients["reference"].abs().min() > 0
    torch.testing.assert_close(gradients[impl], gradients["reference"], atol=2e-3, rtol=2e-3)


@implementations("reference", "composed", "numpy")
def test_gradients_agree_with_the_specification(impl: str) -> None:
    dtypes = [torch.float32] if impl in WITHOUT else [torch.float32, torch.float64]

    def check(case: Case) -> None:
        tolerance = 2e-2 if isinstance(case.policy, EntropyTarget) else None
        _compare_with_reference(case, tolerance=tolerance, impl=impl)

    examples(impl, 120)(given(case=cases(dtypes=dtypes))(check))()


@implementations_and_policies("reference", "composed", "numpy")
def test_half_precision_gradients(impl: str, policy: Policy) -> None:
    query, key, value = (x.detach().bfloat16().requires_grad_() for x in made())
    output = attend(query, key, value, policy=policy, enable_gqa=True, impl=impl)
    output.float().square().sum().backward()
    for tensor in (query, key, value):
        assert tensor.grad is not None
        assert tensor.grad.dtype == torch.bfloat16
        assert torch.isfinite(tensor.grad).all()


@pytest.mark.parametrize("hidden", [0.5, float("inf")])
@pytest.mark.parametrize("queries", [64, 77])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_gradients_of_many_rows_in_bfloat16(queries: int, hidden: float, softcap: float) -> None:
    """Products in bfloat16, where there are such; a hidden key that is infinite forbids them."""
    generator = torch.Generator().manual_seed(queries)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(1, *shape, generator=generator).bfloat16()

    query, key, value = draw(4, queries, 10), draw(2, 90, 10), draw(2, 90, 6)
    upstream = draw(4, queries, 6)
    mask = torch.rand(queries, 90, generator=generator) < 0.7
    mask[0], mask[:, 5] = False, False
    key[:, :, 5], value[:, :, 5] = hidden, hidden
    found = {}
    for impl, dtype in (("cpu", torch.bfloat16), ("reference", torch.float64)):
        leaves = [x.detach().to(dtype).requires_grad_() for x in (query, key, value)]
        beta = torch.tensor([0.7, 1.0, 1.5, 2.0], dtype=torch.float64).requires_grad_()
        output = sharpmax.attention(
            *leaves, mask, policy=Constant(beta), softcap=softcap, enable_gqa=True, impl=impl
        )
        found[impl] = torch.autograd.grad(output, [*leaves, beta], upstream.to(dtype))
    for ours, exact in zip(*found.values(), strict=True):
        assert (ours - exact).norm() <= 0.01 * exact.norm()
    assert (found["cpu"][0][:, :, 0] == 0).all()


@of_tensors("reference", "composed")
def test_no_second_derivative_but_a_word(impl: str) -> None:
    query, key, value = made(dtype=precise(impl))
    output = sharpmax.attention(
        query, key, value, policy=Exponential(1.0), enable_gqa=True, impl=impl
    )
    (gradient,) = torch.autograd.grad(output.square().sum(), query, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        gradient.sum().backward()


def _compare_with_reference(
    case: Case, impl: str, detach: bool = False, tolerance: float | None = None
) -> None:
    """Gradients of every tensor of the case, by the kernels and by the specification."""
    options = dict(case.options)
    tensors = {"query": case.query, "key": case.key, "value": case.value}
    for name in ("attn_mask", "sink"):
        if isinstance(options.get(name), torch.Tensor) and options[name].is_floating_point():
            tensors[name] = options.pop(name)
    gradients = {}
    for which in ("reference", impl):
        leaves = {name: x.detach().clone().requires_grad_() for name, x in tensors.items()}
        output = attend(
            **leaves,
            **(options | {"enable_gqa": True}),
            policy=case.policy,
            impl=which,
            detach_temperature=detach,
        )
        weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
        gradients[which] = torch.autograd.grad(
            (output * weights).sum(), list(leaves.values()), allow_unused=True
        )
    if tolerance is None:
        tolerance = 1e-8 if case.query.dtype == torch.float64 else 2e-4
    for name, ours, theirs in zip(tensors, gradients[impl], gradients["reference"], strict=True):
        theirs = torch.zeros_like(tensors[name]) if theirs is None else theirs
        ours = torch.zeros_like(tensors[name]) if ours is None else ours
        size = 1.0 + float(theirs.abs().max()) if theirs.numel() else 1.0
        torch.testing.assert_close(
            ours,
            theirs,
            atol=tolerance * size,
            rtol=0,
            msg=lambda text, name=name: f"{name}: {text}",
        )
