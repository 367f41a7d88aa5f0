"""Settings and names of calibrations and evaluations, for Python and for the command line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Task = Literal["passkey", "key-value", "maximum", "text", "metric"]
TASKS: tuple[Task, ...] = get_args(Task)[:-1]
"""What a model can be evaluated on; "text" is the loss per token on ordinary text."""

METRIC: Task = "metric"
"""The task of an evaluation by a function of the user's own, for which more is better."""

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
    """What all cells of an evaluation have in common."""

    model: str
    texts: dict[str, int]  # size in characters of each text
    questions: int = 100  # per cell, as contexts and windows
    contexts: int = 25  # passages that the questions are about
    windows: int = 16  # of text, for the loss
    seed: int = 0  # of the questions
    dtype: str = "float32"


@dataclass(frozen=True)
class CalibrationSettings:
    """What the families of a calibration study have in common."""

    model: str
    texts: dict[str, int]  # size in characters of each text for fitting and selecting
    test_texts: dict[str, int]  # the same for the test; empty if it uses the ends of `texts`
    tasks: tuple[Task, ...] = ("passkey", "key-value")  # "text" alone is the loss per token
    # Heads are selected by the nats per correct answer, or by the share of wrong answers.
    objective: Literal["answers", "exact"] = "answers"
    lengths: tuple[int, ...] = (512, 1024)  # tokens per prompt; windows have the longest
    contexts: tuple[int, int, int] = (32, 24, 16)  # per task and length: fit, select, test
    windows: tuple[int, int, int] = (32, 24, 16)  # of ordinary text: fit, select, test
    tolerance: float = 0.02  # nats by which the loss on ordinary text may rise
    flatten: bool = False  # whether heads may become less sharp, in families that allow it
    steps: int = 60  # per fit
    batch: int = 4  # contexts per step
    text_batch: int = 2  # windows per step
    text_weight: float = 30.0  # of ordinary text, in the fit and in the selection
    learning_rate: float = 0.03  # of Adam
    shrink: float = 1e-4  # weight of the L1 penalty
    seed: int = 0  # of the questions and of the order of the data
    dtype: str = "float32"
    fit_dtype: str | None = None  # precision of fitting and selecting; None: that of the model
    check_every: int = 0  # steps between checks that can end a fit early; 0: none

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as JSON returns it."""
        return {n: list(v) if isinstance(v, tuple) else v for n, v in asdict(self).items()}
