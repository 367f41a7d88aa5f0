"""Files of tensors with a description: written whole or not at all, refused when damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sharpmax._files import DamagedFileError, parse_json, replace_file

__all__ = ["read_tensors", "write_tensors"]


def write_tensors(path: Path, tensors: Mapping[str, Tensor], description: object) -> None:
    """Write tensors and a description of them, whole or not at all.

    Args:
        path: The file. Missing folders are created.
        tensors: Tensors by name.
        description: Plain data.
    """
    data = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with replace_file(path) as temporary:
        save_file(data, temporary, {"sharpmax": json.dumps(description)})


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read what `write_tensors` wrote.

    Returns:
        The description, and the tensors by name.

    Raises:
        DamagedFileError: The file is truncated or has another format.
    """
    try:
        with safe_open(path, framework="pt") as file:
            description = parse_json((file.metadata() or {})["sharpmax"], str(path))
            if not isinstance(description, dict):
                raise KeyError("a description")
            return description, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError) as error:
        raise DamagedFileError(
            f"{path}: the file is truncated or not from sharpmax ({error}); remove it and run again"
        ) from None
