"""`sharpmax diagnose`: find out which heads of a model disperse as its inputs grow."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sharpmax._extras import require
from sharpmax._files import RefusedError
from sharpmax.cli._inputs import Dtype, Model, numbers, read_texts
from sharpmax.cli._models import in_one_line, load, say
from sharpmax.cli._progress import Bars

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
            help="Lengths in tokens, or in elements with --prompt; with commas.",
            show_default="128,256,…,4096 tokens or 8,16,…,512 elements, as far as the model allows",
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="Text file to measure on.", show_default="the source code of sharpmax"),
    ] = None,
    prompt: Annotated[
        Literal["maximum"] | None,
        typer.Option(
            help="Measure on prompts that ask for the maximum of some numbers, as in the paper's "
            "Figure 3, instead of a text."
        ),
    ] = None,
    inputs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of pieces of the text, or of prompts per length.",
            show_default="2 pieces, if the text is long enough, or 8 prompts",
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of rows to measure at the end of each input.",
            show_default="64, or 1 with --prompt, the row of the answer",
        ),
    ] = None,
    sink: Annotated[
        bool, typer.Option("--sink", help="Leave out the first token and learned sinks.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the numbers in prompts.")] = 0,
    dtype: Dtype = None,
    output: Annotated[Path, typer.Option(help="File for the report.")] = Path(
        "build/diagnosis.html"
    ),
    json: Annotated[Path | None, typer.Option(help="File for all figures as JSON.")] = None,
    pictures: Annotated[
        Path | None, typer.Option(help="Folder for the figures of the report as PNG files.")
    ] = None,
) -> None:
    """Measure how the attention of every head of MODEL spreads as its inputs grow.

    Writes one self-contained HTML file: which heads disperse, their entropy by length, their
    critical lengths, and what to do next. Ctrl-C ends the measurement and reports the finished part
    of it.
    """
    require("matplotlib", extra="report", what="sharpmax diagnose")
    require("transformers", extra="models", what="sharpmax diagnose")
    asked = None if lengths is None else numbers("--lengths", lengths, least=2, above=1)
    if text is not None and prompt is not None:
        raise typer.BadParameter("expected a text or a prompt, got both", param_hint="--text")
    texts = read_texts("--text", None if text is None else [text])
    for folder in {output.parent, (json or output).parent, pictures or output.parent}:
        # Before the work, so that a folder that cannot be written to is found at once.
        folder.mkdir(parents=True, exist_ok=True)

    # Imported when the command runs, so that --help is fast.
    from rich.console import Console

    from sharpmax.models._evaluation.evaluate import named_texts
    from sharpmax.report.diagnosis.page import draw_diagnosis

    console = Console()
    loaded, tokenizer = load(console, model, dtype)
    given: Any
    if prompt is not None:
        given, options = _prompts(loaded, tokenizer, asked, inputs or _PROMPT_INPUTS, seed)
        options["rows"] = rows or 1
        source = "prompts for the maximum of numbers below 10,000"
    else:
        source, words = next(iter(named_texts(texts or None).items()))
        source = f"text of {source}" if texts else source
        given, options = _pieces(loaded, tokenizer, words, asked, inputs)
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
        say(console, line)


def _measure(console: Console, model: Any, given: Any, options: dict[str, Any]) -> Diagnosis:
    """Diagnose behind a progress bar."""
    from sharpmax.models import diagnose as measure

    count = len(next(iter(given.values()))) if isinstance(given, dict) else len(given)
    with Bars(console, transient=True) as bars, in_one_line():
        bar = bars.add("measuring", count)
        return measure(
            model, given, on_progress=lambda finished, _: bars.step(bar, finished), **options
        )


def _pieces(
    model: Any,
    tokenizer: Any,
    words: str,
    asked: tuple[int, ...] | None,
    inputs: int | None,
) -> tuple[list[list[int]], dict[str, Any]]:
    """Cut a text into pieces of the longest length, with the options of the measurement."""
    tokens = tokenizer(words, verbose=False)["input_ids"]
    limit = _positions(model)
    if asked is None:
        most = min(len(tokens), limit)
        chosen = tuple(length for length in _LENGTHS if length <= most)
        if len(chosen) < 2:
            # For a short text, or a model with few positions.
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
    return pieces, {"lengths": chosen}


def _prompts(
    model: Any, tokenizer: Any, asked: tuple[int, ...] | None, inputs: int, seed: int
) -> tuple[dict[int, list[list[int]]], dict[str, Any]]:
    """Draw prompts of each size, because a prefix of a prompt has no question."""
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
            f"{type(model).__name__}: expected positions for prompts of {_ELEMENTS[1]} elements, "
            f"got {limit:,}; give smaller --lengths"
        )
    return given, {"unit": "elements"}


def _check_positions(model: Any, longest: int, limit: int, what: str = "got") -> None:
    if longest > limit:
        raise typer.BadParameter(
            f"expected at most {limit:,} tokens, the positions of {type(model).__name__}, {what} "
            f"{longest:,}; give shorter lengths",
            param_hint="--lengths",
        )


def _positions(model: Any) -> int:
    """The number of tokens that the model takes; unlimited if it does not say."""
    from sharpmax.models._inspect import positions

    return positions(model) or sys.maxsize
