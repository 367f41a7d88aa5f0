"""Compile the Triton kernels ahead of time, without a device, and read what came out."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import hashlib
import inspect
import io
import itertools
import os
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from experiments.attention_speed.configurations import (
    WITHOUT_PRODUCTS,
    Configuration,
    configurations,
    laid_out,
)
from experiments.common.command import Output, Resume, current_command, show
from experiments.common.timing import read_benchmark, run_steps
from sharpmax._attention.impl.triton.launch import Launch, function
from sharpmax._attention.impl.triton.table import ARCHITECTURES, KERNELS
from sharpmax._files import RefusedError, versions, write_json
from sharpmax.cli._progress import Bars
from sharpmax.report._page.tables import Table

__all__ = [
    "Configuration",
    "compile_kernels",
    "compiled",
    "configurations",
    "drop_stale",
    "faults",
    "fingerprint",
    "table",
]

FILE = "compilation.json"

SHARED = {"sm_80": 99 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}
"""The largest allocation of one program, in bytes; for sm_80 that of sm_86 and sm_89."""

INSTRUCTIONS = {
    "sm_80": r"mma\.sync",
    "sm_90": r"wgmma\.mma_async|mma\.sync",
    "sm_100": r"tcgen05\.mma|mma\.sync",
    "gfx942": r"v_mfma",
}
"""Matrix instructions. Tiles of 16 rows are too small for wgmma and tcgen05, and take mma.sync."""


def compiled(configuration: Configuration) -> dict[str, Any]:
    """Compile a configuration as a launch on that device would; return a record."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    made, architecture = laid_out(configuration), configuration.architecture
    on_amd = architecture.startswith("gfx")
    target = (
        GPUTarget("hip", architecture, 64)
        if on_amd
        else GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32)
    )
    code = function(configuration.kernel)
    with _assembler_log(triton) as log:
        result = triton.compile(
            ASTSource(code, *_signature(code, made)),
            target=target,
            options={"num_warps": made.tile.warps, "num_stages": made.tile.stages},
        )
    text = result.asm["amdgcn" if on_amd else "ptx"]
    said = text if on_amd else log.getvalue()
    products = re.findall(INSTRUCTIONS[architecture], text)
    spills = r"\.vgpr_spill_count:\s*(\d+)" if on_amd else r"(\d+) bytes spill stores"
    return {
        **dataclasses.asdict(configuration),
        "tile": made.tile._asdict(),
        "compiled_from": fingerprint(configuration),
        "registers": _number(r"\.vgpr_count:\s*(\d+)" if on_amd else r"Used (\d+) registers", said),
        "spills": _number(spills, said),
        "shared": int(result.metadata.shared),
        "matrix_instructions": len(products),
        "kinds": sorted({each.split(".")[0] for each in products}),
    }


def fingerprint(configuration: Configuration) -> str:
    """Hash what is compiled: the kernel with all functions that it calls, and how it is launched.

    Comments, docstrings and line numbers do not count.
    """
    made, code = laid_out(configuration), function(configuration.kernel)
    parts = (configuration.architecture, made.tile, _sources(code), *_signature(code, made))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@functools.cache
def _sources(code: Any) -> list[tuple[str, str]]:
    found: dict[str, str] = {}

    def visit(each: Any) -> None:
        tree = ast.parse(textwrap.dedent(inspect.getsource(each.fn)))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:]
        found[each.fn.__name__] = ast.dump(tree)
        for node in ast.walk(tree):
            called = each.fn.__globals__.get(getattr(node, "id", ""))
            if hasattr(called, "fn") and called.fn.__name__ not in found:
                visit(called)

    visit(code)
    return sorted(found.items())


def drop_stale(path: Path) -> None:
    """Remove records of kernels or configurations that have changed since, to be made again."""
    present = {each.name: each for each in configurations()}
    result = read_benchmark(path)
    kept = [
        (name, record)
        for name, record in zip(result["steps"], result["records"], strict=True)
        if name in present and record.get("compiled_from") == fingerprint(present[name])
    ]
    if len(kept) < len(result["steps"]):
        steps, records = ([pair[k] for pair in kept] for k in (0, 1))
        write_json(path, result | {"steps": steps, "records": records})


def _step(configuration: Configuration) -> dict[str, list[dict[str, Any]]]:
    return {"records": [compiled(configuration)]}


