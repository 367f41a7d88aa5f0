"""What the room needs to be entered."""

from __future__ import annotations

import importlib
import sys

import pytest

import sharpmax
from sharpmax import MissingExtraError, models


@pytest.mark.parametrize("name", ["models", "sharpen"])
def test_without_transformers_the_extra_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sharpmax.__dict__, name, raising=False)
    with pytest.raises(MissingExtraError, match=r"sharpmax\[models\]"):
        getattr(sharpmax, name)


def test_an_older_transformers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # The one that is found now: transformers may put another module in its place.
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "5.20.2")
    with pytest.raises(ImportError, match=r"expected transformers 5.21 or later, got 5.20.2"):
        importlib.reload(models)


def test_sharpen_stands_at_the_front() -> None:
    assert sharpmax.sharpen is models.sharpen
    assert {"models", "sharpen"} <= set(dir(sharpmax))


@pytest.mark.parametrize(
    "name", ["CannotLoadError", "CannotSharpenError", "DamagedFileError", "OtherModelError"]
)
def test_tracebacks_name_the_public_place_of_an_error(name: str) -> None:
    error = getattr(models, name)
    assert f"{error.__module__}.{error.__qualname__}" == f"sharpmax.models.{name}"
