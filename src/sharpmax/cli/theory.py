"""`sharpmax theory`: the length from which softmax coefficients must be small."""

from __future__ import annotations

import json
from typing import Annotated

import typer

__all__ = ["theory"]


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

    try:
        lengths = [[critical_length(s, e, temperature) for e in epsilon] for s in spread]
    except (OverflowError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None

    if as_json:
        result = {
            "temperature": temperature,
            "critical_lengths": [
                {"spread": s, "epsilon": e, "critical_length": length}
                for s, row in zip(spread, lengths, strict=True)
                for e, length in zip(epsilon, row, strict=True)
            ],
        }
        typer.echo(json.dumps(result, indent=2))
    else:
        _print_table(spread, epsilon, temperature, lengths)


def _print_table(
    spread: list[float], epsilon: list[float], temperature: float, lengths: list[list[int]]
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("spread", justify="right")
    for e in epsilon:
        table.add_column(f"epsilon {e:g}", justify="right")
    for s, row in zip(spread, lengths, strict=True):
        table.add_row(f"{s:g}", *map(_readable, row))
    console = Console()
    console.print("[bold]Number of items from which no coefficient can reach epsilon[/bold]")
    console.print(table)
    console.print(
        f"Lemma 2.1: a coefficient among n items is at most exp(spread / {temperature:g}) / n.",
        highlight=False,
    )


def _readable(length: int) -> str:
    """Format a number with separators, or as a power of ten if it is too long to read."""
    if length < 10**15:
        return f"{length:,}"
    digits = str(length)
    # Truncated, not rounded: the number is at least what is shown.
    return f"{digits[0]}.{digits[1:3]}e+{len(digits) - 1}"
