"""TabPFN v1: the architecture, its preprocessing and the conversion of its checkpoint.

Written from the publication and checked against the original code, which the set-up step fetches.
Rows of the context and of the test attend to the rows of the context only, so one attention per
layer serves both.
"""

from __future__ import annotations

import importlib
import sys
import types
import typing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from experiments.common.checkpoint import read_tensors, write_tensors
from sharpmax._files import RefusedError

__all__ = [
    "Config", "TabularTransformer", "convert", "load_model", "logits_of", "predict", "prepare",
]  # fmt: skip

Array = np.ndarray[Any, Any]

_CHECKPOINT = "pfns-0.3.0/models_diff/prior_diff_real_checkpoint_n_0_epoch_42.cpkt"


@dataclass(frozen=True)
class Config:
    """Hold the sizes of the model; the defaults are those of TabPFN v1."""

    features: int = 100
    classes: int = 10
    width: int = 512
    hidden: int = 1024
    heads: int = 4
    layers: int = 12


class Layer(nn.Module):
    """Attend to the context and apply a feed-forward network, each with a norm behind it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(config.width, config.heads, batch_first=True)
        self.linear1 = nn.Linear(config.width, config.hidden)
        self.linear2 = nn.Linear(config.hidden, config.width)
        self.norm1 = nn.LayerNorm(config.width)
        self.norm2 = nn.LayerNorm(config.width)

    def forward(self, rows: Tensor, keys: Tensor) -> Tensor:
        """Return the rows [batch, rows, width] after they attended to the keys."""
        attended, _ = self.self_attn(rows, keys, keys, need_weights=False)
        rows = self.norm1(rows + attended)
        hidden = nn.functional.gelu(self.linear1(rows))
        result: Tensor = self.norm2(rows + self.linear2(hidden))
        return result


class TabularTransformer(nn.Module):
    """Predict the classes of test rows from a context of labelled rows, in one pass.

    Example:
        >>> import torch
        >>> model = TabularTransformer(Config(features=3, classes=2, width=8, hidden=8, layers=1))
        >>> model(torch.zeros(1, 6, 3), torch.zeros(1, 4)).shape
        torch.Size([1, 2, 2])
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = nn.Linear(config.features, config.width)
        self.y_encoder = nn.Linear(1, config.width)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.layers)])
        self.decoder = nn.Sequential(
            nn.Linear(config.width, config.hidden),
            nn.GELU(),
            nn.Linear(config.hidden, config.classes),
        )

    def forward(self, x: Tensor, y: Tensor, *, lean: bool = False) -> Tensor:
        """Return logits [batch, test rows, classes].

        Args:
            x: [batch, rows, features], the rows of the context first.
            y: [batch, context], their classes.
            lean: Leave the rows of the context out of the queries of the last layer. The logits
                are the same; statistics of that layer are then those of the test rows.
        """
        context = y.shape[1]
        rows = self.encoder(x)
        labelled = rows[:, :context] + self.y_encoder(y[..., None])
        rows = torch.cat([labelled, rows[:, context:]], dim=1)
        *earlier, last = self.layers
        for layer in earlier:
            rows = layer(rows, rows[:, :context])
        tested = rows[:, context:]
        tested = (
            last(tested, rows[:, :context]) if lean else last(rows, rows[:, :context])[:, context:]
        )
        logits: Tensor = self.decoder(tested)
        return logits


def prepare(context: Array, test: Array, features: int = 100) -> Array:
    """Return the rows as the model expects them: scaled, outliers pulled in, padded with zeros.

    Everything is computed from the context. Missing values become the mean.

    Example:
        >>> import numpy as np
        >>> prepare(np.array([[0.0, 7.0], [2.0, 7.0]]), np.array([[1.0, 7.0]]), 4).shape
        (3, 4)
    """
    rows = np.concatenate([context, test]).astype(np.float64)
    size = len(context)
    present = [np.unique(c[~np.isnan(c)]).size > 1 for c in rows[:size].T]
    rows = rows[:, present]
    with np.errstate(invalid="ignore"):
        mean = np.nanmean(rows[:size], axis=0)
        deviation = np.nanstd(rows[:size], axis=0, ddof=1) + 1e-6
        rows = np.clip((rows - mean) / deviation, -100.0, 100.0)
        lower, upper = _limits(rows[:size])
        lower, upper = _limits(np.where((rows <= upper) & (rows >= lower), rows, np.nan)[:size])
        rows = np.maximum(lower - np.log1p(np.abs(rows)), rows)
        rows = np.minimum(upper + np.log1p(np.abs(rows)), rows)
    rows = np.nan_to_num(rows) * (features / max(rows.shape[1], 1))
    return np.pad(rows, ((0, 0), (0, features - rows.shape[1]))).astype(np.float32)


