"""Measure dispersion, draw it and print its tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from experiments.common.command import EngineName, Output, Quick, Resume, current_command, show
from experiments.common.tiny import save_tiny
from experiments.dispersion.figures import figures
from experiments.dispersion.heads import FOLDER, ITEMS, Heads, load_heads, measure_heads
from experiments.dispersion.measure import SIZES, Dispersion, measure_dispersion
from experiments.dispersion.tables import dispersion_table, heads_table
from sharpmax._engine import Tell, run_cells
from sharpmax._files import refuse_earlier
from sharpmax.cli._progress import quiet as silence

__all__ = ["run"]


def run(
    context: typer.Context,
    spread: Annotated[
        float, typer.Option(help="Largest logit minus smallest possible one.")
    ] = 5.69,
    rows: Annotated[int, typer.Option(min=1, help="Rows; their median is reported.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the logits and of the prompts.")] = 0,
    models: Annotated[
        str | None,
        typer.Option(
            help="Pretrained models whose heads are measured too, as `sharpmax diagnose` takes "
            "them, with commas.",
            show_default="none, or a tiny one with --quick",
        ),
    ] = None,
    output: Output = Path("build/dispersion"),
    quick: Quick = False,
    resume: Resume = False,
    engine: EngineName = "local",
) -> None:
    """Measure the largest coefficient of a bounded row from 16 to 1,048,576 items.

    Takes some ten seconds, and some minutes per model. With --quick, the rows end at 4,096 items
    and the model is a tiny Gemma 3 with random weights. Resuming draws again what is measured.
    """
    path, console = output / "dispersion.json", Console()
    if path.exists() and not resume:
        refuse_earlier(output)
    if not path.exists():
        sizes = tuple(n for n in SIZES if n <= 4096) if quick else SIZES
        measured = measure_dispersion(spread, sizes=sizes, rows=rows, seed=seed)
        measured.save(path, current_command(context))
    names = [each for each in (models or "").split(",") if each]
    if quick:
        names = [str(_tiny_gemma(output / "model"))]
    paths = {name: output / FOLDER / f"{Path(name).name}.json" for name in names}
    missing = [name for name in names if not paths[name].exists()]
    measure = partial(_measure, ITEMS[:4] if quick else ITEMS, seed)
    with console.status("Measuring heads of models"), silence(bars=False):
        for name, heads in run_cells(measure, missing, engine=engine):
            heads.save(paths[name], current_command(context))
    written = [path, *paths.values()]
    shown = [dispersion_table(Dispersion.load(path))]
    if measured_heads := load_heads(output):
        shown.append(heads_table(measured_heads))
    show(console, shown, [*written, *figures(output)])


def _measure(items: Sequence[int], seed: int, model: str, tell: Tell) -> Heads:  # noqa: ARG001
    """Measure the heads of one model."""
    return measure_heads(model, items=items, seed=seed)


def _tiny_gemma(folder: Path) -> Path:
    """Write a Gemma 3 with random weights: five layers with a window, and one without."""
    config = Gemma3TextConfig(
        vocab_size=128, hidden_size=32, intermediate_size=32, num_hidden_layers=6,
        num_attention_heads=4, num_key_value_heads=1, head_dim=8, sliding_window=128,
        max_position_embeddings=2048,
    )  # fmt: skip
    return save_tiny(Gemma3ForCausalLM, config, folder)
