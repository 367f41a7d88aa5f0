"""`sharpmax diagnose`: find out which heads of a model disperse as its inputs grow."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from typer import Option

from sharpmax._files import RefusedError
from sharpmax.cli._inputs import Dtype, ModelOrFunction, bad_values, numbers, read_texts, refuse
from sharpmax.cli._models import in_one_line, is_function, load, load_function, require_models
from sharpmax.cli._progress import Bars, say
from sharpmax.cli._ranks import first

if TYPE_CHECKING:
    from sharpmax.models import Diagnosis

_LENGTHS = (128, 256, 512, 1024, 2048, 4096)
_FUNCTION_LENGTHS = (64, 128, 256, 512)
_ELEMENTS = (8, 16, 32, 64, 128, 256, 512)
_TEXT_INPUTS, _PROMPT_INPUTS = 2, 8
_SHOWN = 10


def diagnose(
    model: ModelOrFunction,
    lengths: Annotated[
        str | None,
        Option(
            help="Lengths in tokens, or in elements with --prompt; with commas.",
            show_default="128,256,…,4096 tokens or 8,16,…,512 elements, as far as the model allows",
        ),
    ] = None,
    text: Annotated[
        Path | None,
        Option(help="Text file to measure on.", show_default="the source code of sharpmax"),
    ] = None,
    prompt: Annotated[
        Literal["maximum"] | None,
        Option(
            help="Measure on prompts that ask for the maximum of some numbers, as in the paper's "
            "Figure 3, instead of a text."
        ),
    ] = None,
    inputs: Annotated[
        int | None,
        Option(
            min=1,
            help="Number of pieces of the text, or of prompts per length.",
            show_default="2 pieces, if the text is long enough, or 8 prompts",
        ),
    ] = None,
    rows: Annotated[
        int | None,
        Option(
            min=1,
            help="Number of rows to measure at the end of each input.",
            show_default="64, or 1 with --prompt, the row of the answer",
        ),
    ] = None,
    sink: Annotated[
        bool, Option("--sink", help="Leave out the first token and learned sinks.")
    ] = False,
    examples: Annotated[
        int,
        Option(
            min=0,
            help="Number of rows per head whose tokens with the largest weights are recorded in "
            "the JSON file. `sharpmax explore` shows them.",
        ),
    ] = 0,
    seed: Annotated[int, Option(min=0, help="Seed of the numbers in prompts.")] = 0,
    dtype: Dtype = None,
    output: Annotated[Path, Option(help="File for the report.")] = Path("build/diagnosis.html"),
    json: Annotated[Path | None, Option(help="File for all figures as JSON.")] = None,
    pictures: Annotated[
        Path | None, Option(help="Folder for the figures of the report as PNG files.")
    ] = None,
) -> None:
    """Measure how the attention of every head of MODEL spreads as its inputs grow.

    Writes one self-contained HTML file: which heads disperse, their entropy by length, their
    critical lengths, and what to do next. Ctrl-C ends the measurement and reports the finished part
    of it.
    """
    require_models("diagnose")
    asked = None if lengths is None else numbers("--lengths", lengths, least=2, above=1)
    if text is not None and prompt is not None:
        refuse("--text", "expected a text or a prompt, got both")
    texts = read_texts("--text", None if text is None else [text])
    if examples and json is None:
        refuse("--examples", "expected --json FILE, which holds them, got none")
    for folder in {output.parent, (json or output).parent, pictures or output.parent}:
        # Before the work, so that a folder that cannot be written to is found at once.
        folder.mkdir(parents=True, exist_ok=True)

    # Imported when the command runs, so that --help is fast.
    from sharpmax.models._evaluation.evaluate import named_texts
    from sharpmax.report.diagnosis.page import draw_diagnosis

    console = Console()
    by_function = is_function(model)
    if by_function and (texts or prompt or inputs):
        refuse("--text, --prompt, --inputs", f"expected none of them with {model}")
    loaded, beside = (load_function if by_function else load)(console, model, dtype)
    options: dict[str, Any] = {} if rows is None else {"rows": rows}
    given: Any = beside
    tokenizer = None if by_function else beside
    if by_function:
        options["lengths"] = asked or (_FUNCTION_LENGTHS if callable(given) else None)
        source = f"inputs of {model}"
    elif prompt is not None:
        given = _prompts(loaded, beside, asked, inputs or _PROMPT_INPUTS, seed)
        options |= {"unit": "elements", "rows": rows or 1}
        source = "prompts for the maximum of numbers below 10,000"
    else:
        source, words = next(iter(named_texts(texts or None).items()))
        source = f"text of {source}" if texts else source
        given, options["lengths"] = _pieces(loaded, beside, words, asked, inputs)
    options |= {"sink": sink, "examples": examples, "tokenizer": tokenizer}
    measured = replace(_measure(console, loaded, given, **options), source=source)
    if not first():
        return
    with console.status("Drawing"):
        report = measured.to_html(output)
        drawn = {} if pictures is None else draw_diagnosis(pictures, measured)
    lines = [measured.summary(limit=_SHOWN), ""]
    lines += [f"Picture: {path}" for path in drawn.values()]
    lines += [] if json is None else [f"Figures: {measured.save(json)}"]
    for line in (*lines, f"Report: {report}"):
        say(console, line)


def _measure(console: Console, model: Any, given: Any, **options: Any) -> Diagnosis:
    """Diagnose behind a progress bar."""
    from sharpmax.models import diagnose as measure

    several = next(iter(given.values())) if isinstance(given, dict) else given
    count = len(several) if isinstance(several, list) else 1
    with Bars(console, transient=True) as bars, in_one_line():
        bar = bars.add("measuring", count)
        options["on_progress"] = lambda finished, _: bars.step(bar, finished)
        return measure(model, given, **options)


def _pieces(
    model: Any, tokenizer: Any, words: str, asked: tuple[int, ...] | None, inputs: int | None
) -> tuple[list[list[int]], tuple[int, ...]]:
    """Cut a text into pieces of the longest length, and return them with the lengths."""
    from sharpmax.models._inspect import check_positions, positions
    from sharpmax.tasks import start_tokens

    # Every piece starts as a text does, not only the first.
    start = list(start_tokens(tokenizer))
    tokens = tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"]
    most = min(len(start) + len(tokens), positions(model) or sys.maxsize)
    if asked is not None:
        with bad_values():
            check_positions(model, "--lengths", asked[-1])
    elif most < 4:
        refuse("--text", f"expected a text of at least 4 tokens, got {len(tokens)}; give more")
    chosen = asked or tuple(length for length in _LENGTHS if length <= most)
    if len(chosen) < 2:
        # For a short text, or a model with few positions.
        chosen = (most // 2, most)
    longest = chosen[-1]
    own = longest - len(start)
    there = len(tokens) // own
    count = inputs or max(1, min(_TEXT_INPUTS, there))
    if there < count:
        which = "the longest of --lengths" if count == 1 else f"{count} times the longest length"
        refuse(
            "--text",
            f"expected at least {count * own:,} tokens, {which}, got {len(tokens):,}; give a "
            f"longer text{'' if count == 1 else ', fewer --inputs'} or shorter --lengths",
        )
    return [start + tokens[at * own : (at + 1) * own] for at in range(count)], chosen


def _prompts(
    model: Any, tokenizer: Any, asked: tuple[int, ...] | None, inputs: int, seed: int
) -> dict[int, list[list[int]]]:
    """Draw prompts of each size, because a prefix of a prompt has no question."""
    from sharpmax.models._inspect import check_positions, positions
    from sharpmax.tasks import maximum, start_tokens

    limit = positions(model) or sys.maxsize
    options: dict[str, Any] = {"questions": inputs, "prefix": start_tokens(tokenizer)}
    given: dict[int, list[list[int]]] = {}
    for elements in asked or _ELEMENTS:
        with bad_values("--lengths"):
            drawn = maximum(tokenizer, elements, seed=seed + elements, **options)
            longest = max(len(question.ids) for question in drawn)
            if asked is None and longest > limit:
                break
            check_positions(model, f"{elements} elements", longest)
        given[elements] = [list(question.ids) for question in drawn]
    if len(given) < 2:
        raise RefusedError(
            f"{type(model).__name__}: expected positions for prompts of {_ELEMENTS[1]} elements, "
            f"got {limit:,}; give smaller --lengths"
        )
    return given
