"""Evaluations and calibrations of a model that there is not, with the answers that a test needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sharpmax._settings import TASKS, UNIFORM, EvaluationSettings
from sharpmax.models import Calibration, CellResult, Evaluation, LayerCalibration
from sharpmax.models._evaluation.cells import Cell, cells_of
from sharpmax.policies import Constant

HEADS = (4, 4, 4)
LENGTHS = (1024, 2048, 4096)

SETTINGS: dict[str, Any] = {
    "model": "Abacus <small>",
    "texts": {"book.txt": 600_000},
    "test_texts": {"other book.txt": 300_000},
    "tasks": ["passkey", "key-value"],
    "lengths": [512, 1024],
}


def make_calibration(
    family: str,
    betas: Mapping[tuple[int, int], float] | None = None,
    gains: Mapping[tuple[int, int], float] | None = None,
    certain: float | None = 0.5,
    **notes: Any,
) -> Calibration:
    """A calibration with some betas and gains, by layer and head."""
    betas, gains = betas or {}, gains or {}
    layers = []
    for index, count in enumerate(HEADS):
        given = [betas.get((index, head), 1.0) for head in range(count)]
        factors = [gains.get((index, head), 1.0) for head in range(count)]
        policy = Constant(np.array(given)) if any(beta != 1 for beta in given) else None
        gain = tuple(factors) if any(factor != 1 for factor in factors) else None
        if policy is not None or gain is not None:
            layers.append(LayerCalibration(index, policy, gain))
    chosen = None
    candidates = []
    heads = len({*betas, *gains})
    for share, scale in ((1.0, 1.0), (1.0, 0.7), (0.5, 1.0), (0.1, 0.4)):
        gain_here = 2.4 * (certain or 0.1) * share**0.5 * scale
        candidates.append(
            {
                "share": share,
                "scale": scale,
                "heads": max(1, round(share * heads)),
                "gain": gain_here,
                "certain": gain_here - 0.3,
                "rise": 0.03 * share * scale**2 - 0.004,
                "harm": 0.03 * share * scale**2,
            }
        )
    if certain is not None:
        chosen = {**candidates[1], "certain": certain}
    figures = {"before": 4.0, "after": 3.0, "change": -1.0, "interval": [-1.2, -0.8]}
    every = {
        "family": family,
        "tolerance": 0.02,
        "steps": 60,
        "learning_rate": 0.03,
        "shrink": 1e-4,
        "seed": 0,
        "settings": SETTINGS,
        "select": {"chosen": chosen, "candidates": candidates},
        "test": {"objective": figures, "text": {**figures, "change": 0.01}},
        **notes,
    }
    return Calibration(
        "somewhere/Abacus <small>", "llama", HEADS, tuple(layers), lengths=(512, 1024),
        objective="nats per answer", before=4.0, after=3.0,
        split_sizes={"fit": 64, "select": 48, "test": 32}, notes=every,
    )  # fmt: skip


CALIBRATIONS = {
    "constant": make_calibration("constant", {(0, 1): 1.4, (1, 2): 1.25, (2, 0): 1.1, (2, 3): 0.8}),
    "gain": make_calibration("gain", gains={(0, 0): 1.2, (2, 2): 0.7}, certain=0.3),
    "constant+gain": make_calibration(
        "constant+gain", {(0, 1): 1.4, (1, 2): 1.3}, {(0, 1): 1.1, (2, 2): 0.8}, certain=0.6
    ),
}

SHARES = {
    "plain": 0.5,
    "constant": 0.8,
    "gain": 0.55,
    "constant+gain": 0.8,
    "paper in all heads": 0.05,
    UNIFORM: 0.45,
    "shuffled constant+gain": 0.3,
}
"""How much of the questions each arm answers right, if a test does not say otherwise."""


def make_evaluation(
    shares: Mapping[str, float] | None = None,
    cells: Sequence[Cell] | None = None,
    *,
    questions: int = 200,
    contexts: int = 25,
    rises: Mapping[str, float] | None = None,
) -> Evaluation:
    """Arms that answer a share of the questions each, a little less at long lengths."""
    shares, rises = {**SHARES} if shares is None else dict(shares), rises or {}
    texts = {"other book.txt": 300_000}
    settings = EvaluationSettings("Abacus <small>", texts, questions, contexts, 12)
    made = Evaluation(
        settings, "sharpmax calibrate abacus", [],
        arms=dict.fromkeys(shares), versions={"sharpmax": "0.1", "torch": "2.0"},
        machine={"system": "Linux", "architecture": "x", "processor": "P", "processors": 2},
    )  # fmt: skip
    for number, cell in enumerate(cells_of(TASKS, LENGTHS) if cells is None else cells):
        rng = np.random.default_rng(number)
        if cell.task == "text":
            losses = 3.0 + 0.1 * rng.standard_normal(12)
            for place, arm in enumerate(shares):
                rise = rises.get(arm, 0.002 * place) + 0.001 * rng.standard_normal(12) * bool(place)
                values = tuple((losses + rise).tolist())
                made.results.append(_result(arm, cell, values, range(12)))
            continue
        # How hard a question is, the same for all arms, and partly that of its context.
        own = np.arange(questions) % contexts
        if cell.task == "maximum":
            own = np.arange(questions)
        hard = (rng.random(questions) + rng.random(questions)[own]) / 2
        order = hard.argsort().argsort() / questions
        for arm, share in shares.items():
            less = 0.04 * LENGTHS.index(cell.length) if cell.length in LENGTHS else 0.0
            values = tuple((order < share - less).astype(float).tolist())
            made.results.append(_result(arm, cell, values, own.tolist()))
    return made


def _result(arm: str, cell: Cell, values: tuple[float, ...], contexts: Sequence[int]) -> CellResult:
    found = (arm, cell.task, cell.length, cell.wording, values)
    # As if what is right took a tenth of a nat, and what is wrong two.
    likely = () if cell.task == "text" else tuple(-0.1 if value else -2.0 for value in values)
    return CellResult(*found, log_probabilities=likely, contexts=tuple(contexts))
