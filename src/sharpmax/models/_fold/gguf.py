"""Fold a calibration into a GGUF file: scale the scales of its blocks, and requantise nothing."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax._extras import available
from sharpmax._files import replace_file
from sharpmax.models._calibration.result import Calibration, LayerCalibration
from sharpmax.models._fold.places import Numbers, Obstacle, constant_betas
from sharpmax.models._fold.report import CannotFoldError, Folded, NotFolded, counted, refusals

Array = np.ndarray[Any, np.dtype[Any]]

# Values per block, bytes per block, and the places of the half-precision numbers that all values
# of a block are proportional to: a scale, and the minimum of the formats that have one.
BLOCKS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "Q4_0": (32, 18, (0,)),
    "Q4_1": (32, 20, (0, 2)),
    "Q5_0": (32, 22, (0,)),
    "Q5_1": (32, 24, (0, 2)),
    "Q8_0": (32, 34, (0,)),
    "IQ4_NL": (32, 18, (0,)),
    "Q2_K": (256, 84, (80, 82)),
    "Q3_K": (256, 110, (108,)),
    "Q4_K": (256, 144, (0, 2)),
    "Q5_K": (256, 176, (0, 2)),
    "Q6_K": (256, 210, (208,)),
}
_PLAIN = {"F32": np.float32, "F16": np.float16}

ARCHITECTURES = {
    "llama": ("llama", "mistral"), "qwen2": ("qwen2",), "qwen3": ("qwen3",), "gemma2": ("gemma2",),
    "gemma3": ("gemma3_text", "gemma3"), "olmo2": ("olmo2",), "gpt-oss": ("gpt_oss",),
}  # fmt: skip
"""Names of architectures in GGUF files, and the types of configurations that they are."""

_KEEP = "keep it in sharpmax.sharpen, or fold the original checkpoint and convert that"


@dataclass(frozen=True)
class GgufReport:
    """What `sharpmax.models.fold_gguf` did.

    Attributes:
        path: the new file.
        folded: what was folded, by layer, with the names of the tensors.
        not_folded: what was left out, by layer; empty unless `partial`.
        error: largest relative rounding error of a changed number of the file.
    """

    path: Path
    folded: tuple[Folded, ...]
    not_folded: tuple[NotFolded, ...]
    error: float

    def summary(self) -> str:
        """Return what was folded, what was left out, and the rounding error."""
        done = f"{self.path.name}: {counted(self.folded)} folded without requantising"
        lines = [f"{done}; largest relative rounding error of a scale {self.error:.1e}"]
        if self.not_folded:
            lines.append(f"not folded: {refusals(self.not_folded)}")
        return "\n".join(lines)


def fold_gguf(
    source: str | Path, calibration: Calibration, output: str | Path, *, partial: bool = False
) -> GgufReport:
    """Write a copy of a GGUF file with a calibration multiplied into its scales.

    Quantised values keep their integers. A block of values has a scale in half precision, which is
    multiplied by the factor of its head and rounded once. Rows of the query projection can always
    be scaled so. Columns of the output projection can if no block holds values of heads with
    different gains: blocks have 32 values (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL) or 256 (K-quants).

    Args:
        source: the file.
        calibration: a calibration of the same model.
        output: the new file, of the same size.
        partial: fold what can be folded, and return the rest in the report.

    Raises:
        CannotFoldError: the file is of another model, or something cannot be folded. Nothing is
            written.
    """
    source, output = Path(source), Path(output)
    if not available("gguf"):
        raise CannotFoldError(
            f"{source}: the package gguf, which reads this file, is not installed; run "
            "pip install gguf"
        )
    gguf: Any = import_module("gguf")
    if output.exists():
        raise CannotFoldError(f"{output}: expected a new file, got one that exists")
    try:
        file = _File(gguf.GGUFReader(source))
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise CannotFoldError(f"{source}: expected a GGUF file, got {error}") from None
    file.check(source.name, calibration)
    folded: list[Folded] = []
    left: list[NotFolded] = []
    changes: list[tuple[Any, Array, float]] = []
    for own in calibration.layers:
        heads = calibration.heads_in(own)
        for what in ("temperature", "gain"):
            factors: Numbers
            try:
                if what == "temperature" and own.policy is not None:
                    factors = constant_betas(own.policy, heads)
                    wanted = file.of_betas(own, factors)
                elif what == "gain" and own.gain is not None:
                    factors = np.asarray(own.gain)
                    wanted = file.of_gains(own, factors)
                else:
                    continue
                found = [(tensor, *_scaled(tensor, axis, each)) for tensor, axis, each in wanted]
            except Obstacle as why:
                reason = (why.reason, why.instead)
                left.append(NotFolded(own.index, f"blk.{own.index}", what, heads, *reason))
                continue
            changes += found
            names = tuple(str(tensor.name) for tensor, *_ in found)
            count = int((factors != 1).sum())
            folded.append(Folded(own.index, f"blk.{own.index}", what, count, names))
    if left and not partial:
        raise CannotFoldError(
            f"{source.name}: {refusals(left)}. To fold the rest, pass partial=True (--partial)"
        )
    if not folded:
        raise CannotFoldError(f"{source.name}: nothing can be folded. {refusals(left)}")
    output.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(output) as temporary:
        shutil.copyfile(source, temporary)
        with temporary.open("r+b") as opened:
            for tensor, content, _ in changes:
                opened.seek(int(tensor.data_offset))
                opened.write(content.tobytes())
    return GgufReport(output, tuple(folded), tuple(left), max(each[2] for each in changes))


class _File:
    """The tensors and settings of a GGUF file."""

    def __init__(self, reader: Any) -> None:
        self.tensors = {str(tensor.name): tensor for tensor in reader.tensors}
        self.architecture = str(reader.fields["general.architecture"].contents())
        prefix = f"{self.architecture}."
        self.settings = {
            name.removeprefix(prefix): reader.fields[name].contents()
            for name in reader.fields
            if name.startswith(prefix)
        }

    def check(self, name: str, calibration: Calibration) -> None:
        """Raise `CannotFoldError` unless a calibration is for a model of this shape."""
        kinds = ARCHITECTURES.get(self.architecture)
        if kinds is None:
            known = ", ".join(ARCHITECTURES)
            raise CannotFoldError(
                f"{name}: expected an architecture of {known}, got {self.architecture!r}; fold the "
                "original checkpoint and convert that"
            )
        heads = self.settings["attention.head_count"]
        count = int(self.settings["block_count"])
        every = tuple(heads) if isinstance(heads, list) else (heads,) * count
        if calibration.model_type not in kinds or calibration.head_counts != every:
            raise CannotFoldError(
                f"{name}: expected a calibration of {' or '.join(kinds)} with {count} layers of "
                f"{heads} heads, got one of {calibration.model_type} with "
                f"{len(calibration.head_counts)} layers; use the one that was made for this model"
            )
        if not calibration.layers:
            raise CannotFoldError(f"{name}: the calibration changes nothing; use the file as it is")

    def of_betas(self, own: LayerCalibration, betas: Numbers) -> list[tuple[Any, int, Numbers]]:
        """Return the tensors that a temperature scales: each with its axis and factors."""
        if self.settings.get("attn_logit_softcapping"):
            raise Obstacle("its soft cap acts before the temperature", f"gains may fold; {_KEEP}")
        start = f"blk.{own.index}"
        found = []
        if (norm := self.tensors.get(f"{start}.attn_q_norm.weight")) is not None:
            whole = self._tensor(f"{start}.attn_q").shape[1]
            if int(norm.shape[0]) != int(whole):
                raise Obstacle(
                    "attn_q_norm treats the queries of all heads alike", f"gains may fold; {_KEEP}"
                )
            found.append((norm, 1, betas))
        else:
            found.append((self._tensor(f"{start}.attn_q"), 0, betas))
            if (bias := self.tensors.get(f"{start}.attn_q.bias")) is not None:
                found.append((bias, 1, betas))
        if (sinks := self.tensors.get(f"{start}.attn_sinks.weight")) is not None:
            found.append((sinks, 1, betas))
        return found

    def of_gains(self, own: LayerCalibration, gains: Numbers) -> list[tuple[Any, int, Numbers]]:
        """Return the tensor that a gain scales, with its axis and factors."""
        return [(self._tensor(f"blk.{own.index}.attn_output"), 1, gains)]

    def _tensor(self, name: str) -> Any:
        tensor = self.tensors.get(f"{name}.weight")
        if tensor is None:
            raise Obstacle(f"the file has no tensor {name}.weight", _KEEP)
        return tensor


def _scaled(tensor: Any, axis: int, factors: Numbers) -> tuple[Array, float]:
    """Return the bytes of a tensor with its rows (0) or columns (1) scaled by head, and the error.

    A tensor of one dimension counts as one row.
    """
    kind = tensor.tensor_type.name
    rows = int(np.prod(tensor.shape[1:], dtype=np.int64))
    columns = int(tensor.shape[0])
    content = np.array(tensor.data).reshape(rows, -1).view(np.uint8).reshape(rows, -1)
    size = rows if axis == 0 else columns
    if size % len(factors):
        raise Obstacle(f"{tensor.name} has {size} values for {len(factors)} heads", _KEEP)
    each = np.repeat(factors, size // len(factors))
    if kind in _PLAIN:
        numbers = content.view(_PLAIN[kind])
        wide = each[:, None] if axis == 0 else each[None]
        return content, _multiply(tensor.name, numbers, np.broadcast_to(wide, numbers.shape))
    if kind not in BLOCKS:
        known = ", ".join((*_PLAIN, *BLOCKS))
        raise Obstacle(f"{tensor.name} is {kind}; only {known} can be scaled", _KEEP)
    values, size_of, places = BLOCKS[kind]
    blocks = content.reshape(rows, columns // values, size_of)
    if axis == 0:
        wide = np.broadcast_to(each[:, None], blocks.shape[:2])
    else:
        by_block = each.reshape(-1, values)
        if (by_block != by_block[:, :1]).any():
            raise Obstacle(
                f"{tensor.name} is {kind}: one scale for {values} values, of heads of "
                f"{columns // len(factors)} with different gains",
                f"temperatures may fold; {_KEEP}",
            )
        wide = np.broadcast_to(by_block[:, 0], blocks.shape[:2])
    error = 0.0
    for place in places:
        scales = np.ascontiguousarray(blocks[..., place : place + 2]).view(np.float16)[..., 0]
        error = max(error, _multiply(tensor.name, scales, wide))
        blocks[..., place : place + 2] = scales[..., None].view(np.uint8)
    return content, error


def _multiply(name: str, numbers: Array, factors: Array) -> float:
    """Multiply numbers in place, rounding once, and return the largest relative error."""
    exact = numbers.astype(np.float64) * factors
    with np.errstate(over="ignore"):
        numbers[...] = exact
    if not np.isfinite(numbers).all():
        raise Obstacle(f"a scale of {name} exceeds half precision", _KEEP)
    # Below the smallest normal number, the error is absolute.
    least = float(np.finfo(numbers.dtype).tiny)
    error = np.abs(numbers.astype(np.float64) - exact) / np.maximum(np.abs(exact), least)
    return float(error.max())
