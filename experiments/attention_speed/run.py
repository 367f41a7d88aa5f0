"""The command `run` of the attention benchmark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from experiments.attention_speed import tables
from experiments.attention_speed.benchmark import QUICK, Settings, plan
from experiments.attention_speed.device import device_name, settings_of
from experiments.attention_speed.figures import figures
from experiments.attention_speed.profile import attention_profile
from experiments.attention_speed.workloads import KINDS, full_workloads, quick_workloads
from experiments.common.command import Output, Quick, Resume, current_command, show
from experiments.common.timing import conditions, read_benchmark, run_steps
from sharpmax import kernels
from sharpmax._files import RefusedError, refuse_earlier, write_json
from sharpmax.cli._inputs import numbers
from sharpmax.cli._progress import Bars
from sharpmax.report._page.tables import Table

__all__ = ["run"]


def run(
    context: typer.Context,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Kind of workload: {', '.join(KINDS)}. Repeat the option for several.",
            show_default="all",
        ),
    ] = None,
    threads: Annotated[
        str | None,
        typer.Option(
            help="Numbers of threads, separated by commas.", show_default="1,2; 1 with --quick"
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda for a GPU of NVIDIA or AMD.")] = "cpu",
    framework: Annotated[
        Literal["torch", "jax"], typer.Option(help="Whose attention to time.")
    ] = "torch",
    quick: Quick = False,
    resume: Resume = False,
    output: Output = Path("build/attention_speed"),
) -> None:
    """Time sharpmax.attention against scaled_dot_product_attention on the same inputs.

    With --framework jax, time sharpmax.jax.attention against jax.nn.dot_product_attention and the
    paper's code instead, and write jax.json; --workload and --threads do not apply.

    A full run takes about 20 minutes on two idle cores; --quick takes less than a minute. Writes
    benchmark.json, profile.json and figures to OUTPUT. On a GPU the inputs are bfloat16, the
    kernels those of impl="triton", and the baseline PyTorch's flash kernels.
    """
    if framework == "jax":
        if workload or threads:
            raise typer.BadParameter("expected none of --workload, --threads with --framework jax")
        _run_jax(context, quick, resume, output)
        return
    chosen = set(workload or KINDS)
    for kind in chosen - KINDS.keys():
        expected = ", ".join(KINDS)
        raise typer.BadParameter(
            f"expected one of {expected}; got {kind!r}", param_hint="--workload"
        )
    try:
        settings = replace(QUICK if quick else Settings(), **settings_of(device))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--device") from error
    if threads is not None:
        settings = replace(settings, threads=numbers("--threads", threads))
    if "memory" not in chosen:
        settings = replace(settings, memory_lengths=())
    workloads = quick_workloads() if quick else full_workloads()
    if device != "cpu":  # PyTorch's flash kernels have no single precision
        chosen -= {"precision"}
    steps = plan([each for each in workloads if each.kind in chosen], settings)

    path = output / "profile.json"
    if "profile" in chosen and path.exists() and not resume:
        refuse_earlier(output)
    console, command = Console(), current_command(context)
    printed: list[Table] = []
    # A bar that redraws itself would take time from what is timed.
    with Bars(console, transient=True, auto_refresh=False) as bars:
        bar = bars.add("Timing", len(steps) + ("profile" in chosen))
        try:
            if steps:
                result = run_steps(
                    output / "benchmark.json",
                    {
                        "command": command,
                        "experiment": "attention speed",
                        **conditions(["numpy", "torch", "entmax"]),
                        "device": device_name(settings.device),
                        "kernels": kernels.instructions() if device == "cpu" else "triton",
                        "settings": settings.to_dict(),
                    },
                    steps,
                    resume=resume,
                    on_step=lambda number, name: bars.step(bar, number, name),
                )
                printed += tables.all_tables(result)
            if "profile" in chosen:
                bars.step(bar, len(steps), "profile")
                length, seconds = (512, 0.05) if quick else (4096, 0.6)
                if not (resume and path.exists()):
                    profile = attention_profile(length, seconds=seconds, settings=settings)
                    write_json(path, {"command": command, **profile})
                profile = read_benchmark(path)
                printed.append(tables.profile_table(profile))
        except NotImplementedError as error:
            raise RefusedError(f"the benchmark needs the kernels: {error}") from error
    show(console, printed, [*sorted(output.glob("*.json")), *figures(output)])


def _run_jax(context: typer.Context, quick: bool, resume: bool, output: Path) -> None:
    # JAX is an extra, and importing it takes a second.
    from experiments.attention_speed.jax_benchmark import FILE, jax_plan, jax_tables

    console, steps = Console(), jax_plan(quick)
    with Bars(console, transient=True, auto_refresh=False) as bars:
        bar = bars.add("Timing", len(steps))
        run_steps(
            output / FILE,
            {
                "command": current_command(context),
                "experiment": "attention speed in JAX",
                **conditions(["numpy", "jax", "jaxlib"]),
                "settings": {"quick": quick},
            },
            steps,
            resume=resume,
            on_step=lambda number, name: bars.step(bar, number, name),
        )
    show(console, jax_tables(output).values(), [output / FILE])
