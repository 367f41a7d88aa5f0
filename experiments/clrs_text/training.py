"""Resumable training of a language model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.clrs_text.data import Batch, TrainingData, batches
from experiments.clrs_text.forward import training_logits
from experiments.clrs_text.methods import TrainedAttention
from experiments.clrs_text.model import answer_logits, prepared
from experiments.clrs_text.muon import Muon
from experiments.clrs_text.recipe import Recipe
from experiments.common.checkpoint import read_tensors, write_tensors
from sharpmax._files import SettingsChangedError

__all__ = ["Progress", "Training", "load_trained", "train", "weighted_loss"]

# Tokens per forward pass, if the model is not the small decoder; a batch may take several.
_AT_ONCE = 512
# Steps between reports.
_REPORT = 10
_BETAS = (0.9, 0.98)
_LAST_RATE = 0.05
# The state that optimisers keep per parameter.
_STATE = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")


class Progress(NamedTuple):
    """The progress of a training.

    Attributes:
        step: Batches so far.
        steps: Batches in total.
        loss: Weighted mean cross-entropy of answer tokens since the last report, in nats.
        speed: Tokens per second since the last report, questions included.
    """

    step: int
    steps: int
    loss: float
    speed: float


class Training:
    """A training in progress: the model and the state of the optimisers.

    Args:
        recipe: The recipe.
        seed: Seed of the initial weights and of the examples.
        examples: Folder that keeps drawn examples, or None.
        start: Weights that a tuned recipe starts from; None starts from new ones.
    """

    def __init__(
        self, recipe: Recipe, seed: int, examples: Path | None = None, start: Path | None = None
    ) -> None:
        self._data = TrainingData(recipe, seed, examples)
        self.recipe = recipe
        self.seed = seed
        self.step = 0
        self.tokens = 0
        self.losses: list[float] = []
        self.model, self.encoder = prepared(recipe, seed)
        self.attention = TrainedAttention(self.model, recipe)
        self._optimisers = self._make_optimisers()
        if start is not None:
            _, tensors = read_tensors(start)
            with torch.no_grad():
                for name, parameter in self._parameters().items():
                    if f"last.{name}" in tensors:
                        parameter.copy_(tensors[f"last.{name}"])
            self.attention.begin(self.encoder)
        self._averaged: dict[str, Tensor] = {}
        if recipe.averaging:
            self._averaged = {name: p.detach().clone() for name, p in self._parameters().items()}

    def run(self, until: int) -> Iterator[float]:
        """Train up to a step, and yield the weighted mean loss per token after every batch."""
        while self.step < until:
            encoded = [self.encoder(one, training=True) for one in self._data(self.step)]
            total_weight = sum((len(one.tokens) - one.asked) ** 0.5 for one in encoded)
            for optimiser in self._optimisers:
                for group in optimiser.param_groups:
                    group["lr"] = self._learning_rate()
                optimiser.zero_grad(set_to_none=True)
            total = 0.0
            for _, batch in batches(encoded, math.inf if self._small else _AT_ONCE):
                loss = weighted_loss(self.logits(batch), batch.targets) / total_weight
                loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(self._parameters().values(), 1.0)
            for optimiser in self._optimisers:
                optimiser.step()
            self.step += 1
            self._average()
            self.tokens += sum(len(one.tokens) for one in encoded)
            self.losses.append(float(f"{total:.5g}"))
            yield total

    def logits(self, batch: Batch) -> Tensor:
        """Return the logits of the answer tokens of a batch, [answers, vocabulary]."""
        if self._small:
            dtype = getattr(torch, self.recipe.products)
            return training_logits(self.model, batch, self.attention.attend, dtype)
        with self.attention:
            return answer_logits(self.model, batch)[batch.targets >= 0]

    @property
    def _small(self) -> bool:
        """Whether the model is the small decoder with embeddings of places."""
        return hasattr(self.model, "places")

    def save(self, path: Path) -> None:
        """Write the weights and the state of the optimisers."""
        tensors = {
            f"{key}.{name}": value
            for name, parameter in self._parameters().items()
            for key, value in {"last": parameter.detach(), **self._state(parameter)}.items()
        }
        tensors |= {f"averaged.{name}": value for name, value in self._averaged.items()}
        write_tensors(path, tensors, self.description)

    def save_weights(self, path: Path) -> None:
        """Write the weights alone, averaged if the recipe says so."""
        last = {name: p.detach() for name, p in self._parameters().items()}
        tensors = {f"last.{name}": value for name, value in (last | self._averaged).items()}
        write_tensors(path, tensors, self.description)

    @property
    def description(self) -> dict[str, Any]:
        """Describe the training and its progress, as plain data."""
        return {
            "recipe": self.recipe.to_dict(),
            "seed": self.seed,
            "step": self.step,
            "tokens": self.tokens,
            "losses": self.losses,
        }

    @classmethod
    def load(cls, path: Path, recipe: Recipe, seed: int, examples: Path | None = None) -> Training:
        """Continue from a file.

        Raises:
            SettingsChangedError: The file belongs to a training with another recipe or seed.
            DamagedFileError: The file is damaged.
        """
        description, tensors = read_tensors(path)
        training = cls(recipe, seed, examples)
        for name in ("recipe", "seed"):
            before, now = description[name], training.description[name]
            if before != now:
                raise SettingsChangedError(
                    f"{path}: this training has {name} {before}, not {now}; "
                    "use the same settings, or remove the file to start again"
                )
        training._take(description, tensors)
        for name, parameter in training._parameters().items():
            training._state(parameter).update(
                (key, tensors[f"{key}.{name}"]) for key in _STATE if f"{key}.{name}" in tensors
            )
        for name, average in training._averaged.items():
            average.copy_(tensors[f"averaged.{name}"])
        return training

    def _take(self, description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take over the progress and the weights of a file."""
        self.step, self.tokens = description["step"], description["tokens"]
        self.losses = description["losses"]
        with torch.no_grad():
            for name, parameter in self._parameters().items():
                parameter.copy_(tensors[f"last.{name}"])

    def _average(self) -> None:
        """Move the averaged weights; early averages forget faster, since weights change fast."""
        if self._averaged:
            decay = min(self.recipe.averaging, self.step / (self.step + 10))
            last = [parameter.detach() for parameter in self._parameters().values()]
            torch._foreach_lerp_(list(self._averaged.values()), last, 1 - decay)

    def _parameters(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters by name."""
        named = {
            **dict(self.model.named_parameters()),
            **{f"attention.{name}": p for name, p in self.attention.named_parameters()},
        }
        return {name: parameter for name, parameter in named.items() if parameter.requires_grad}

    def _make_optimisers(self) -> list[torch.optim.Optimizer]:
        """Make the optimisers: Muon for the matrices of layers if the recipe has it, and AdamW."""
        decay = self.recipe.weight_decay
        matrices = [p for name, p in self._parameters().items() if p.ndim == 2]
        others = [p for p in self._parameters().values() if p.ndim != 2]
        optimisers: list[torch.optim.Optimizer] = []
        if self.recipe.optimiser == "muon":
            embeddings = self.model.get_input_embeddings().weight
            inner = [p for p in matrices if p is not embeddings]
            matrices = [p for p in matrices if p is embeddings]
            optimisers.append(Muon(inner, weight_decay=decay))
        groups = [
            {"params": matrices, "weight_decay": decay},
            {"params": others, "weight_decay": 0.0},
        ]
        optimisers.append(torch.optim.AdamW(groups, betas=_BETAS, fused=True))
        return optimisers

    def _state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return the state that an optimiser keeps for a parameter."""
        for optimiser in self._optimisers:
            if any(parameter is p for group in optimiser.param_groups for p in group["params"]):
                state: dict[str, Tensor] = optimiser.state[parameter]
                return state
        raise AssertionError("every parameter has an optimiser")

    def _learning_rate(self) -> float:
        recipe = self.recipe
        if self.step < recipe.warmup:
            return recipe.learning_rate * (self.step + 1) / recipe.warmup
        way = (self.step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
        falling = (1 + math.cos(math.pi * way)) / 2
        return recipe.learning_rate * (_LAST_RATE + (1 - _LAST_RATE) * falling)


def weighted_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum the cross-entropy of each answer, divided by the square root of its length.

    An answer of sixteen tokens counts four times as much as one of a single token. A factor of
    sixteen would leave short answers unlearned, a factor of one long answers.

    Args:
        logits: Logits of the answer tokens, [answers, vocabulary].
        targets: Tokens, and -100 for padding, [examples, places].

    Returns:
        The sum over answers.
    """
    asked = (targets >= 0).to(logits.device)
    losses = F.cross_entropy(logits, targets.to(logits.device)[asked], reduction="none")
    weights = asked.sum(-1, keepdim=True).to(losses).rsqrt().expand_as(asked)
    return (losses * weights[asked]).sum()


def train(
    recipe: Recipe,
    seed: int,
    folder: Path,
    *,
    on_progress: Callable[[Progress], None] = lambda _: None,
    every: float = 30.0,
    examples: Path | None = None,
    start: Path | None = None,
) -> Path:
    """Train a model, or resume an interrupted training.

    Args:
        recipe: The recipe.
        seed: Seed of the initial weights and of the examples.
        folder: Folder for `checkpoint.safetensors` and, at the end, `weights.safetensors`.
        on_progress: Called after every 10 batches.
        every: Seconds between checkpoints.
        examples: Folder that keeps drawn examples for other trainings, or None.
        start: As in `Training`.

    Returns:
        The file of the final weights.

    Raises:
        SettingsChangedError: The folder holds a training with other settings.
        FloatingPointError: The loss is no longer finite; the last checkpoint stays.
    """
    final, checkpoint = folder / "weights.safetensors", folder / "checkpoint.safetensors"
    if checkpoint.exists():
        training = Training.load(checkpoint, recipe, seed, examples)
    else:
        training = Training(recipe, seed, examples, start)
    saved = begun = time.monotonic()
    tokens = training.tokens
    losses: list[float] = []
    # The final weights are written before the last checkpoint: whoever finds that checkpoint also
    # finds the weights.
    for loss in training.run(recipe.steps):
        losses.append(loss)
        if not math.isfinite(loss):
            raise FloatingPointError(f"{folder.name}: the loss is {loss} at step {training.step}")
        last = training.step == recipe.steps
        if last:
            training.save_weights(final)
        if time.monotonic() - saved > every or last:
            training.save(checkpoint)
            saved = time.monotonic()
        if len(losses) == _REPORT or last:
            speed = (training.tokens - tokens) / (time.monotonic() - begun)
            on_progress(Progress(training.step, recipe.steps, sum(losses) / len(losses), speed))
            begun, tokens = time.monotonic(), training.tokens
            losses.clear()
    return final


def load_trained(path: Path) -> Training:
    """Load a trained model for testing.

    Args:
        path: A file of weights.

    Returns:
        The training, with its model in evaluation mode. It cannot be continued.

    Raises:
        DamagedFileError: The file is damaged.
    """
    description, tensors = read_tensors(path)
    training = Training(Recipe.from_dict(description["recipe"]), description["seed"])
    training._take(description, tensors)
    training.model.train(False)
    return training