def _limits(rows: Array) -> tuple[Array, Array]:
    """Return mean minus and plus four standard deviations of each column."""
    mean, deviation = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0, ddof=1)
    return mean - 4 * deviation, mean + 4 * deviation


class _FastLinear(TorchFunctionMode):
    """Run linear layers by oneDNN, which takes half the time of the default on some processors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear and not kwargs and len(args) == 3:
            return torch.ops.mkldnn._linear_pointwise(*args, "none", [], "")
        return func(*args, **(kwargs or {}))


@torch.inference_mode()
def predict(
    model: TabularTransformer,
    context: Array,
    classes: Array,
    test: Array,
    count: int,
    *,
    lean: bool = False,
) -> Array:
    """Return the logits [test rows, classes] at the model's output temperature, 0.8.

    Args:
        model: The model, in evaluation mode.
        context: Features of the context, NaN where missing.
        classes: Classes 0, 1, … of the context.
        test: Features of the test rows.
        count: Number of classes.
        lean: Save time in the last layer; see `TabularTransformer.forward`.
    """
    with _FastLinear():
        return logits_of(model, context, classes, test, count, lean=lean).double().numpy()


def logits_of(
    model: TabularTransformer,
    context: Array,
    classes: Array,
    test: Array,
    count: int,
    *,
    lean: bool = True,
) -> Tensor:
    """Return what `predict` does as a tensor, through which gradients can pass."""
    x = torch.from_numpy(prepare(context, test, model.config.features))[None]
    y = torch.from_numpy(classes.astype(np.float32))[None]
    logits: Tensor = model(x, y, lean=lean)[0, :, :count] / 0.8
    return logits


def convert(packages: Path, path: Path) -> Path:
    """Write the checkpoint of the package as safetensors; only tensors are unpickled, once.

    Args:
        packages: The unpacked package that holds the checkpoint.
        path: File to write.
    """
    state, _, found = torch.load(packages / _CHECKPOINT, map_location="cpu", weights_only=True)
    config = Config(
        found["num_features"], found["max_num_classes"], found["emsize"],
        found["emsize"] * found["nhid_factor"], found["nhead"], found["nlayers"],
    )  # fmt: skip
    tensors = {
        name.removeprefix("module.").removeprefix("transformer_encoder."): tensor
        for name, tensor in state.items()
        if "criterion" not in name
    }
    write_tensors(path, tensors, asdict(config))
    return path


def load_model(path: Path) -> TabularTransformer:
    """Read the model that `convert` wrote, ready to predict."""
    config, tensors = read_tensors(path)
    model = TabularTransformer(Config(**config))
    model.load_state_dict(tensors)
    return model.eval().requires_grad_(False)


@torch.inference_mode()
def check_against_original(model: TabularTransformer, packages: Path) -> float:
    """Compare with the original code on random rows and return the largest difference of logits.

    Args:
        model: The converted model.
        packages: The unpacked package that holds the original code.

    Raises:
        RefusedError: The two disagree.
    """
    # The package's own front imports everything it can train with; its parts need none of that.
    front = types.ModuleType("tabpfn")
    front.__path__ = [str(packages / "tabpfn-0.1.11/tabpfn")]
    sys.modules["tabpfn"] = front
    # It imports names of typing from a module of PyTorch that no longer has them.
    nn.modules.transformer.__dict__.setdefault("Optional", typing.Optional)
    transformer = importlib.import_module("tabpfn.transformer")
    encoders = importlib.import_module("tabpfn.encoders")
    utils = importlib.import_module("tabpfn.utils")

    config = model.config
    original = transformer.TransformerModel(
        encoders.Linear(config.features, config.width, replace_nan_by_zero=True), config.classes,
        config.width, config.heads, config.hidden, config.layers,
        y_encoder=encoders.Linear(1, config.width),
    ).eval()  # fmt: skip
    original.load_state_dict(
        {
            f"transformer_encoder.{name}" if name.startswith("layers.") else name: tensor
            for name, tensor in model.state_dict().items()
        }
    )
    generator = np.random.default_rng(0)
    rows = np.exp(generator.normal(size=(160, 7)))
    classes = generator.integers(0, 3, 120)
    ours = predict(model, rows[:120], classes, rows[120:], 3) * 0.8
    x = utils.normalize_data(torch.from_numpy(rows)[:, None], normalize_positions=120)
    x = utils.remove_outliers(x, normalize_positions=120)
    x = utils.normalize_by_used_features_f(x, 7, config.features)
    x = torch.nn.functional.pad(x, (0, config.features - 7)).float()
    y = torch.from_numpy(classes).float()[:, None]
    theirs = original((None, x, y), single_eval_pos=120)[:, 0, :3].double().numpy()
    difference = float(np.abs(ours - theirs).max())
    if not difference < 1e-3:
        raise RefusedError(
            f"expected the logits of the original code to 1e-3, got {difference:.2g} off"
        )
    return difference
