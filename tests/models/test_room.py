"""What the room needs to be entered."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sharpmax
import torch_models
from model_families import shared
from sharpmax import MissingExtraError, models
from sharpmax.policies import Constant


@pytest.mark.parametrize("name", ["models", "sharpen"])
def test_without_pytorch_the_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sharpmax.__dict__, name, raising=False)
    with pytest.raises(MissingExtraError, match=r"sharpmax\[models\]"):
        getattr(sharpmax, name)


def test_an_older_transformers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = shared("llama")
    # The one that is found now: transformers may put another module in its place.
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "5.20.2")
    with pytest.raises(ImportError, match=r"expected transformers 5.21 or later, got 5.20.2"):
        sharpmax.sharpen(model, Constant(2.0))
    # It is in no one's way who has another module.
    importlib.reload(models)
    with models.sharpen(torch_models.Stack(torch_models.Attention()), Constant(2.0)):
        pass


WITHOUT_TRANSFORMERS = """
import sys

sys.modules.update(dict.fromkeys(["huggingface_hub", "safetensors", "transformers"]))

import torch

import sharpmax
from sharpmax.models import Calibration, Splits, load_model, record
from sharpmax.policies import Constant
from torch_models import WIDTH, Attention, Stack

torch.manual_seed(0)
model = Stack(Attention(causal=True))
inputs = {n: torch.randn(2, n, WIDTH) for n in (8, 16)}
plain = model(inputs[16])
with sharpmax.sharpen(model, Constant(3.0)) as sharpened:
    assert not torch.allclose(model(inputs[16]), plain)
    assert [row.why_not for row in sharpened.status()] == [None]

class Counts:
    rows = 0
    def record(self, layer, statistics):
        self.rows += statistics.count.numel()

counts = Counts()
with record(model, counts):
    model(inputs[16])
assert counts.rows == 2 * 2 * 16
assert len(sharpmax.diagnose(model, inputs).heads) == 2

items = list(torch.randn(12, 6, WIDTH))
def loss(model, items):
    return model(torch.stack(items)).square().mean((1, 2))
splits = Splits(items[:4], items[4:8], items[8:])
found = sharpmax.calibrate(
    model, splits, objective=loss, family="constant", tolerance=float("inf"), steps=2
)
assert isinstance(found, Calibration)
evaluation = sharpmax.evaluate(
    model,
    changes={"sharper": Constant(3.0)},
    metric=lambda model, items: -loss(model, items),
    data={6: items},
)
assert {"plain", "sharper"} <= {result.arm for result in evaluation.results}
with sharpmax.monitor(model, every=1).step():
    model(inputs[8])
try:
    load_model("smollm2")
except sharpmax.MissingExtraError as error:
    print(error)
"""


def test_other_modules_do_not_need_transformers() -> None:
    places = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRANSFORMERS],
        env=os.environ | {"PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "loading a model needs transformers" in done.stdout


def test_sharpen_stands_at_the_front() -> None:
    assert sharpmax.sharpen is models.sharpen
    assert {"models", "sharpen"} <= set(dir(sharpmax))


@pytest.mark.parametrize(
    "name", ["CannotLoadError", "CannotSharpenError", "DamagedFileError", "OtherModelError"]
)
def test_tracebacks_name_the_public_place_of_an_error(name: str) -> None:
    error = getattr(models, name)
    assert f"{error.__module__}.{error.__qualname__}" == f"sharpmax.models.{name}"
