"""Attention problems of every kind, drawn at random, and what to compare them with."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

import sharpmax
from attention_adapters import NAMES, adapted
from sharpmax._attention.api import IMPLEMENTATIONS
from sharpmax.policies import (
    Constant,
    EntropyTarget,
    Exponential,
    Hard,
    Identity,
    LogLength,
    Monotone,
    Paper,
    Policy,
    Polynomial,
)
from triton_interpreter import missing

SLOW = {"triton": 12, "jax cpu": 12}
"""By how much tests take fewer examples: these are interpreted, or compile for every shape."""
SLOW |= {name: 60 for name in NAMES if name.startswith("jax") and name not in SLOW}
SLOW |= {name: 12 for name in NAMES if name.startswith("ranks")}

WITHOUT = {
    "triton": {torch.float64},
    "jax pallas_tpu": {torch.float64, torch.float16},
    "jax pallas_gpu": {torch.float64},
}
"""The dtypes that an implementation documents not to serve."""

POLICIES = [
    Identity(),
    Paper(warn=False),
    Polynomial((-0.1, 1.0, 0.5), threshold=0.3),
    Exponential(reference=1.0),
    EntropyTarget(target=1.0),
    LogLength(train_length=8),
    Constant(2.0),
    Constant(1 / 3),
    Hard(),
    Monotone((0.5, 1.0, 2.0), (1.0, 1.5, 4.0)),
]
FEW_POLICIES = [Exponential(reference=1.0), LogLength(train_length=8), Hard()]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
EVERY = [*IMPLEMENTATIONS, *NAMES]
"""The implementations for tensors, and those that adapters reach."""


def attend(*args: Any, impl: str, **kwargs: Any) -> Any:
    """As `sharpmax.attention`; where an implementation refuses an argument, by the reference.

    A refusal names the implementation and an argument that was given. NumPy arrays have no
    gradient, so that tensors that require one go to the reference as well.
    """
    try:
        return run(*args, impl=impl, **kwargs)
    except NotImplementedError as error:
        refusal = str(error)
    name, argument = refusal.split(": ")[:2]
    assert name == f"impl={impl!r}"
    given = inspect.signature(sharpmax.attention).bind(*args, **kwargs).arguments
    assert given.get(argument) is not None, refusal
    assert impl != "reference"
    return sharpmax.attention(*args, impl="reference", **kwargs)


def run(*args: Any, impl: str, **kwargs: Any) -> Any:
    """As `sharpmax.attention`, also with the implementation "numpy"."""
    return _called(sharpmax.attention, *args, impl=impl, **kwargs)


def measure(*args: Any, impl: str, **kwargs: Any) -> sharpmax.RowStatistics:
    """As `sharpmax.attention_statistics`, also with the implementation "numpy"."""
    measured: sharpmax.RowStatistics = _called(
        sharpmax.attention_statistics, *args, impl=impl, **kwargs
    )
    return measured


def _called(function: Any, *args: Any, impl: str, **kwargs: Any) -> Any:
    if impl in NAMES:
        return adapted(impl, function, *args, **kwargs)
    return function(*args, impl=impl, **kwargs)


def _parameter(impl: str, *others: Any) -> Any:
    reason = missing() if impl == "triton" else None
    marks = pytest.mark.skipif(reason is not None, reason=reason or "")
    return pytest.param(impl, *others, marks=marks, id="-".join([impl, *map(repr, others)]))


def implementations(*without: str) -> pytest.MarkDecorator:
    """Parametrise a test by `impl`: all implementations but those named, or those of a room."""
    chosen = [impl for impl in EVERY if not {impl, impl.split()[0]} & {*without}]
    return pytest.mark.parametrize("impl", [_parameter(impl) for impl in chosen])


every_impl = implementations()
"""Every implementation, those to come included."""


def of_tensors(*without: str) -> pytest.MarkDecorator:
    """As `implementations`, without adapters: for what only PyTorch has."""
    return implementations(*without, *(name.split()[0] for name in NAMES))


def implementations_and_policies(*without: str) -> pytest.MarkDecorator:
    """Parametrise a test by `impl` and `policy`: all policies, or a few if they are slow."""
    return pytest.mark.parametrize(
        ("impl", "policy"),
        [
            _parameter(impl, policy)
            for impl in EVERY
            if not {impl, impl.split()[0]} & {*without}
            for policy in (FEW_POLICIES if impl in SLOW else POLICIES)
        ],
    )


every_impl_and_policy = implementations_and_policies()


def examples(impl: str, count: int) -> settings:
    """The settings of hypothesis for so many examples, or a few if they are slow."""
    return settings(max_examples=max(count // SLOW.get(impl, 1), 3))


def may_refuse(impl: str, dtype: torch.dtype, options: dict[str, Any] | None = None) -> bool:
    """Whether an implementation documents that it does not serve all problems of a kind."""
    if impl.startswith("jax") and options and "sink" in options:
        return dtype in WITHOUT.get(impl, ()) or options["sink_role"] == "apart"
    return impl in ("composed", "ranks ulysses") or dtype in WITHOUT.get(impl, ())


def precise(impl: str) -> torch.dtype:
    """The most precise dtype that an implementation serves."""
    return torch.float32 if torch.float64 in WITHOUT.get(impl, ()) else torch.float64


@dataclass(repr=False)
class Case:
    """The arguments of one call."""

    query: Tensor
    key: Tensor
    value: Tensor
    policy: Policy
    options: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        shapes = [tuple(x.shape) for x in (self.query, self.key, self.value)]
        options = {
            name: (tuple(option.shape), option.dtype) if isinstance(option, Tensor) else option
            for name, option in self.options.items()
        }
        return f"Case({shapes}, {self.query.dtype}, {self.policy!r}, {options})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What hypothesis prints of a failing case: not every number of its tensors."""
        printer.text(repr(self))

    def run(self, impl: str) -> tuple[Tensor, sharpmax.RowStatistics]:
        return run(
            self.query,
            self.key,
            self.value,
            policy=self.policy,
            impl=impl,
            return_statistics=True,
            **self.options,
        )

    def exact(self) -> tuple[Tensor, sharpmax.RowStatistics]:
        """The specification in double precision, on the very numbers that the case holds."""
        return self.double().run("reference")

    def double(self) -> Case:
        """The same numbers in double precision."""
        options = {
            name: option.double() if _is_floating(option) else option
            for name, option in self.options.items()
        }
        mask = self.options.get("attn_mask")
        if _is_floating(mask):
            # finfo.min of a smaller type is an ordinary number in double precision.
            hidden = mask <= 0.5 * torch.finfo(mask.dtype).min
            options["attn_mask"] = mask.double().masked_fill(hidden, -torch.inf)
        return Case(
            self.query.double(), self.key.double(), self.value.double(), self.policy, options
        )


