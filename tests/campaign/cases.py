"""Random attention problems of every option, layout, precision and magnitude, by number."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from sharpmax import policies

Kind = Literal["forward", "statistics", "gradient"]
KINDS: tuple[Kind, ...] = ("forward", "statistics", "gradient")

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_MAGNITUDES = ("ordinary", "grid", "sharp", "tiny", "huge", "infinite", "nan")


@dataclass
class Case:
    """One problem.

    Attributes:
        kind: what is compared.
        index: its number; with the seed it makes the case again.
        query, key, value: the tensors, in the layout that is passed on.
        policy: name and parameters, as the oracle takes them.
        options: of the call, with the names of `sharpmax.attention`.
        magnitude: what kind of numbers the logits are.
    """

    kind: Kind
    index: int
    query: Tensor
    key: Tensor
    value: Tensor
    policy: tuple[str, dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)
    magnitude: str = "ordinary"

    def describe(self) -> dict[str, Any]:
        """Describe the case in plain data, for a report of what failed."""
        shown = {
            name: f"{option.dtype} {tuple(option.shape)}" if isinstance(option, Tensor) else option
            for name, option in self.options.items()
        }
        shapes = [tuple(tensor.shape) for tensor in (self.query, self.key, self.value)]
        return {
            "kind": self.kind,
            "index": self.index,
            "shapes": shapes,
            "dtype": str(self.query.dtype),
            "policy": repr(self.policy),
            "options": {name: str(value) for name, value in shown.items()},
            "magnitude": self.magnitude,
        }


def make_case(kind: Kind, seed: int, index: int) -> Case:
    """Make case number `index` of a campaign; the same for the same arguments."""
    draw = random.Random(f"{kind}-{seed}-{index}")
    generator = torch.Generator().manual_seed(draw.getrandbits(48))
    gradient = kind == "gradient"
    dtype = draw.choice(_DTYPES[:2] if gradient else _DTYPES)
    batch, key_heads = draw.choice((1, 1, 2, 3)), draw.choice((1, 1, 2, 3))
    group = draw.choice((1, 1, 2, 3, 4))
    heads = key_heads * group
    queries = draw.choice((1, 1, 2, 3, 5, 9, 17, 26, 49))
    keys = draw.choice((0, 1, 2, 4, 7, 16, 33, 64, 65, 130, 257, 600))
    if gradient:
        queries, keys = min(queries, 17), min(keys, 130)
    width, value_width = draw.choice((1, 2, 5, 8, 24, 33, 64, 96)), draw.choice((1, 3, 8, 17, 40))
    magnitude = draw.choices(_MAGNITUDES, (8, 4, 3, 1, 1, 2, 1))[0]
    if gradient:
        magnitude = draw.choice(("ordinary", "ordinary", "sharp"))
    if dtype not in (torch.float32, torch.float64) and magnitude in ("tiny", "huge"):
        magnitude = "ordinary"

    query = _numbers(draw, generator, (batch, heads, queries, width), magnitude, dtype)
    key = _numbers(draw, generator, (batch, key_heads, keys, width), magnitude, dtype)
    value = torch.randn((batch, key_heads, keys, value_width), generator=generator).to(dtype)
    if magnitude in ("infinite", "nan"):
        _plant(draw, query, key, magnitude)

    options: dict[str, Any] = {"enable_gqa": group > 1 or draw.random() < 0.5}
    options["is_causal"] = draw.random() < 0.4
    options["alignment"] = draw.choice(("upper_left", "lower_right"))
    options["window"] = draw.choice((None, None, None, 1, 2, 7, 64, 10_000))
    options["softcap"] = draw.choice((None, None, None, 0.5, 5.0, 30.0))
    options["scale"] = draw.choice((None, 0.25, 1.0))
    if magnitude in ("grid", "tiny", "huge"):
        options["scale"] = draw.choice((0.25, 1.0))
    mask = _mask(draw, generator, (batch, heads, queries, keys), dtype, magnitude)
    if mask is not None:
        options["attn_mask"] = mask
    if draw.random() < 0.3:
        numbers = torch.float64 if dtype == torch.float64 else torch.float32
        options["sink"] = torch.randn(heads, generator=generator).to(numbers)
        if magnitude == "infinite" and draw.random() < 0.2:
            options["sink"][draw.randrange(heads)] = draw.choice((math.inf, -math.inf))
        options["sink_role"] = draw.choice(("key", "apart"))
    policy = _policy(draw, generator, heads, exact=magnitude in ("grid", "infinite"))
    if policy[0] == "hard":
        options["sink_role"] = "key"
    if kind == "statistics":
        policy = ("identity", {})
    if gradient:
        options["detach_temperature"] = draw.random() < 0.3
    return Case(
        kind,
        index,
        *(_laid_out(draw, tensor) for tensor in (query, key, value)),
        policy=policy,
        options=options,
        magnitude=magnitude,
    )


def library_policy(policy: tuple[str, dict[str, Any]]) -> policies.Policy:
    """Make the library's policy of the oracle's name and parameters."""
    name, given = policy
    if name == "monotone":
        entropies, betas = zip(*given["knots"], strict=True)
        return policies.Monotone(entropies, betas)
    kind = {
        "identity": policies.Identity,
        "constant": policies.Constant,
        "hard": policies.Hard,
        "exponential": policies.Exponential,
        "log_length": policies.LogLength,
        "polynomial": policies.Polynomial,
        "entropy_target": policies.EntropyTarget,
    }
    if name == "paper":
        return policies.Paper(warn=False)
    return kind[name](**given)


def _numbers(
    draw: random.Random,
    generator: torch.Generator,
    shape: tuple[int, ...],
    magnitude: str,
    dtype: torch.dtype,
) -> Tensor:
    if magnitude in ("grid", "infinite"):
        # Quarters, whose sums of products are exact in single precision: ties are ties.
        return (torch.randint(-6, 7, shape, generator=generator) / 4).to(dtype)
    if magnitude in ("tiny", "huge"):
        # One coordinate, so that nothing overflows on the way to a logit that does not.
        numbers = torch.zeros(shape, dtype=torch.float64)
        size = 2.0 ** draw.choice((-74, -64, -40)) if magnitude == "tiny" else 2.0**62
        steps = torch.randint(-6, 7, shape[:-1], generator=generator) / 4
        numbers[..., 0] = size * steps
        return numbers.to(dtype)
    factor = 3.0 if magnitude == "sharp" else 1.0
    return (factor * torch.randn(shape, generator=generator)).to(dtype)


def _plant(draw: random.Random, query: Tensor, key: Tensor, magnitude: str) -> None:
    """Put a few infinities, or one NaN, into query or key."""
    for tensor in (query, key):
        if not tensor.numel() or draw.random() < 0.4:
            continue
        for _ in range(1 if magnitude == "nan" else draw.choice((1, 2, 5))):
            place = tuple(draw.randrange(size) for size in tensor.shape)
            odd = math.nan if magnitude == "nan" else draw.choice((math.inf, -math.inf))
            if magnitude == "infinite":
                # Alone in its vector, and the others without zeros, or IEEE makes it NaN.
                other = key if tensor is query else query
                other[..., place[-1]] = torch.where(
                    other[..., place[-1]] == 0, 0.25, other[..., place[-1]]
                )
                tensor[place[:-1]] = torch.where(
                    torch.isinf(tensor[place[:-1]]), 0.5, tensor[place[:-1]]
                )
            tensor[place] = odd


def _mask(
    draw: random.Random,
    generator: torch.Generator,
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    magnitude: str,
) -> Tensor | None:
    batch, heads, queries, keys = shape
    kind = draw.choice(("none", "none", "boolean", "infinite", "lowest", "bias"))
    if kind == "none":
        return None
    shapes = [shape, (batch, 1, 1, keys), (queries, keys), (1, heads, queries, keys), (keys,)]
    some = draw.choice(shapes)
    share = draw.choice((0.05, 0.5, 0.9, 1.0))
    visible = torch.rand(some, generator=generator) < share
    if kind == "boolean":
        return visible
    if kind == "bias":
        bias = torch.randint(-8, 9, some, generator=generator) / 4
        if magnitude == "ordinary":
            bias = torch.randn(some, generator=generator)
        return bias.to(dtype).masked_fill(~visible, -math.inf)
    hidden = -math.inf if kind == "infinite" else torch.finfo(dtype).min
    return torch.zeros(some, dtype=dtype).masked_fill(~visible, hidden)


def _policy(
    draw: random.Random, generator: torch.Generator, heads: int, *, exact: bool
) -> tuple[str, dict[str, Any]]:
    """A policy; the infinitely sharp one only where logits are exact, so that ties are decided."""

    def number(low: float, high: float) -> Any:
        if draw.random() < 0.7:
            return round(draw.uniform(low, high), 3)
        return low + (high - low) * torch.rand(heads, generator=generator, dtype=torch.float64)

    choices = ["identity", "constant", "exponential", "log_length", "paper", "polynomial"]
    choices += ["monotone", "entropy_target", "exponential", "entropy_target"]
    choices += ["hard"] if exact else []
    name = draw.choice(choices)
    match name:
        case "constant":
            return name, {"beta": number(0.2, 8.0)}
        case "exponential":
            return name, {"reference": number(0.0, 3.0), "strength": number(0.0, 1.2)}
        case "log_length":
            return name, {"scale": number(0.0, 2.0), "train_length": draw.choice((2, 8, 100))}
        case "polynomial":
            return name, {"coefficients": (-0.1, 1.0, 0.5), "threshold": number(0.0, 1.0)}
        case "monotone":
            return name, {"knots": ((0.5, 1.0), (1.0, 1.5), (2.0, 4.0))}
        case "paper":
            return name, {"threshold": 0.5}
        case "entropy_target":
            target = draw.choice((0.0, number(0.05, 3.0), number(0.05, 3.0)))
            return name, {"target": target, "limit": draw.choice((1e6, 14.0, 48.0, 1.0))}
        case _:
            return name, {}


def _laid_out(draw: random.Random, tensor: Tensor) -> Tensor:
    """The same numbers in another layout of memory."""
    match draw.choice(("contiguous", "contiguous", "length first", "columns apart", "part")):
        case "length first":
            return tensor.transpose(1, 2).contiguous().transpose(1, 2)
        case "columns apart":
            return tensor.transpose(2, 3).contiguous().transpose(2, 3)
        case "part":
            return torch.nn.functional.pad(tensor, (3, 2, 1, 4))[:, :, 1:-4, 3:-2]
        case _:
            return tensor
