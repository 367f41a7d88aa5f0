"""Hugging Face models: measure how their attention spreads, and keep it sharp."""

from sharpmax._extras import require

transformers = require("transformers", extra="models", what="sharpmax.models")

if tuple(int(number) for number in transformers.__version__.split(".")[:2]) < (5, 21):
    # Earlier versions silently drop the soft cap of Gemma 2, and T5 does not use the interface.
    raise ImportError(
        f"sharpmax.models: expected transformers 5.21 or later, got {transformers.__version__}; "
        "run pip install 'sharpmax[models]'"
    )

# After the checks above.
from sharpmax._files import DamagedFileError  # noqa: E402
from sharpmax.models import _interface  # noqa: E402
from sharpmax.models._answers import Answer, Asked, answer  # noqa: E402
from sharpmax.models._calibration.calibrate import Stage, calibrate  # noqa: E402
from sharpmax.models._calibration.objectives import (  # noqa: E402
    Splits,
    Window,
    answer_loss,
    text_loss,
    text_splits,
)
from sharpmax.models._calibration.result import (  # noqa: E402
    Calibration,
    LayerCalibration,
    OtherModelError,
)
from sharpmax.models._diagnosis.diagnose import diagnose  # noqa: E402
from sharpmax.models._diagnosis.heads import Distribution, Head, HeadRecord  # noqa: E402
from sharpmax.models._diagnosis.result import Diagnosis  # noqa: E402
from sharpmax.models._evaluation.evaluate import EvaluationProgress, evaluate  # noqa: E402
from sharpmax.models._evaluation.result import CellResult, Evaluation  # noqa: E402
from sharpmax.models._evaluation.verdict import Comparison, Verdict  # noqa: E402
from sharpmax.models._handle import LayerStatus, Sharpened  # noqa: E402
from sharpmax.models._inspect import CannotSharpenError  # noqa: E402
from sharpmax.models._interface import Recorder  # noqa: E402
from sharpmax.models._load import CannotLoadError, load_model  # noqa: E402
from sharpmax.models._record import record  # noqa: E402
from sharpmax.models._sharpen import sharpen  # noqa: E402

__all__ = [
    "Answer",
    "Asked",
    "Calibration",
    "CannotLoadError",
    "CannotSharpenError",
    "CellResult",
    "Comparison",
    "DamagedFileError",
    "Diagnosis",
    "Distribution",
    "Evaluation",
    "EvaluationProgress",
    "Head",
    "HeadRecord",
    "LayerCalibration",
    "LayerStatus",
    "OtherModelError",
    "Recorder",
    "Sharpened",
    "Splits",
    "Stage",
    "Verdict",
    "Window",
    "answer",
    "answer_loss",
    "calibrate",
    "diagnose",
    "evaluate",
    "load_model",
    "record",
    "sharpen",
    "text_loss",
    "text_splits",
]

_interface.register()
