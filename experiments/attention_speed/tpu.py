"""Compile the Pallas kernels for TPUs ahead of time, without a device."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import requires
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from experiments.common.command import Output, Resume, current_command, show
from experiments.common.timing import read_benchmark, run_steps
from sharpmax._files import RefusedError, versions
from sharpmax.cli._progress import Bars
from sharpmax.policies import Constant, EntropyTarget, Exponential, Policy
from sharpmax.report._page.tables import Table

__all__ = ["FILE", "Configuration", "compile_tpu", "compiled", "configurations", "tpu_tables"]

FILE = "tpu.json"
LENGTH, HEADS, KEY_HEADS = 2048, 4, 2

TOPOLOGIES = {
    "v4": "v4:2x2x1",
    "v5e": "v5e:2x2",
    "v5p": "v5p:2x2x1",
    "v6e": "v6e:2x2",
    "7x": "tpu7x:2x2x1",
}
"""What libtpu calls one host of each generation."""

VARIANTS: dict[str, tuple[Policy, dict[str, Any]]] = {
    "causal": (Exponential(1.0), {"is_causal": True}),
    "window, soft cap, bias": (
        Exponential(1.0), {"local_window_size": 512, "logits_soft_cap": 30.0},
    ),
    "one pass": (Constant(2.0), {}),
    "entropy target": (EntropyTarget(1.0), {}),
}  # fmt: skip
"""Together they take every kernel: two that measure, two that attend, and the backward ones."""

ALL = tuple(TOPOLOGIES)
SHAPES: dict[tuple[str, str, int], tuple[str, ...]] = {
    ("causal", "bfloat16", 128): ALL,
    ("causal", "float32", 512): ALL,
    ("window, soft cap, bias", "bfloat16", 64): ALL,
    ("one pass", "bfloat16", 128): ("v4", "v5e"),
    ("entropy target", "float32", 128): ("v5e",),
}
"""Generations by variant, dtype and width; float32 at width 512 takes the most memory."""


@dataclass(frozen=True)
class Configuration:
    """One compilation: attention and its gradient for one generation of TPUs."""

    generation: str
    variant: str
    dtype: str
    width: int

    @property
    def name(self) -> str:
        return f"{self.generation}, {self.variant}, {self.dtype}, {self.width}"


def configurations() -> list[Configuration]:
    """Return all of them."""
    return [
        Configuration(generation, *shape)
        for shape, generations in SHAPES.items()
        for generation in generations
    ]


def compiled(configuration: Configuration) -> dict[str, Any]:
    """Compile a configuration with the compiler of TPUs; return a record."""
    import jax
    import jax.numpy as jnp

    from sharpmax.jax import attention
    from sharpmax.jax.impl import _pallas

    policy, options = VARIANTS[configuration.variant]
    shapes = [(1, LENGTH, heads, configuration.width) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    if "bias" in configuration.variant:
        shapes.append((1, HEADS, 1, LENGTH))

    def loss(*arrays: Any) -> Any:
        output = attention(*arrays, policy=policy, implementation="pallas_tpu", **options)
        return (output.astype(jnp.float32) ** 2).sum()

    with _device(TOPOLOGIES[configuration.generation]) as device:
        where = jax.sharding.SingleDeviceSharding(device)
        arrays = [jax.ShapeDtypeStruct(x, configuration.dtype, sharding=where) for x in shapes]
        _pallas.ELSEWHERE = True
        try:
            gradient = jax.jit(jax.value_and_grad(loss, tuple(range(len(arrays)))))
            lowered = gradient.trace(*arrays).lower(lowering_platforms=("tpu",))
            memory = lowered.compile().memory_analysis()
        finally:
            _pallas.ELSEWHERE = False
        return {
            **asdict(configuration),
            "device": device.device_kind,
            "kernels": len(re.findall(r"@tpu_custom_call", lowered.as_text())),
            "code": int(memory.generated_code_size_in_bytes),
            "extra": int(memory.temp_size_in_bytes),
        }


@contextmanager
def _device(topology: str) -> Iterator[Any]:
    """Describe a device that is not here, and compile for it."""
    import jax
    import numpy as np
    from jax.experimental import topologies

    # Without these, libtpu asks the network which machine this is, and serves one process.
    os.environ |= {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    found = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0]
    mesh = jax.sharding.Mesh(np.array([found]), ("x",)).abstract_mesh
    with jax.sharding.use_abstract_mesh(mesh):
        yield found


def _step(configuration: Configuration) -> dict[str, list[dict[str, Any]]]:
    return {"records": [compiled(configuration)]}


def compile_tpu(
    context: typer.Context,
    generation: Annotated[
        list[str] | None, typer.Option(help=f"Only these of {', '.join(TOPOLOGIES)}.")
    ] = None,
    resume: Resume = False,
    output: Output = Path("build/attention_speed"),
) -> None:
    """Compile the Pallas kernels for every generation of TPUs, without a device.

    Needs libtpu, which brings the compiler. Writes OUTPUT/tpu.json. A kernel that does not compile,
    or does not fit into the memory of a core, is an error. Takes about 10 minutes on one core.
    """
    if importlib.util.find_spec("libtpu") is None:
        wanted = next(line for line in requires("jax") or [] if line.startswith("libtpu"))
        raise RefusedError(
            f"compile-tpu: expected libtpu, found none; pip install '{wanted.split(';')[0]}'"
        )
    import jax

    jax.config.update("jax_platforms", "cpu")
    chosen = [each for each in configurations() if each.generation in (generation or TOPOLOGIES)]
    if not chosen:
        raise typer.BadParameter(f"expected some of {', '.join(TOPOLOGIES)}, got {generation}")
    console = Console()
    output.mkdir(parents=True, exist_ok=True)
    with Bars(console, transient=True) as bars:
        bar = bars.add("Compiling", len(chosen))
        run_steps(
            output / FILE,
            {
                "command": current_command(context),
                "experiment": "compilation for TPUs",
                "versions": versions(["jax", "jaxlib", "libtpu"]),
            },
            {each.name: partial(_step, each) for each in chosen},
            resume=resume,
            on_step=lambda number, name: bars.step(bar, number, name),
        )
    show(console, tpu_tables(output).values(), [output / FILE])


def tpu_tables(results: Path) -> dict[str, Table]:
    """Return the table of a run, by the name that documents use, if there is one."""
    if not (results / FILE).exists():
        return {}
    result = read_benchmark(results / FILE)
    rows = []
    for variant, dtype, width in SHAPES:
        records = [
            record
            for record in result["records"]
            if (record["variant"], record["dtype"], record["width"]) == (variant, dtype, width)
        ]
        if not records:
            continue
        rows.append(
            [
                variant,
                dtype,
                str(width),
                ", ".join(record["generation"] for record in records),
                str(max(record["kernels"] for record in records)),
                f"{max(record['extra'] for record in records) / 2**20:.1f}",
            ]
        )
    named = ", ".join(
        f"{shown} {result['versions'][package]}"
        for package, shown in (("jax", "JAX"), ("libtpu", "libtpu"))
    )
    table = Table(
        ["attention", "dtype", "width", "compiles for", "kernels", "most memory, MiB"],
        rows,
        title="Pallas kernels compiled for TPUs without a device",
        caption=f"Forward and backward pass; {HEADS} heads, {KEY_HEADS} key heads, {LENGTH:,} "
        f"positions; memory beside inputs and outputs. {named}. Written by `{result['command']}`.",
        words=4,
    )
    return {"attention-tpu": table, "attention-tiles": _tiles()}


def _tiles() -> Table:
    """Return the tiles of the Pallas kernels and the memory that they take."""
    from sharpmax.jax.impl import pallas_gpu, pallas_tpu

    tiles = [
        (
            "`pallas_tpu`",
            width,
            blocks,
            2**20,
            pallas_tpu.vmem_bytes(width, width, blocks),
            "16 MiB",
        )
        for width, blocks in pallas_tpu.BLOCKS.items()
    ] + [
        (
            "`pallas_gpu`",
            width,
            launch.blocks,
            2**10,
            pallas_gpu.shared_bytes(width, launch, 2),
            "99 KiB",
        )
        for width, launch in pallas_gpu.LAUNCHES.items()
    ]
    return Table(
        ["kernels", "width up to", "queries", "keys", "memory at most"],
        [
            [
                name,
                str(width),
                str(blocks.queries),
                str(blocks.keys),
                f"{taken / unit:.0f} of {most}",
            ]
            for name, width, blocks, unit, taken, most in tiles
        ],
        title="Tiles of the Pallas kernels",
        caption="Memory is VMEM on a TPU and shared memory on a GPU, of the kernel that takes "
        "most, the backward pass by keys and values: at four bytes per number and with a bias on a "
        "TPU, at two bytes on a GPU.",
    )
