"""`sharpmax diagnose`: which heads of a model disperse as its inputs grow."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sharpmax._extras import require
from sharpmax._files import RefusedError
from sharpmax.cli._inputs import Dtype, Model, numbers
from sharpmax.cli._progress import Bars
from sharpmax.cli._watch import load

if TYPE_CHECKING:
    from rich.console import Console

    from sharpmax.models import Diagnosis

__all__ = ["diagnose"]

_LENGTHS = (128, 256, 512, 1024, 2048, 4096)
_ELEMENTS = (8, 16, 32, 64, 128, 256, 512)
_TEXT_INPUTS, _PROMPT_INPUTS = 2, 8
_SHOWN = 10


def diagnose(
    model: Model,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Numbers of tokens, or of elements in a prompt, with commas.",
            show_default="128,256,…,4096; 8,16,…,512 elements; as far as the model allows",
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            help="File with the text to measure on.", show_default="the source code of sharpmax"
        ),
    ] = None,
    prompt: Annotated[
        Literal["maximum"] | None,
        typer.Option(help="Instead of a text: ask for the maximum of some numbers (Figure 3)."),
    ] = None,
    inputs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many pieces of the text, or prompts of each size.",
            show_default="2 pieces, if the text has them; 8 prompts",
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many of the last rows of an input are measured.",
            show_default="64; 1, that of the answer, for a prompt",
        ),
    ] = None,
    sink: Annotated[
        bool, typer.Option("--sink", help="Leave the first token and learned sinks out.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the numbers in prompts.")] = 0,
    dtype: Dtype = None,
    output: Annotated[Path, typer.Option(help="Where to write the report.")] = Path(
        "build/diagnosis.html"
    ),
    json: Annotated[Path | None, typer.Option(help="Where to write all figures, as JSON.")] = None,
    pictures: Annotated[
        Path | None, typer.Option(help="Folder for the pictures of the report as files, too.")
    ] = None,
) -> None:
    """Measure how far the attention of every head of MODEL spreads as its inputs grow.

    Writes one HTML file that needs nothing else: which heads disperse, their entropy against the
    length, the lengths that the lemma names, and what to do next. Ctrl-C ends the measurement and
    reports on what is done, also within the first input.
    """
    require("matplotlib", extra="report", what="sharpmax diagnose")
    require("transformers", extra="models", what="sharpmax diagnose")
    asked = None if lengths is None else numbers("--lengths", lengths, least=2, above=1)
    if text is not None and prompt is not None:
        raise typer.BadParameter("expected a text or a prompt, got both", param_hint="--text")
    words = None if prompt is not None else _read(text)
    for folder in {output.parent, (json or output).parent, pictures or output.parent}:
        # Before the work, so that a folder that cannot be written is not found out after it.
        folder.mkdir(parents=True, exist_ok=True)

    # Imported when the command runs, so that --help answers at once.
    from rich.console import Console

    from sharpmax.report.diagnosis.page import draw_diagnosis

    console = Console()
    loaded, tokenizer = load(console, model, dtype)
    given: Any
    if words is None:
        given, options, source = _prompts(loaded, tokenizer, asked, inputs or _PROMPT_INPUTS, seed)
        options["rows"] = rows or 1
    else:
        given, options, source = _pieces(loaded, tokenizer, words, asked, inputs, text)
        options |= {} if rows is None else {"rows": rows}
    measured = _measure(console, loaded, given, {**options, "sink": sink})
    measured = replace(measured, source=source)
    with console.status("Drawing"):
        report = measured.to_html(output)
        drawn = {} if pictures is None else draw_diagnosis(pictures, measured)
    lines = [measured.summary(limit=_SHOWN), ""]
    lines += [f"Picture: {path}" for path in drawn.values()]
    lines += [] if json is None else [f"Figures: {measured.save(json)}"]
    for line in (*lines, f"Report: {report}"):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _measure(console: Console, model: Any, given: Any, options: dict[str, Any]) -> Diagnosis:
    """Diagnose behind a progress bar; what cannot be measured is said in a line."""
    from sharpmax.models import diagnose as measure

    count = len(next(iter(given.values()))) if isinstance(given, dict) else len(given)
    with Bars(console, transient=True) as bars:
        bar = bars.add("measuring", count)

        def on_progress(finished: float, _: int) -> None:
            bars.step(bar, finished)

        try:
            return measure(model, given, on_progress=on_progress, **options)
        except (NotImplementedError, ValueError) as error:
            raise RefusedError(str(error)) from None


def _pieces(
    model: Any,
    tokenizer: Any,
    words: str,
    asked: tuple[int, ...] | None,
    inputs: int | None,
    file: Path | None,
) -> tuple[list[list[int]], dict[str, Any], str]:
    """Pieces of a text, each as long as the longest length; options; and where they are from."""
    from sharpmax._version import __version__

    tokens = tokenizer(words, verbose=False)["input_ids"]
    limit = _positions(model)
    if asked is None:
        most = min(len(tokens), limit)
        chosen = tuple(length for length in _LENGTHS if length <= most)
        if len(chosen) < 2:
            # A short text, or a model with few positions: halves, as far as they say something.
            chosen = (most // 2, most)
        if chosen[0] < 2:
            raise typer.BadParameter(
                f"expected a text of at least 4 tokens, got {len(tokens)}; give a longer one",
                param_hint="--text",
            )
    else:
        chosen = asked
        _check_positions(model, chosen[-1], limit)
    longest = chosen[-1]
    there = len(tokens) // longest
    count = inputs or max(1, min(_TEXT_INPUTS, there))
    if there < count:
        which = "the longest of --lengths" if count == 1 else f"{count} times the longest length"
        raise typer.BadParameter(
            f"expected at least {count * longest:,} tokens, {which}, got {len(tokens):,}; give a "
            f"longer text{'' if count == 1 else ', fewer --inputs'} or shorter --lengths",
            param_hint="--text",
        )
    pieces = [tokens[start * longest : (start + 1) * longest] for start in range(count)]
    source = f"text of {file.name}" if file else f"the source code of sharpmax {__version__}"
    return pieces, {"lengths": chosen}, source


def _prompts(
    model: Any, tokenizer: Any, asked: tuple[int, ...] | None, inputs: int, seed: int
) -> tuple[dict[int, list[list[int]]], dict[str, Any], str]:
    """Prompts of each size. Each is whole: the question comes last, so a prefix would have none."""
    from sharpmax.tasks import maximum, start_tokens

    limit = _positions(model)
    prefix = start_tokens(tokenizer)
    given: dict[int, list[list[int]]] = {}
    for elements in asked or _ELEMENTS:
        try:
            questions = maximum(
                tokenizer, elements, questions=inputs, seed=seed + elements, prefix=prefix
            )
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--lengths") from None
        longest = max(len(question.ids) for question in questions)
        if longest > limit:
            if asked is not None:
                _check_positions(model, longest, limit, f"{elements:,} elements make")
            break
        given[elements] = [list(question.ids) for question in questions]
    if len(given) < 2:
        raise RefusedError(
            f"{type(model).__name__}: its {limit:,} positions are too few for prompts of "
            f"{_ELEMENTS[1]} elements; give smaller --lengths"
        )
    return given, {"unit": "elements"}, "prompts for the maximum of numbers below 10,000"


def _check_positions(model: Any, longest: int, limit: int, what: str = "got") -> None:
    if longest > limit:
        raise typer.BadParameter(
            f"expected at most the {limit:,} positions of {type(model).__name__}, {what} "
            f"{longest:,} tokens; leave the longer ones out",
            param_hint="--lengths",
        )


def _positions(model: Any) -> int:
    """How many tokens the model takes; a number beyond all texts where it does not say."""
    from sharpmax.models._inspect import positions

    return positions(model) or sys.maxsize


def _read(file: Path | None) -> str:
    """The text; without a file, that of this package, which is there wherever it is installed."""
    if file is None:
        from sharpmax.tasks import own_source

        return own_source()
    try:
        words = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise typer.BadParameter(
            f"expected text in UTF-8, got other bytes in {file}", param_hint="--text"
        ) from None
    if not words.strip():
        raise typer.BadParameter(
            f"expected a file with text in it, {file} is empty", param_hint="--text"
        )
    return words
