"""Time the passes of plain PyTorch modules, sharpened and not: what one call of attention costs.

Inputs are short, so that what a call costs apart from its arithmetic can be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from torch import Tensor, nn

from experiments.common.command import Output, Quick, Resume, current_command, show
from experiments.common.timing import (
    conditions,
    interleave,
    machine_line,
    run_steps,
    thread_count,
)
from experiments.models_speed.passes import twin
from sharpmax.models import sharpen
from sharpmax.policies import Constant, Exponential
from sharpmax.report._page.tables import Table

__all__ = ["modules", "modules_table"]

WIDTH: Final = 256
HEADS: Final = 4
LAYERS: Final = 8

RULES: Final[dict[str, Any]] = {
    "attached, no policy": {0: Constant(2.0)},  # seven of eight layers have none
    "Constant": Constant(2.0),
    "Exponential": Exponential(3.0),
}
"""What the layers get; the first shows what being attached costs a layer without a policy."""


class Attention(nn.Module):
    """Self-attention through scaled_dot_product_attention, as nanoGPT or timm have it."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended rows."""
        parts = self.project(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(*parts.unbind())
        result: Tensor = self.out(found.transpose(1, 2).flatten(-2))
        return result


class Block(nn.Module):
    """Attention and a feed-forward network, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(2)])
        self.hidden, self.back = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows after both."""
        x = x + self.attention(self.norms[0](x))
        result: Tensor = x + self.back(F.gelu(self.hidden(self.norms[1](x))))
        return result


def encoder() -> nn.Module:
    """Return PyTorch's own encoder, whose fused layers are in use while it is not sharpened."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, LAYERS)


MODELS: Final[dict[str, Callable[[], nn.Module]]] = {
    "scaled_dot_product_attention": lambda: nn.Sequential(*(Block() for _ in range(LAYERS))),
    "nn.TransformerEncoder": encoder,
}


@dataclass(frozen=True)
class Settings:
    """Settings of a run: lengths of the inputs, and seconds per call as in `interleave`."""

    lengths: tuple[int, ...] = (16, 128, 1024)
    seconds: float = 3.0


QUICK: Final = Settings(lengths=(16,), seconds=0.02)


def modules(
    context: typer.Context,
    quick: Quick = False,
    resume: Resume = False,
    output: Output = Path("build/models_speed/modules"),
) -> None:
    """Time passes of plain PyTorch modules, sharpened and not, and print the cost per call.

    Takes about two minutes on an idle core. Writes modules.json to OUTPUT.
    """
    settings = QUICK if quick else Settings()
    path = output / "modules.json"
    result = run_steps(
        path,
        {
            "command": current_command(context),
            "experiment": "models speed, plain modules",
            **conditions(["torch"]),
            "settings": vars(settings),
        },
        {
            f"{name}, {length}": partial(_time, name, length, settings.seconds)
            for name in MODELS
            for length in settings.lengths
        },
        resume=resume,
    )
    show(Console(), [modules_table(result)], [path])


def _time(name: str, length: int, seconds: float) -> dict[str, list[dict[str, Any]]]:
    """Time one model at one length with every rule."""
    torch.manual_seed(0)
    plain = MODELS[name]().eval().requires_grad_(False)
    x = torch.randn(1, length, WIDTH)
    calls: dict[str, Callable[[], object]] = {"plain": partial(plain, x)}
    with ExitStack() as stack, thread_count(1), torch.inference_mode():
        for rule, policy in RULES.items():
            other = twin(plain)
            stack.enter_context(sharpen(other, policy, example=x))
            calls[rule] = partial(other, x)
        timing = interleave(calls, baseline="plain", seconds=seconds)
    records = [
        {
            "model": name, "length": length, "rule": rule, "seconds": timing.best[rule],
            "baseline_seconds": timing.best["plain"], "rounds": timing.rounds[rule],
            "microseconds_per_call": 1e6 * (timing.best[rule] - timing.best["plain"]) / LAYERS,
        }
        for rule in RULES
    ]  # fmt: skip
    return {"records": records}


def modules_table(result: dict[str, Any]) -> Table:
    """Return one row per model, length and rule: time of a pass, and cost per call."""
    rows = []
    for record in result["records"]:
        cost = record["microseconds_per_call"]
        rows.append(
            [record["model"], record["rule"], f"{record['length']:,}"]
            + [f"{1e3 * record[name]:.2f}" for name in ("baseline_seconds", "seconds")]
            + [f"{cost:+.0f}".replace("-", "\N{MINUS SIGN}")]
        )
    return Table(
        ["module", "rule", "rows", "plain, ms", "sharpened, ms", "difference per call, µs"],
        rows,
        title="Cost of sharpening a plain PyTorch module",
        caption=f"{LAYERS} layers of {HEADS} heads, width {WIDTH}, one sequence, float32, one "
        f"thread, eager; {machine_line(result, {'torch': 'PyTorch'})}. Written by "
        f"`{result['command']}`.",
        words=2,
    )
