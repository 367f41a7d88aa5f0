"""Keep freed memory in the process, which makes large short-lived tensors cheap."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

# Options and largest values, from malloc.h of the GNU C library.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_LARGEST_THRESHOLD = 32 << 20
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell the C library not to give freed memory back to the system.

    By default a tensor of several megabytes is requested from the system and returned to it, which
    clears its pages every time. That takes longer than most operations on the tensor. Use it in
    commands only: it changes the whole process and cannot be undone.

    Returns:
        Whether the C library accepted it; only the GNU C library does.

    Example:
        >>> keep_freed_memory() in (True, False)
        True
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    options = {
        _MMAP_THRESHOLD: _LARGEST_THRESHOLD,
        _TRIM_THRESHOLD: _NEVER,
        _TOP_PAD: 2 * _LARGEST_THRESHOLD,
    }
    return all(mallopt(option, value) == 1 for option, value in options.items())
