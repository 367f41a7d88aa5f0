"""Run a campaign against the oracle, and print what was wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track

from experiments.common.command import Output, Quick, Resume, current_command, say, show
from experiments.reliability.campaign import Campaign
from experiments.reliability.cases import PERIOD
from experiments.reliability.figures import figures
from experiments.reliability.tables import kinds_table
from sharpmax._files import refuse_earlier

__all__ = ["run"]


def run(
    context: typer.Context,
    cases: Annotated[int, typer.Option(min=1, help="Cases of all kinds together.")] = 120_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the cases.")] = 17,
    output: Output = Path("build/reliability"),
    quick: Quick = False,
    resume: Resume = False,
) -> None:
    """Compare every implementation of attention with the oracle on random problems.

    Takes about half an hour on an idle core; with --quick, 500 cases in some ten seconds. The exit
    status is 1 if a case is wrong. A resumed run tries the wrong cases again, and may have more
    cases than before.
    """
    path = output / "campaign.json"
    if path.exists() and not resume:
        refuse_earlier(output)
    campaign = Campaign.resume(path, seed)
    console, command = Console(), current_command(context)
    torch.set_num_threads(1)
    cases = PERIOD if quick else cases
    if campaign.wrong:
        campaign.retry()
    starts = range(campaign.done, cases, PERIOD)
    for start in track(starts, "Cases", console=console, transient=True):
        for case in campaign.advance(min(start + PERIOD, cases)):
            say(console, json.dumps(campaign.wrong[str(case.index)]))
        campaign.save(path, command)
    campaign.save(path, command)
    show(console, [kinds_table(campaign)], [path, *figures(output)])
    if campaign.wrong:
        raise typer.Exit(1)
