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
from sharpmax._files import DamagedFile  # noqa: E402
from sharpmax.models import _door  # noqa: E402
from sharpmax.models._calibration import Calibration, LayerCalibration, OtherModel  # noqa: E402
from sharpmax.models._diagnose import diagnose  # noqa: E402
from sharpmax.models._diagnosis import Diagnosis, Distribution, Head, HeadRecord  # noqa: E402
from sharpmax.models._door import Recorder  # noqa: E402
from sharpmax.models._plan import CannotSharpen  # noqa: E402
from sharpmax.models._sharpen import sharpen  # noqa: E402
from sharpmax.models._sharpened import LayerStatus, Sharpened  # noqa: E402

__all__ = [
    "Calibration",
    "CannotSharpen",
    "DamagedFile",
    "Diagnosis",
    "Distribution",
    "Head",
    "HeadRecord",
    "LayerCalibration",
    "LayerStatus",
    "OtherModel",
    "Recorder",
    "Sharpened",
    "diagnose",
    "sharpen",
]

_door.register()
