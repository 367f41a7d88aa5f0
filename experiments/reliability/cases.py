"""Random attention problems of every option, layout, precision and magnitude, by number."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from sharpmax import policies

__all__ = ["KINDS", "PERIOD", "Case", "Kind", "library_policy", "make_case"]

Kind = Literal["forward", "statistics", "gradient", "odd", "compiled"]

SHARES: dict[Kind, int] = {
    "forward": 340,
    "statistics": 100,
    "gradient": 40,
    "odd": 19,
    "compiled": 1,
}
"""How many of 500 cases are of each kind."""

KINDS = tuple(SHARES)
PERIOD = sum(SHARES.values())
_PATTERN = [kind for kind, share in SHARES.items() for _ in range(share)]
random.Random(0).shuffle(_PATTERN)

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_MAGNITUDES = ("ordinary", "grid", "sharp", "tiny", "huge", "infinite", "nan")

_LOGITS = 12_000
"""Few cases have more logits than this, so that many cases are tried in little time."""


@dataclass
class Case:
    """One problem.

    Attributes:
        kind: what is compared.
        seed: of the campaign.
        index: its number; with the seed it makes the case again.
        query: as it is passed on, in any layout.
        key: likewise.
        value: likewise.
        policy: name and parameters, as the oracle takes them.
        options: of the call, with the names of `sharpmax.attention`.
        magnitude: what kind of numbers the logits are.
    """

    kind: Kind
    seed: int
    index: int
    query: Tensor
    key: Tensor
    value: Tensor
    policy: tuple[str, dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)
    magnitude: str = "ordinary"

    @property
    def dtype(self) -> str:
        """Name of the dtype."""
        return str(self.query.dtype).removeprefix("torch.")

    def describe(self) -> dict[str, Any]:
        """Describe the case in plain data, for a report of what failed."""
        shown = {
            name: f"{option.dtype} {tuple(option.shape)}" if isinstance(option, Tensor) else option
            for name, option in self.options.items()
        }
        shapes = [tuple(tensor.shape) for tensor in (self.query, self.key, self.value)]
        return {
            "kind": self.kind,
            "seed": self.seed,
            "index": self.index,
            "shapes": str(shapes),
            "dtype": self.dtype,
            "policy": repr(self.policy),
            "options": {name: str(value) for name, value in shown.items() if value is not None},
            "magnitude": self.magnitude,
        }


@dataclass
class _Sizes:
    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    value_width: int


def make_case(seed: int, index: int) -> Case:
    """Make case number `index` of a campaign; the same for the same arguments.

    Example:
        >>> make_case(17, 3).query.equal(make_case(17, 3).query)
        True
    """
    kind = _PATTERN[index % PERIOD]
    draw = random.Random(f"{kind}-{seed}-{index}")
    generator = torch.Generator().manual_seed(draw.getrandbits(48))
    gradient = kind == "gradient"
    dtype = draw.choices(_DTYPES, (4, 4, 1, 1) if gradient else (1, 1, 1, 1))[0]
    sizes = _sizes(draw, gradient)
    heads = sizes.heads
    magnitude = draw.choices(_MAGNITUDES, (8, 4, 3, 1, 1, 2, 1))[0]
    if gradient:
        magnitude = draw.choice(("ordinary", "ordinary", "sharp"))
    if dtype not in (torch.float32, torch.float64) and magnitude in ("tiny", "huge"):
        magnitude = "ordinary"

    shape = (sizes.batch, heads, sizes.queries, sizes.width)
    query = _numbers(draw, generator, shape, magnitude, dtype)
    shape = (sizes.batch, sizes.key_heads, sizes.keys, sizes.width)
    key = _numbers(draw, generator, shape, magnitude, dtype)
    value = torch.randn((*shape[:3], sizes.value_width), generator=generator).to(dtype)
    if magnitude in ("infinite", "nan"):
        _plant(draw, query, key, magnitude)

    options: dict[str, Any] = {"enable_gqa": heads != sizes.key_heads or draw.random() < 0.5}
    options["is_causal"] = draw.random() < 0.4
    options["alignment"] = draw.choice(("upper_left", "lower_right"))
    options["window"] = draw.choice((None, None, None, 1, 2, 7, 64, 10_000))
    options["softcap"] = draw.choice((None, None, None, 0.5, 5.0, 30.0))
    options["scale"] = draw.choice((None, 0.25, 1.0))
    if magnitude in ("grid", "infinite", "tiny", "huge"):
        options["scale"] = draw.choice((0.25, 1.0))
    whole = (sizes.batch, heads, sizes.queries, sizes.keys)
    mask = _mask(draw, generator, whole, dtype, magnitude)
    if mask is not None:
        options["attn_mask"] = mask
    if draw.random() < 0.3:
        numbers = torch.float64 if dtype == torch.float64 else torch.float32
        options["sink"] = torch.randn(heads, generator=generator).to(numbers)
        if heads and magnitude == "infinite" and draw.random() < 0.2:
            options["sink"][draw.randrange(heads)] = draw.choice((math.inf, -math.inf))
        options["sink_role"] = draw.choice(("key", "apart"))
    if draw.random() < 0.15:
        _spoil_values(draw, value, everywhere=not gradient, options=options)
    policy = _policy(draw, generator, heads, exact=magnitude in ("grid", "infinite"))
    if policy[0] == "hard":
        options["sink_role"] = "key"
    if kind == "statistics":
        policy = ("identity", {})
    if gradient:
        options["detach_temperature"] = draw.random() < 0.3
    query, key, value = (_laid_out(draw, tensor) for tensor in (query, key, value))
    return Case(kind, seed, index, query, key, value, policy, options, magnitude)


def _sizes(draw: random.Random, gradient: bool) -> _Sizes:
    """Sizes around those of blocks, panels and chunks, none in a few cases."""
    batch, key_heads = draw.choice((1, 1, 2, 3)), draw.choice((1, 1, 2, 3))
    group = draw.choice((1, 1, 2, 3, 4, 8))
    queries = draw.choice((1, 1, 2, 3, 5, 9, 17, 26, 49, 100))
    keys = draw.choice((0, 1, 2, 4, 7, 16, 33, 64, 65, 130, 257, 513, 1100))
    most = 30 * _LOGITS if draw.random() < 0.01 else _LOGITS
    if gradient:
        keys, most = min(keys, 257), _LOGITS // 2
    while batch * key_heads * group * queries * keys > most:
        match max((batch, "batch"), (key_heads, "heads"), (group, "group"), (queries, "queries")):
            case number, "batch":
                batch = number // 2
            case number, "heads":
                key_heads = number // 2
            case number, "group":
                group = number // 2
            case number, _:
                queries = number // 2
    width, value_width = draw.choice((1, 2, 5, 8, 24, 33, 64, 96)), draw.choice((1, 3, 8, 17, 40))
    sizes = _Sizes(batch, key_heads * group, key_heads, queries, keys, width, value_width)
    if draw.random() < 0.03:
        match draw.choice(("batch", "heads", "queries", "keys", "width", "value_width")):
            case "heads":
                sizes.heads = sizes.key_heads = 0
            case name:
                setattr(sizes, name, 0)
    return sizes


def _spoil_values(
    draw: random.Random, value: Tensor, *, everywhere: bool, options: dict[str, Any]
) -> None:
    """Put NaN or infinities into values: of hidden keys, and perhaps of visible ones."""
    keys = value.shape[2]
    mask = options.get("attn_mask")
    if not value.numel():
        return
    if mask is not None:
        hidden = mask <= 0.5 * torch.finfo(mask.dtype).min if mask.is_floating_point() else ~mask
        nowhere = hidden.reshape(-1, keys).all(0)
        for place in nowhere.nonzero()[:, 0].tolist():
            value[:, :, place] = draw.choice((math.nan, math.inf, -math.inf))
    if everywhere:
        place = tuple(draw.randrange(size) for size in value.shape)
        value[place] = draw.choice((math.nan, math.inf, -math.inf))


def library_policy(policy: tuple[str, dict[str, Any]]) -> policies.Policy:
    """Make the library's policy of the oracle's name and parameters."""
    name, given = policy
    if name == "monotone":
        entropies, betas = zip(*given["knots"], strict=True)
        return policies.Monotone(entropies, betas)
    kind: dict[str, type[policies.Policy]] = {
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
        numbers[..., :1] = size * steps[..., None]
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
