"""What `sharpmax reproduce max-retrieval` is asked for, and its progress bars."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sharpmax.cli._progress import Bars

if TYPE_CHECKING:
    from rich.console import Console

    from experiments.max_retrieval.arms import Arm, Look
    from experiments.max_retrieval.study import Settings, Study

__all__ = ["FAR", "SIZES", "chosen_arms", "run_arm", "whole_command"]

SIZES = "16,32,64,128,256,512,1024,2048,4096,8192,16384"
"""Items in a test set."""
FAR = "65536,262144,1048576"
"""Further sizes, of what goes beyond."""


def chosen_arms(known: dict[str, Arm], names: str) -> list[Arm]:
    """The arms that an option names, of those that are known.

    Raises:
        BadParameter: There is no such arm.
    """
    if names == "all":
        return list(known.values())
    for name in names.split(","):
        if name not in known:
            raise typer.BadParameter(
                f"expected 'all', 'list', or some of {', '.join(known)}; got {name!r}",
                param_hint="--arms",
            )
    return [known[name] for name in names.split(",")]


def whole_command(settings: Settings, output: Path, quick: bool) -> str:
    """The command that makes the whole table."""
    if quick:
        return "sharpmax reproduce max-retrieval --quick"
    sizes = ",".join(map(str, settings.sizes))
    options = [f"--seeds {len(settings.seeds)}", f"--steps {settings.steps}"]
    far = ",".join(map(str, settings.far))
    options += [f"--sizes {sizes}"] if sizes != SIZES else []
    options += [f"--far {far}"] if far != FAR else []
    folder = [] if output.is_absolute() else [f"--output {output}"]
    return " ".join(["sharpmax reproduce max-retrieval", *options, *folder])


def run_arm(console: Console, study: Study, arm: Arm) -> None:
    """Train and test an arm behind progress bars.

    Args:
        console: Where to draw.
        study: The run that the arm belongs to.
        arm: What to train and test.
    """
    from experiments.max_retrieval import training

    sizes, far = len(arm.sizes(study.settings.sizes)), len(study.settings.far)
    tests = sum((2 + look.blind) * sizes + look.far * (1 + look.blind) * far for look in arm.looks)
    done = 0
    with Bars(console) as bars:
        trained = bars.add(f"{arm.name}: train", arm.recipe.steps)
        tested = bars.add(f"{arm.name}: test", tests)

        def on_training(at: training.Progress) -> None:
            bars.step(trained, at.step, f"loss {at.loss:.4f}")

        def on_testing(look: Look, weights: str, n: int) -> None:
            note = f"{weights} weights, n = {n:,}"
            nonlocal done
            done += 1
            bars.step(trained, arm.recipe.steps)
            bars.step(tested, done, f"{look.recipe}, {note}")

        study.run(arm, on_training, on_testing)
        bars.step(trained, arm.recipe.steps)
        bars.step(tested, tests)
