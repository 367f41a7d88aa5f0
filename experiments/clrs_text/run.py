"""What `sharpmax reproduce clrs-text` is asked for, and its progress bars."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import typer

from sharpmax.cli._progress import Bars

if TYPE_CHECKING:
    from rich.console import Console

    from experiments.clrs_text.arms import Arm
    from experiments.clrs_text.study import Study

__all__ = ["chosen_attentions", "chosen_lengths", "run_clrs_arms"]


def chosen_lengths(algorithms: str, largest: int | None) -> dict[str, tuple[int, int]]:
    """Sizes in training of the algorithms that an option names.

    Args:
        algorithms: "some", eight with short texts; the "others"; "all" thirty; or names with
            commas, each with its largest size behind a colon if it is to have its own.
        largest: The largest size of all others; None leaves them what they are.

    Returns:
        For each algorithm the smallest and the largest size.

    Raises:
        BadParameter: There is no such algorithm, or a size is too small.
    """
    from experiments.clrs_text.arms import LENGTHS, SHORT
    from experiments.clrs_text.task import algorithms as known

    others = [name for name in known() if name not in LENGTHS]
    groups = {"some": list(LENGTHS), "others": others, "all": list(known())}
    names = groups.get(algorithms, algorithms.split(","))
    found = {}
    for each in names:
        name, _, own = each.partition(":")
        if name not in known():
            raise typer.BadParameter(
                f"expected 'some', 'others', 'all', or some of {', '.join(known())}; got {name!r}",
                param_hint="--algorithms",
            )
        smallest, usual = LENGTHS.get(name, SHORT)
        size = own or str(largest or usual)
        if not size.isdigit() or int(size) < smallest:
            raise typer.BadParameter(
                f"expected a largest size from {smallest} for {name}, got {size!r}",
                param_hint="--algorithms" if own else "--largest",
            )
        found[name] = (smallest, int(size))
    return found


def chosen_attentions(attention: str) -> list[str]:
    """The attentions that an option names.

    Raises:
        BadParameter: There is no such attention.
    """
    from experiments.clrs_text.arms import ATTENTIONS

    names = list(ATTENTIONS) if attention == "all" else attention.split(",")
    for name in names:
        if name not in ATTENTIONS:
            raise typer.BadParameter(
                f"expected 'all', or some of {', '.join(ATTENTIONS)}; got {name!r}",
                param_hint="--attention",
            )
    return names


def run_clrs_arms(console: Console, study: Study, arms: Sequence[Arm], jobs: int) -> None:
    """Train and test arms behind progress bars.

    Args:
        console: Where to draw.
        study: The run that the arms belong to.
        arms: What to train and test.
        jobs: How many trainings at a time.
    """
    from experiments.clrs_text.side_by_side import run_side_by_side
    from experiments.clrs_text.training import Progress

    with Bars(console) as bars:
        of_seed = {
            (arm.name, seed): bars.add(f"{arm.name}, seed {seed}", arm.recipe.steps)
            for arm in arms
            for seed in study.settings.seeds
        }

        def on_training(arm: Arm, seed: int, at: Progress) -> None:
            note = f"loss {at.loss:.4f}, {at.speed:,.0f} tokens/s"
            bars.step(of_seed[arm.name, seed], at.step, note)

        def on_testing(arm: Arm, seed: int, method: str) -> None:
            bar, steps = of_seed[arm.name, seed], arm.recipe.steps
            bars.step(bar, steps, f"testing {method}")
            bars.say(f"{arm.name}, seed {seed}: testing {method}")

        if jobs > 1:
            run_side_by_side(study, arms, jobs, on_training, on_testing)
        else:
            for arm in arms:
                study.run(arm, partial(on_training, arm), partial(on_testing, arm))
        for arm in arms:
            for seed in study.settings.seeds:
                bar = of_seed[arm.name, seed]
                bars.step(bar, arm.recipe.steps)