def _signature(code: Any, made: Launch) -> tuple[dict[str, str], dict[str, Any], dict[Any, Any]]:
    """Return types, constants and attributes of the arguments, as a launch derives them."""
    from triton.runtime.jit import type_canonicalisation_dict as short

    constants = made.constants | {"BLOCK_M": made.tile.rows, "BLOCK_N": made.tile.keys}
    signature, attributes = {}, {}
    for place, name in enumerate(code.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        argument = made.arguments[name]
        if isinstance(argument, torch.Tensor):
            signature[name] = "*" + short[str(argument.dtype).removeprefix("torch.")]
            attributes[place,] = [["tt.divisibility", 16]]
        elif isinstance(argument, float):
            signature[name] = "fp32"
        elif argument == 1:  # a launch compiles it in
            signature[name], constants[name] = "constexpr", 1
        else:
            signature[name] = "i32"
            if argument % 16 == 0:
                attributes[place,] = [["tt.divisibility", 16]]
    return signature, constants, attributes


@contextlib.contextmanager
def _assembler_log(triton: Any) -> Iterator[io.StringIO]:
    """Catch what NVIDIA's assembler says; nothing comes from a cache."""
    with triton.knobs.nvidia.scope(), triton.knobs.compilation.scope():
        triton.knobs.nvidia.dump_ptxas_log = True
        triton.knobs.compilation.always_compile = True
        log = io.StringIO()
        with contextlib.redirect_stdout(log):
            yield log


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    assert match is not None, f"{pattern} is not in what the compiler wrote: {text[:2000]}"
    return int(match[1])


def faults(record: dict[str, Any]) -> list[str]:
    """Say what is wrong with a compiled kernel."""
    found = []
    if record["spills"]:
        found.append(f"{record['spills']} spilled")
    if record["shared"] > SHARED[record["architecture"]]:
        found.append(f"{record['shared']:,} bytes of shared memory")
    if not record["matrix_instructions"] and record["variant"] not in WITHOUT_PRODUCTS:
        found.append("no matrix instruction")
    return found


def compile_kernels(
    context: typer.Context,
    architecture: Annotated[list[str] | None, typer.Option(help="Only these.")] = None,
    kernel: Annotated[list[str] | None, typer.Option(help="Only these.")] = None,
    width: Annotated[list[int] | None, typer.Option(help="Only these.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only these.")] = None,
    variant: Annotated[list[str] | None, typer.Option(help="Only these.")] = None,
    resume: Resume = False,
    output: Output = Path("build/attention_speed"),
) -> None:
    """Compile the Triton kernels for every architecture of the table, without a device.

    Writes registers, spills, shared memory and matrix instructions to OUTPUT/compilation.json. Ends
    with exit code 1 if a kernel spills, does not fit or has no matrix instruction. A
    configuration takes one to three seconds; options choose some. With --resume, records of
    kernels that have changed since are made again.
    """
    if os.environ.get("TRITON_INTERPRET", "0") == "1":
        raise RefusedError("compile: expected TRITON_INTERPRET to be unset, got 1; unset it")
    wanted = {
        "architecture": architecture,
        "kernel": kernel,
        "width": width,
        "dtype": dtype,
        "variant": variant,
    }
    chosen = [
        each
        for each in configurations()
        if all(
            getattr(each, name) in (some or [getattr(each, name)]) for name, some in wanted.items()
        )
    ]
    if not chosen:
        raise typer.BadParameter(f"expected configurations of the table, got none for {wanted}")
    header = {"experiment": "compilation", "versions": versions(["torch", "triton"])}
    console = Console()
    output.mkdir(parents=True, exist_ok=True)
    if resume and (output / FILE).exists():
        drop_stale(output / FILE)
    with Bars(console, transient=True) as bars:
        bar = bars.add("Compiling", len(chosen))
        result = run_steps(
            output / FILE,
            {"command": current_command(context), **header},
            {each.name: partial(_step, each) for each in chosen},
            resume=resume,
            on_step=lambda number, name: bars.step(bar, number, name),
        )
    show(console, [table(result)], [output / FILE])
    wrong = [record for record in result["records"] if faults(record)]
    for record in wrong:
        console.print(", ".join(str(record[k]) for k in wanted), "; ".join(faults(record)))
    if wrong:
        raise typer.Exit(1)


def table(result: dict[str, Any]) -> Table:
    """Return one row per architecture and kernel: the largest figures over all configurations."""
    rows = []
    every = Counter((each.architecture, each.kernel) for each in configurations())
    for architecture, kernel in itertools.product(ARCHITECTURES, KERNELS):
        records = [
            record
            for record in result["records"]
            if (record["architecture"], record["kernel"]) == (architecture, kernel)
        ]
        if not records:
            continue
        products = [record for record in records if record["variant"] not in WITHOUT_PRODUCTS]
        kinds = sorted({kind for record in records for kind in record["kinds"]})
        most = max(record["shared"] for record in records)
        fewest = min((record["matrix_instructions"] for record in products), default=0)
        rows.append(
            [
                architecture,
                f"`{kernel}`",
                f"{len(records)} of {every[architecture, kernel]}",
                str(max(record["registers"] for record in records)),
                str(sum(record["spills"] > 0 for record in records)),
                f"{most / 1024:.0f} of {SHARED[architecture] // 1024}",
                str(fewest),
                ", ".join(f"`{kind}`" for kind in kinds),
            ]
        )
    header = [
        "architecture",
        "kernel",
        "compiled",
        "most registers",
        "that spill",
        "most shared memory, KiB",
        "fewest matrix instructions",
        "their kinds",
    ]
    triton, torch_version = (result["versions"][name] for name in ("triton", "torch"))
    done = f"{len(result['records'])} of {every.total()} configurations"
    return Table(
        header,
        rows,
        title="Kernels compiled without a device",
        caption=f"{done}, by Triton {triton} and PyTorch {torch_version}."
        f" Written by `{result['command']}`.",
        words=2,
    )
