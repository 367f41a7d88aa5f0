"""Where the benchmark runs: what a device needs to be timed, and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["device_name", "finished", "plain_attention", "settings_of"]


def settings_of(device: str) -> dict[str, Any]:
    """Return the settings of a device: itself, implementation, dtype, and threads if one is enough.

    Raises:
        ValueError: It is no device that can be timed, or there is none here.

    Example:
        >>> settings_of("cpu")
        {'device': 'cpu', 'impl': 'cpu', 'dtype': 'float32'}
    """
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"expected cpu or cuda, got {device!r}")
    if kind == "cpu":
        return {"device": "cpu", "impl": "cpu", "dtype": "float32"}
    if not torch.cuda.is_available():
        raise ValueError("PyTorch finds no GPU of NVIDIA or AMD here; run without --device")
    return {"device": device, "impl": "triton", "dtype": "bfloat16", "threads": (1,)}


def device_name(device: str) -> str:
    """Return the name of a GPU; "" for the CPU, which the machine tells."""
    return "" if device == "cpu" else torch.cuda.get_device_name(device)


def finished(call: Callable[[], object], device: str) -> Callable[[], object]:
    """Return a call that ends when the device has done its work."""
    if device == "cpu":
        return call

    def waiting() -> object:
        result = call()
        torch.cuda.synchronize(device)
        return result

    return waiting


def plain_attention(device: str) -> Callable[..., Tensor]:
    """Return PyTorch's attention; on a GPU its flash kernels, by name."""
    if device == "cpu":
        return F.scaled_dot_product_attention

    attention: Any = F.scaled_dot_product_attention

    def flash(*tensors: Tensor, **options: Any) -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            found: Tensor = attention(*tensors, **options)
            return found

    return flash
