"""Models of others: measure how their attention spreads, and keep it sharp."""

# ruff: noqa: E402

import sys
from contextlib import suppress

from sharpmax._extras import require

require("torch", extra="models", what="sharpmax.models")

from sharpmax._files import DamagedFileError
from sharpmax.models import _hugging_face
from sharpmax.models._answers import Answer, Asked, answer
from sharpmax.models._attachment import Recorder
from sharpmax.models._calibration.calibrate import Stage, calibrate
from sharpmax.models._calibration.objectives import (
    Splits,
    Window,
    answer_loss,
    text_loss,
    text_splits,
)
from sharpmax.models._calibration.result import Calibration, LayerCalibration, OtherModelError
from sharpmax.models._calibration.shared import Shared
from sharpmax.models._diagnosis.diagnose import diagnose
from sharpmax.models._diagnosis.examples import ExampleKey, ExampleRow
from sharpmax.models._diagnosis.heads import Distribution, Head, HeadRecord
from sharpmax.models._diagnosis.result import Diagnosis
from sharpmax.models._evaluation.evaluate import EvaluationProgress, evaluate
from sharpmax.models._evaluation.result import CellResult, Evaluation
from sharpmax.models._evaluation.verdict import Comparison, Verdict
from sharpmax.models._fold.fold import fold
from sharpmax.models._fold.gguf import GgufReport, fold_gguf
from sharpmax.models._fold.report import CannotFoldError, Folded, FoldReport, NotFolded
from sharpmax.models._handle import LayerStatus, Sharpened
from sharpmax.models._load import CannotLoadError, load_model
from sharpmax.models._monitor.alarms import Alarm, AlarmRules
from sharpmax.models._monitor.monitor import AttentionWarning, Monitor, monitor
from sharpmax.models._monitor.readings import HeadReading, Reading
from sharpmax.models._sharpen import record, sharpen
from sharpmax.models._way import CannotSharpenError

__all__ = [
    "Alarm", "AlarmRules", "Answer", "Asked", "AttentionWarning", "Calibration", "CannotFoldError",
    "CannotLoadError", "CannotSharpenError", "CellResult", "Comparison", "DamagedFileError",
    "Diagnosis", "Distribution", "Evaluation", "EvaluationProgress", "ExampleKey", "ExampleRow",
    "FoldReport", "Folded", "GgufReport", "Head", "HeadReading", "HeadRecord", "LayerCalibration",
    "LayerStatus", "Monitor", "NotFolded", "OtherModelError", "Reading", "Recorder", "Shared",
    "Sharpened", "Splits", "Stage", "Verdict", "Window", "answer", "answer_loss", "calibrate",
    "diagnose", "evaluate", "fold", "fold_gguf", "load_model", "monitor", "record", "sharpen",
    "text_loss", "text_splits",
]  # fmt: skip

for _error in (
    CannotFoldError, CannotLoadError, CannotSharpenError, DamagedFileError, OtherModelError,
):  # fmt: skip
    # Tracebacks show where to import it from.
    _error.__module__ = __name__

if "transformers" in sys.modules:
    # A sharpened model that is unpickled looks up its attention by name. If the version is too old
    # for that, those who have only other modules need not know.
    with suppress(ImportError):
        _hugging_face.register()
