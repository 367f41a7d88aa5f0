"""Files of tensors with a description: written whole or not at all, refused when damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from sharpmax._extras import require
from sharpmax._files import DamagedFileError, replace_file

__all__ = ["read_tensors", "write_tensors"]


def write_tensors(path: Path, tensors: Mapping[str, Tensor], description: object) -> None:
    """Write tensors and a description of them, whole or not at all.

    Args:
        path: Where to; folders on the way to it are made.
        tensors: Tensors by name.
        description: Plain data.
    """
    safetensors = require("safetensors.torch", extra="experiments", what="keeping weights")
    data = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with replace_file(path) as temporary:
        safetensors.save_file(data, temporary, {"sharpmax": json.dumps(description)})


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read what `write_tensors` wrote.

    Returns:
        The description, and the tensors by name.

    Raises:
        DamagedFileError: The file is cut off or none of ours.
    """
    safetensors = require("safetensors", extra="experiments", what="reading weights")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            description = json.loads((file.metadata() or {})["sharpmax"])
            return description, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise DamagedFileError(
            f"{path}: the file is cut off or none of sharpmax's ({error})"
        ) from None
