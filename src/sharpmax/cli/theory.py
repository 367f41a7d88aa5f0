"""`sharpmax theory`: the length from which softmax coefficients must be small."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from sharpmax.cli._inputs import bad_values
from sharpmax.report._page.tables import Table


def theory(
    spread: Annotated[
        list[float],
        typer.Option(help="Largest minus smallest logit, at least 0. Repeat it for several."),
    ],
    epsilon: Annotated[
        list[float],
        typer.Option(help="Size of a coefficient, above 0 and at most 1. Repeat it for several."),
    ],
    temperature: Annotated[float, typer.Option(help="Temperature of the softmax, above 0.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compute the number of items from which no softmax coefficient can reach EPSILON.

    Lemma 2.1 of "Softmax is not Enough": if n logits differ by at most SPREAD, every coefficient is
    at most exp(SPREAD / TEMPERATURE) / n.
    """
    # Imported when the command runs, so that --help is fast.
    from sharpmax.theory import critical_length

    with bad_values():
        lengths = {s: {e: critical_length(s, e, temperature) for e in epsilon} for s in spread}
    if as_json:
        entries = [
            {"spread": s, "epsilon": e, "critical_length": lengths[s][e]}
            for s in spread
            for e in epsilon
        ]
        result = {"temperature": temperature, "critical_lengths": entries}
        typer.echo(json.dumps(result, indent=2))
        return
    header = ["spread", *(f"epsilon {e:g}" for e in epsilon)]
    rows = [[f"{s:g}", *map(_readable, lengths[s].values())] for s in spread]
    bound = f"exp(spread / {temperature:g}) / n"
    console = Console()
    console.print("[bold]Number of items from which no coefficient can reach epsilon[/bold]")
    console.print(Table(header, rows, words=0).to_rich())
    console.print(f"Lemma 2.1: a coefficient among n items is at most {bound}.", highlight=False)


def _readable(length: int) -> str:
    """Format a number with separators, or as a power of ten if it is too long to read."""
    if length < 10**15:
        return f"{length:,}"
    digits = str(length)
    # Truncated, not rounded: the number is at least what is shown.
    return f"{digits[0]}.{digits[1:3]}e+{len(digits) - 1}"
