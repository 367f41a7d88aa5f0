"""Compile the CPU kernels with AddressSanitizer, or run them; see sanitize_attention.sh."""

from __future__ import annotations

import itertools
import math
import random
import sys
from pathlib import Path
from typing import Any

import torch

from sharpmax._attention.impl import _operators
from sharpmax.kernels import _build, _compile

CASES = 1500
DTYPES = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
# The table of parameters of each form.
PARAMETERS = (
    [0.0],
    [1.5],
    [0.0, 1.0, 1.0, math.inf],
    [0.5, 0.0, -0.037, 0.481, -2.3, 4.917, -1.791],
    [0.7],
    [1.0, 50.0],
    [0.0],
)


def compile_with_sanitizer(folder: Path) -> None:
    """Compile the kernels with the sanitizer into `folder`."""
    compiler = _compile.find_compiler()
    if compiler is None:
        raise SystemExit("no C++ compiler")
    extra = ["-O1", "-g1", "-fsanitize=address", "-fno-omit-frame-pointer"]
    _compile.compile_library(compiler, folder / _compile.LIBRARY, extra=extra)


def tensor(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Return random numbers that are contiguous, transposed, or inside a larger tensor."""
    batch, heads, length, width = shape
    kind = random.randrange(4)
    if kind == 1:
        return torch.randn(batch, length, heads, width).to(dtype).transpose(1, 2)
    if kind == 2:
        return torch.randn(batch, heads, width, length).to(dtype).transpose(2, 3)
    if kind == 3:
        return torch.randn(batch, heads, length + 1, width + 1).to(dtype)[:, :, 1:, 1:]
    return torch.randn(*shape).to(dtype)


def visibility(shape: tuple[int, int, int, int], dtype: torch.dtype) -> torch.Tensor | None:
    """Return a mask of a random kind and layout, or none."""
    batch, heads, length, keys = shape
    kind = random.randrange(6)
    if kind == 0:
        return torch.rand(batch, 1, 1, keys).lt(0.6).expand(shape)
    if kind == 1:
        return torch.rand(1, heads, length, keys).lt(0.6).expand(shape)
    if kind == 2:
        return torch.randn(batch, 1, keys, length).to(dtype).transpose(2, 3).expand(shape)
    if kind == 3:
        return torch.zeros(shape, dtype=dtype).masked_fill(
            torch.rand(shape).lt(0.4), torch.finfo(dtype).min
        )
    return None


def run_case() -> None:
    """Call every function of the library on one random problem."""
    dtype = random.choice(DTYPES)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    batch, key_heads, group = (
        random.choice((0, 1, 1, 2)),
        random.choice((1, 2, 3)),
        random.choice((1, 1, 2, 4)),
    )
    heads = key_heads * group
    length = random.choice((0, 1, 1, 2, 3, 8, 9, 23, 24, 25, 49, 97, 100))
    keys = random.choice((0, 1, 2, 3, 5, 63, 64, 65, 127, 129, 511, 513, 1030))
    width, value_width = (
        random.choice((1, 3, 7, 8, 9, 17, 64)),
        random.choice((1, 3, 4, 5, 8, 13, 25, 64)),
    )
    query = tensor(batch, heads, length, width, dtype=dtype)
    key = tensor(batch, key_heads, keys, width, dtype=dtype)
    value = tensor(batch, key_heads, keys, value_width, dtype=dtype)
    mask = visibility((batch, heads, length, keys), dtype)
    if mask is not None and random.random() < 0.1 and mask.is_floating_point() and mask.numel():
        mask = mask.clone(memory_format=torch.contiguous_format)
        mask.view(-1)[random.randrange(mask.numel())] = random.choice((math.inf, math.nan))
    sink = torch.randn(heads, dtype=wide) if random.random() < 0.3 else None
    settings: tuple[Any, ...] = (
        width**-0.5,
        random.choice((0.0, 0.0, 5.0)),
        random.choice((-1, -1, 0, 10)),
        random.choice((-1, 0, 0, 3)),
        random.choice((0, keys - length, -2, 7)),
        random.random() < 0.5,
    )
    policy = random.randrange(len(PARAMETERS))
    parameters = torch.tensor([PARAMETERS[policy]] * random.choice((1, heads)), dtype=torch.float64)
    beta = torch.rand(batch, heads, length, dtype=wide) + 0.5 if policy == 0 else None
    _operators.statistics_now(query, key, mask, sink, *settings)
    output, maximum, _, _, _, beta, logmass = _operators.attention_now(
        query, key, value, mask, sink, beta, parameters, policy, True, *settings
    )
    upstream = tensor(batch, heads, length, value_width, dtype=dtype)
    rows = (
        [torch.randn(batch, heads, length, dtype=wide) for _ in range(4)]
        if random.random() < 0.5
        else [None] * 4
    )
    of_logmass = torch.randn_like(logmass) if random.random() < 0.5 else None
    wanted = mask is not None and mask.is_floating_point()
    given = (
        upstream, of_logmass, query, key, value, mask, sink, output, beta, logmass, maximum
    )  # fmt: skip
    _operators._attention_backward(*given, *rows, wanted, *settings)
    _operators._row_gradient(*given, *settings)


def main() -> None:
    """Compile or run, as the first argument says, in the folder that the second names."""
    action, folder = sys.argv[1], Path(sys.argv[2])
    if action == "compile":
        compile_with_sanitizer(folder)
        return
    _build._HERE = folder  # as if the package had shipped it
    for number, threads in zip(range(CASES), itertools.cycle((1, 2, 3)), strict=False):
        torch.set_num_threads(threads)
        random.seed(number)
        torch.manual_seed(number)
        run_case()
    sys.stdout.write(f"{CASES} cases\n")


if __name__ == "__main__":
    main()
