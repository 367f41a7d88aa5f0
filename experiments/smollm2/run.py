"""Diagnose, calibrate and evaluate a model with the commands of sharpmax."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.common.command import EngineName, Output, Quick, Resume, show
from experiments.common.documents import write_pages
from experiments.common.tiny import save_tiny
from experiments.smollm2.tables import tables
from sharpmax._files import refuse_earlier
from sharpmax.cli._app import app as sharpmax
from sharpmax.tasks import own_source

__all__ = ["own_texts", "run", "tiny_llama"]


@dataclass(frozen=True)
class Scale:
    """Hold the size of a run.

    Attributes:
        families: Families of calibrations.
        diagnose: Options of `sharpmax diagnose`, without model, texts and output.
        calibrate: Options of `sharpmax calibrate`.
        evaluate: Options of `sharpmax evaluate`.
    """

    families: tuple[str, ...]
    diagnose: str
    calibrate: str
    evaluate: str


FULL = Scale(
    families=("constant", "entropy", "gain", "constant+gain"),
    diagnose="--lengths 128,256,512,1024,2048,4096",
    calibrate=(
        "--flatten --tasks passkey,key-value --lengths 512,1024 --steps 45 --text-weight 30"
        " --contexts 45,6,8 --windows 90,16,16 --evaluate-tasks passkey,key-value,text"
        " --evaluate-lengths 1024,2048,4096 --questions 200 --evaluate-contexts 25"
        " --evaluate-windows 16 --dtype bfloat16"
    ),
    evaluate="--lengths 64,256 --questions 200 --contexts 25 --windows 16 --dtype bfloat16",
)
QUICK = Scale(
    families=("constant", "gain", "constant+gain"),
    diagnose="--lengths 32,64,128",
    calibrate=(
        "--flatten --tasks passkey --lengths 130 --steps 2 --batch 1 --contexts 2,2,2"
        " --windows 2,2,2 --evaluate-tasks passkey,text --evaluate-lengths 130,260 --questions 4"
        " --evaluate-contexts 2 --evaluate-windows 2"
    ),
    evaluate="--lengths 100 --questions 4 --contexts 2 --windows 2",
)


def run(
    text: Annotated[
        Path | None,
        typer.Option(help="File with the text to fit on.", show_default="required without --quick"),
    ] = None,
    test_text: Annotated[
        Path | None,
        typer.Option(
            help="File with the text to test on.", show_default="required without --quick"
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="Folder or name of a model.")] = "smollm2",
    output: Output = Path("build/smollm2"),
    quick: Quick = False,
    resume: Resume = False,
    engine: EngineName = "local",
) -> None:
    """Diagnose a model, fit four families of calibrations, and compare them with controls.

    With --quick, a tiny Llama with random weights and the source code of sharpmax take the places
    of the model and of the texts; its accuracy is 0. A full run takes many hours on two cores.
    """
    if not resume and any((output / name).exists() for name in ("diagnosis.json", "families")):
        refuse_earlier(output)
    output.mkdir(parents=True, exist_ok=True)
    scale = FULL
    if quick:
        model, scale = str(tiny_llama(output / "model")), QUICK
        text, test_text = own_texts(output)
    if text is None or test_text is None:
        raise typer.BadParameter("expected --text and --test-text, or --quick", param_hint="--text")
    place = ["--output", str(output)]
    if not (output / "diagnosis.json").exists():
        _sharpmax(
            "diagnose", model, scale.diagnose, "--text", str(test_text), "--output",
            str(output / "diagnosis.html"), "--json", str(output / "diagnosis.json"), "--pictures",
            str(output),
        )  # fmt: skip
    _sharpmax(
        "calibrate", model, scale.calibrate, "--text", str(text), "--test-text", str(test_text),
        "--families", ",".join(scale.families), *place, *(["--resume"] if resume else []),
    )  # fmt: skip
    calibrations = [f"{name}={output / 'families' / name}.json" for name in scale.families]
    _sharpmax(
        "evaluate", model, scale.evaluate, "--tasks", "maximum", "--text", str(test_text),
        *(word for each in calibrations for word in ("--calibration", each)), *place, "--resume",
        "--engine", engine,
    )  # fmt: skip
    text_of_tables = "\n\n".join(tables(output).values())
    show(Console(), written=write_pages(output, {"tables.md": text_of_tables}))


def _sharpmax(command: str, model: str, options: str, *others: str) -> None:
    arguments = [command, model, *options.split(), *others]
    code = sharpmax(arguments, prog_name="sharpmax", standalone_mode=False)
    if code:
        raise typer.Exit(code)


def tiny_llama(folder: Path) -> Path:
    """Write a tiny Llama with random weights, for quick runs."""
    config = LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    return save_tiny(LlamaForCausalLM, config, folder)


def own_texts(folder: Path, size: int = 20_000) -> list[Path]:
    """Write two parts of the source code of sharpmax: one to fit on, one to test on."""
    source = own_source()
    paths = [folder / "fit.txt", folder / "test.txt"]
    for place, path in enumerate(paths):
        path.write_text(source[place * size : (place + 1) * size], encoding="utf-8")
    return paths