def _is_floating(option: Any) -> bool:
    return isinstance(option, Tensor) and option.is_floating_point()


@st.composite
def cases(
    draw: st.DrawFn, policies: list[Policy] = POLICIES, dtypes: list[torch.dtype] = DTYPES
) -> Case:
    """A problem of any shape, layout, dtype, mask and policy."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    dtype = draw(st.sampled_from(dtypes))
    batch = draw(st.sampled_from([0, 1, 2]))
    key_heads = draw(st.sampled_from([1, 2]))
    group = draw(st.sampled_from([1, 2, 4]))
    heads = key_heads * group
    queries = draw(st.sampled_from([0, 1, 1, 2, 7, 24, 25, 70]))
    keys = draw(st.sampled_from([0, 1, 3, 24, 64, 129, 300]))
    width = draw(st.sampled_from([1, 3, 8, 16, 33, 64]))
    value_width = draw(st.sampled_from([1, 5, 8, 16, 40]))

    def tensor(*shape: int) -> Tensor:
        return _laid_out(draw, torch.randn(shape, generator=generator).to(dtype))

    options: dict[str, Any] = {
        "enable_gqa": True,
        "is_causal": draw(st.booleans()),
        "alignment": draw(st.sampled_from(["upper_left", "lower_right"])),
        "window": draw(st.sampled_from([None, None, 1, 5, 100])),
        "softcap": draw(st.sampled_from([None, None, 1.5])),
        "scale": draw(st.sampled_from([None, 0.5, 1.0])),
    }
    shape = draw(
        st.sampled_from([(batch, heads, queries, keys), (batch, 1, 1, keys), (queries, keys), (1,)])
    )
    visible = torch.rand(shape, generator=generator) < 0.7
    match draw(st.sampled_from(["none", "boolean", "infinite", "lowest", "bias"])):
        case "boolean":
            options["attn_mask"] = visible
        case "infinite":
            options["attn_mask"] = torch.zeros(shape, dtype=dtype).masked_fill(~visible, -torch.inf)
        case "lowest":
            lowest = torch.finfo(dtype).min
            options["attn_mask"] = torch.zeros(shape, dtype=dtype).masked_fill(~visible, lowest)
        case "bias":
            bias = torch.randn(shape, generator=generator).to(dtype)
            options["attn_mask"] = bias.masked_fill(~visible, -torch.inf)
    policy = draw(st.sampled_from(policies))
    if draw(st.booleans()):
        options["sink"] = torch.randn(heads, generator=generator)
        hard = isinstance(policy, Hard)
        options["sink_role"] = "key" if hard else draw(st.sampled_from(["key", "apart"]))
    return Case(
        tensor(batch, heads, queries, width),
        tensor(batch, key_heads, keys, width),
        tensor(batch, key_heads, keys, value_width),
        policy,
        options,
    )


def _laid_out(draw: st.DrawFn, tensor: Tensor) -> Tensor:
    """The same numbers in another layout of memory."""
    match draw(st.sampled_from(["contiguous", "length first", "columns apart", "part"])):
        case "length first":  # as a model has them before it transposes
            return tensor.transpose(1, 2).contiguous().transpose(1, 2)
        case "columns apart":
            return tensor.transpose(2, 3).contiguous().transpose(2, 3)
        case "part":  # rows of a larger tensor, not at its start
            return torch.nn.functional.pad(tensor, (3, 2, 1, 4))[:, :, 1:-4, 3:-2]
        case _:
            return tensor


def largest_error(values: Tensor, exact: Tensor) -> float:
    """The largest distance, where NaN and infinities have to be the same."""
    values, exact = values.double(), exact.double()
    special = ~torch.isfinite(exact)
    assert torch.equal(torch.isnan(values), torch.isnan(exact))
    assert torch.equal(values[torch.isinf(exact)], exact[torch.isinf(exact)])
    distance = (values - exact).masked_fill(special, 0.0).abs()
    return float(distance.max()) if distance.numel() else 0.0
