"""Run a campaign against the oracle, and print what was wrong."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track

from experiments.common.command import (
    EngineName,
    Output,
    Quick,
    Resume,
    current_command,
    say,
    show,
)
from experiments.reliability.campaign import Campaign, part
from experiments.reliability.cases import PERIOD
from experiments.reliability.figures import figures
from experiments.reliability.tables import kinds_table
from sharpmax._attention.api import IMPLEMENTATIONS
from sharpmax._engine import in_order, run_cells
from sharpmax._files import refuse_earlier

__all__ = ["run"]

_SAVED = 100
"""A run is saved every so many cases."""


def run(
    context: typer.Context,
    cases: Annotated[int, typer.Option(min=1, help="Cases of all kinds together.")] = 120_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the cases.")] = 17,
    impl: Annotated[
        list[str] | None,
        typer.Option(
            help="Compare only this implementation. Repeat the option for several.",
            show_default="cpu, and the others for some cases",
        ),
    ] = None,
    output: Output = Path("build/reliability"),
    quick: Quick = False,
    resume: Resume = False,
    engine: EngineName = "local",
) -> None:
    """Compare every implementation of attention with the oracle on random problems.

    Takes about half an hour on an idle core; with --quick, 500 cases in some ten seconds. The exit
    status is 1 if a case is wrong. A resumed run tries the wrong cases again, and may have more
    cases than before. To interpret the Triton kernels, set TRITON_INTERPRET=1 and choose them by
    --impl triton; then a case takes about a second.
    """
    for name in set(impl or ()) - IMPLEMENTATIONS.keys():
        expected = ", ".join(IMPLEMENTATIONS)
        raise typer.BadParameter(f"expected one of {expected}; got {name!r}", param_hint="--impl")
    path = output / "campaign.json"
    if path.exists() and not resume:
        refuse_earlier(output)
    campaign = Campaign.resume(path, seed, impl or ())
    console, command = Console(), current_command(context)
    torch.set_num_threads(1)
    cases = PERIOD if quick else cases
    if campaign.wrong:
        campaign.retry()
    starts = range(campaign.done, cases, _SAVED)
    found = run_cells(partial(part, seed, impl or (), _SAVED, cases), starts, engine=engine)
    for _, each in track(
        in_order(starts, found), "Cases", len(starts), console=console, transient=True
    ):
        campaign.add(each)
        for wrong in each.wrong.values():
            say(console, json.dumps(wrong))
        campaign.save(path, command)
    campaign.save(path, command)
    show(console, [kinds_table(campaign)], [path, *figures(output)])
    if campaign.wrong:
        raise typer.Exit(1)
