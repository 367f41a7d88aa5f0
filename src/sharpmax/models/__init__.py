"""Hugging Face models: see how far their attention spreads, and keep it sharp."""

from sharpmax._extras import require

transformers = require("transformers", extra="models", what="sharpmax.models")

if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < (5, 21):
    # Before, Gemma 2's own attention left its soft cap out in silence, and T5 could not be reached.
    raise ImportError(
        f"sharpmax.models: expected transformers 5.21 or later, got {transformers.__version__}: "
        "pip install 'sharpmax[models]'"
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
from sharpmax.models._calibration.result import Calibration, LayerCalibration, OtherModelError  # noqa: E402
from sharpmax.models._diagnosis.diagnose import diagnose  # noqa: E402
from sharpmax.models._diagnosis.heads import Distribution, Head, HeadRecord  # noqa: E402
from sharpmax.models._diagnosis.result import Diagnosis  # noqa: E402
from sharpmax.models._handle import LayerStatus, Sharpened  # noqa: E402
from sharpmax.models._interface import Recorder  # noqa: E402
from sharpmax.models._load import CannotLoadError, load_model  # noqa: E402
from sharpmax.models._plan import CannotSharpenError  # noqa: E402
from sharpmax.models._record import record  # noqa: E402
from sharpmax.models._sharpen import sharpen  # noqa: E402

__all__ = [
    "Answer",
    "Asked",
    "Calibration",
    "CannotLoadError",
    "CannotSharpenError",
    "DamagedFileError",
    "Diagnosis",
    "Distribution",
    "Head",
    "HeadRecord",
    "LayerCalibration",
    "LayerStatus",
    "OtherModelError",
    "Recorder",
    "Sharpened",
    "Splits",
    "Stage",
    "Window",
    "answer",
    "answer_loss",
    "calibrate",
    "diagnose",
    "load_model",
    "record",
    "sharpen",
    "text_loss",
    "text_splits",
]

_interface.register()
