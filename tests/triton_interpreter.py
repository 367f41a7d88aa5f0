"""Triton's interpreter, for tests of the GPU kernels on a machine without a GPU."""

from __future__ import annotations

import importlib.util
import os
from typing import Any


def missing() -> str | None:
    """Why the Triton kernels cannot run here, or None."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if os.environ.get("TRITON_INTERPRET") == "1":
        _patch_once()
    return None


def _patch_once() -> None:
    """Let the interpreter patch the language once, not at each call of a function in a kernel."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch: Any = interpreter._patch_lang
    done: set[frozenset[int]] = set()

    def once(function: Any) -> Any:
        seen = frozenset(
            id(entry) for entry in function.__globals__.values() if entry is tl or entry is tl.core
        )
        if seen not in done:
            done.add(seen)
            patch(function)
        return interpreter._LangPatchScope()

    interpreter._patch_lang = once
