"""The command that results store, so that they can be produced again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import typer


def command_line(context: typer.Context, program: str = "sharpmax") -> str:
    """Build the command that was run: its name and every option that differs from its default.

    Options appear in the order of their declaration. `--resume`, `--engine` and an absolute
    `--output` are left out: they do not affect the results. Other absolute paths lose their
    folders, which belong to the machine.
    """
    words = [context.info_name or ""]
    for parameter in context.command.params:
        name = parameter.name or ""
        value = context.params.get(name)
        source = context.get_parameter_source(name)
        if name in ("resume", "engine") or source is None or source.name == "DEFAULT":
            continue
        # As strings, because a default may be of another type than the value that was parsed.
        if str(value) == str(parameter.get_default(context)):
            continue
        if name == "output" and Path(str(value)).is_absolute():
            continue
        option = max(parameter.opts, key=len)
        for each in value if isinstance(value, list | tuple) else [value]:
            if parameter.param_type_name == "argument":
                words.append(_portable(each))
            elif isinstance(each, bool):
                words.append(option if each else parameter.secondary_opts[0])
            else:
                words += [option, _portable(each)]
    return f"{program} {shlex.join(words)}"


def _portable(value: Any) -> str:
    """Write a value without the folders of an absolute path; a name before `=` stays."""
    given, sign, path = str(value).rpartition("=")
    return f"{given}{sign}{Path(path).name if Path(path).is_absolute() else path}"
