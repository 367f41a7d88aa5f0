"""Settings and names of calibrations and evaluations, for Python and for the command line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

__all__ = [
    "LENGTHS",
    "PAPER",
    "PLAIN",
    "SHUFFLED",
    "TASKS",
    "UNIFORM",
    "UNIFORM_BETA",
    "WORDINGS",
    "CalibrationSettings",
    "EvaluationSettings",
    "Task",
    "Wording",
    "is_control",
    "only_text",
]

Task = Literal["passkey", "key-value", "maximum", "text"]
TASKS: tuple[Task, ...] = get_args(Task)
"""What a model can be evaluated on; "text" is the loss per token on ordinary text."""

Wording = Literal["usual", "unseen"]
WORDINGS: tuple[Wording, ...] = get_args(Wording)
"""How questions are worded: as in a fit, or in ways that no fit has seen."""

LENGTHS = (1024, 2048, 4096)
"""Tokens per prompt and window in an evaluation."""


UNIFORM_BETA = 1.1
"""The inverse temperature of all heads in one of the controls."""

# Names of the plain model and of the controls in an evaluation.
PLAIN = "plain"
PAPER = "paper in all heads"
UNIFORM = f"uniform beta {UNIFORM_BETA:g}"
SHUFFLED = "shuffled "


def is_control(name: str) -> bool:
    """Tell whether a name is that of the plain model or of a control that needs no fit."""
    return name in (PLAIN, PAPER) or name.startswith(("uniform beta ", SHUFFLED))


def only_text(tasks: Iterable[str]) -> bool:
    """Tell whether ordinary text is the only task: then less is better, and nothing is asked."""
    return set(tasks) == {"text"}


@dataclass(frozen=True)
class EvaluationSettings:
    """What all cells of an evaluation have in common.

    Attributes:
        model: Name of the model.
        texts: Size in characters of each text, by name.
        questions: Questions per cell.
        contexts: Passages of text per cell.
        windows: Windows of text per cell.
        seed: Seed of the questions.
        dtype: Data type of the model.
    """

    model: str
    texts: dict[str, int]
    questions: int = 100
    contexts: int = 25
    windows: int = 16
    seed: int = 0
    dtype: str = "float32"


@dataclass(frozen=True)
class CalibrationSettings:
    """What the families of a calibration study have in common.

    Attributes:
        model: Name of the model.
        texts: Size in characters of each text for fitting and selecting, by name.
        test_texts: The same for the test; empty if the test uses the ends of `texts`.
        tasks: The tasks of the objective; "text" alone is the loss per token.
        objective: How heads are selected: by "answers", the nats per correct answer, or by "exact",
            the share of wrong answers.
        lengths: Tokens per prompt.
        contexts: Contexts per task and length, for fitting, selecting and the test.
        windows: Windows of ordinary text for the same, each as long as the longest prompt.
        tolerance: Nats by which the loss on ordinary text may rise.
        flatten: Whether heads may become less sharp, in families that allow it.
        steps: Steps per fit.
        batch: Contexts per step.
        text_batch: Windows per step.
        text_weight: Weight of ordinary text in the fit and in the selection.
        learning_rate: Learning rate of Adam.
        shrink: Weight of the L1 penalty.
        seed: Seed of the questions and of the order of the data.
        dtype: Data type of the model.
    """

    model: str
    texts: dict[str, int]
    test_texts: dict[str, int]
    tasks: tuple[Task, ...] = ("passkey", "key-value")
    objective: Literal["answers", "exact"] = "answers"
    lengths: tuple[int, ...] = (512, 1024)
    contexts: tuple[int, int, int] = (32, 24, 16)
    windows: tuple[int, int, int] = (32, 24, 16)
    tolerance: float = 0.02
    flatten: bool = False
    steps: int = 60
    batch: int = 4
    text_batch: int = 2
    text_weight: float = 30.0
    learning_rate: float = 0.03
    shrink: float = 1e-4
    seed: int = 0
    dtype: str = "float32"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as JSON returns it."""
        return {n: list(v) if isinstance(v, tuple) else v for n, v in asdict(self).items()}
