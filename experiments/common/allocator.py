"""Memory that was freed stays with the process, which makes large short-lived tensors cheap."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

# Numbers of options and largest values, as malloc.h of the GNU C library has them.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_LARGEST_THRESHOLD = 32 << 20
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell the C library not to give freed memory back to the system.

    By default every tensor of some megabytes is asked of the system and given back to it, which
    clears its pages anew each time: that takes longer than most operations on it. For commands
    alone, since it is for the whole process and for good.

    Returns:
        Whether the C library took it; only that of GNU does.

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
