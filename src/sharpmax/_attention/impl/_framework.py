"""How the kernels read tensors of PyTorch, and on which threads they run."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from sharpmax import kernels


def _parallel() -> int:
    """The address of PyTorch's own way to run threads, or 0 if it does not use GCC's OpenMP.

    Threads of another pool would compete with PyTorch's, which spin after each of its operations.
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch_cpu.so"))
        return ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value or 0
    except (AttributeError, OSError):
        return 0


def _described(tensor: Tensor) -> tuple[int, ...]:
    batch, head, row, column = tensor.stride()
    return tensor.data_ptr(), batch, head, row, column if tensor.shape[3] > 1 else 1


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


TORCH = kernels.Framework(
    {getattr(torch, name): number for name, number in kernels.TYPES.items()},
    _described,
    _address,
    torch.get_num_threads,
    _parallel(),
)
