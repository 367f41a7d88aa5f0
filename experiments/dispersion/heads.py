"""Measure the entropy of the heads of a pretrained model on the prompt of the paper's Figure 3."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from sharpmax._files import machine, read_sealed, write_sealed
from sharpmax.models import Diagnosis, diagnose, load_model
from sharpmax.tasks import maximum, start_tokens

__all__ = ["FOLDER", "ITEMS", "PROMPTS", "HeadCurve", "Heads", "load_heads", "measure_heads"]

KIND = "entropy of heads, format 1"

FOLDER = "heads"
"""Folder of the results, with one file per model."""

ITEMS = (8, 16, 32, 64, 128, 256, 512)
"""Numbers per prompt."""

PROMPTS = 8
"""Prompts per number of items."""


@dataclass(frozen=True)
class HeadCurve:
    """The entropy of one head in the last row of the prompts.

    Attributes:
        layer, head, kind, slope, verdict: As in `sharpmax.models.Head`.
        entropy: Mean over the prompts at each number of items, in nats.
        deviation: Standard deviation over the prompts.
        first: Mean weight of the first token.
        visible: Mean number of tokens that the row sees.
    """

    layer: int
    head: int
    kind: str
    slope: float | None
    verdict: str | None
    entropy: tuple[float, ...]
    deviation: tuple[float, ...]
    first: tuple[float, ...]
    visible: tuple[float, ...]


@dataclass(frozen=True)
class Heads:
    """The heads of a model on the prompt of the paper's Figure 3.

    Attributes:
        name: Name of the model.
        items: Numbers per prompt.
        tokens: Mean number of tokens of the prompts.
        prompts: Prompts per number of items.
        seed: Seed of the numbers.
        versions: Versions of the software that measured it.
        curves: One per head, by layer.
    """

    name: str
    items: tuple[int, ...]
    tokens: tuple[float, ...]
    prompts: int
    seed: int
    versions: dict[str, str]
    curves: tuple[HeadCurve, ...]

    @property
    def title(self) -> str:
        """The name without remarks."""
        return self.name.partition(",")[0]

    def first_layers(self) -> dict[str, list[HeadCurve]]:
        """Return the heads of the first layer of each kind, by kind."""
        found: dict[str, list[HeadCurve]] = {}
        for curve in self.curves:
            mine = found.setdefault(curve.kind, [])
            if not mine or mine[0].layer == curve.layer:
                mine.append(curve)
        return found

    def save(self, path: Path, command: str) -> Path:
        """Write the measurement with the command and the machine behind it, sealed."""
        return write_sealed(path, KIND, {"command": command, "machine": machine()} | asdict(self))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            DamagedFileError: The file is truncated, was edited, or is another kind of file.
        """
        data = read_sealed(path, KIND)
        for name in ("kind", "command", "machine"):
            del data[name]
        curves = tuple(HeadCurve(**_with_tuples(curve)) for curve in data.pop("curves"))
        return cls(**_with_tuples(data), curves=curves)


def load_heads(results: Path) -> list[Heads]:
    """Read the measurements of all models in a folder of results."""
    return [Heads.load(path) for path in sorted((results / FOLDER).glob("*.json"))]


def measure_heads(
    model: str | Path,
    *,
    items: Sequence[int] = ITEMS,
    prompts: int = PROMPTS,
    seed: int = 0,
    on_progress: Callable[[float, int], None] | None = None,
) -> Heads:
    """Measure the entropy of every head in the row that answers the prompt.

    Args:
        model: As `sharpmax.models.load_model` takes it.
        items: Numbers per prompt, at least two of them.
        prompts: Prompts per number of items.
        seed: Seed of the numbers, which are distinct and below 10,000.
        on_progress: Called as in `sharpmax.diagnose`.

    Returns:
        The measurement.
    """
    loaded, tokenizer = load_model(model)
    options: dict[str, Any] = {"questions": prompts, "prefix": start_tokens(tokenizer)}
    given = {
        each: [question.ids for question in maximum(tokenizer, each, seed=seed + each, **options)]
        for each in items
    }
    measured = diagnose(loaded, given, rows=1, unit="items", on_progress=on_progress)
    return Heads(
        name=measured.name,
        items=measured.lengths,
        tokens=measured.tokens,
        prompts=prompts,
        seed=seed,
        versions=dict(measured.versions),
        curves=tuple(_curve(measured, place) for place in range(len(measured.heads))),
    )


def _curve(measured: Diagnosis, place: int) -> HeadCurve:
    head = measured.heads[place]
    records: list[Any] = [measured.record(head, length) for length in measured.lengths]
    return HeadCurve(
        layer=head.layer,
        head=head.head,
        kind=head.kind,
        slope=head.slope,
        verdict=head.verdict,
        entropy=tuple(record.entropy.mean for record in records),
        deviation=tuple(record.entropy.deviation for record in records),
        first=tuple(record.first_mass.mean for record in records),
        visible=tuple(record.visible for record in records),
    )


def _with_tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
