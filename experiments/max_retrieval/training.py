"""Train a stack of heads; a training can be stopped at any moment and resumed."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.common.checkpoint import read_tensors, write_tensors
from experiments.max_retrieval.head import Heads
from experiments.max_retrieval.recipe import Recipe, normaliser
from experiments.max_retrieval.task import sample
from sharpmax._files import SettingsChangedError

__all__ = ["Progress", "Training", "load_heads", "train"]

# Batches are drawn this many at a time. A block depends on its seed and its number alone, so a
# resumed training sees the same batches.
_BLOCK = 50
_SIZES, _ITEMS = 0, 1


class Progress(NamedTuple):
    """The progress of a training.

    Attributes:
        step: Batches so far.
        steps: Batches in total.
        loss: Mean cross-entropy over seeds since the last report, in nats.
    """

    step: int
    steps: int
    loss: float


class Training:
    """Hold a training in progress: weights, their moving average, and the state of the optimiser.

    Args:
        recipe: How to train.
        seeds: One seed per model; it sets the initial weights and the batches.
    """

    def __init__(self, recipe: Recipe, seeds: Sequence[int]) -> None:
        self.recipe = recipe
        self.seeds = tuple(seeds)
        self.step = 0
        self.heads = Heads(seeds, normaliser(recipe, seeds), recipe.width)
        self.averaged = {
            name: parameter.detach().clone() for name, parameter in self.heads.named_parameters()
        }
        optimiser = torch.optim.AdamW if recipe.decoupled else torch.optim.Adam
        self._optimiser = optimiser(
            self.heads.parameters(),
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            fused=True,
        )

    def run(self, until: int) -> Iterator[float]:
        """Train up to a step; yield the mean loss over seeds after every batch."""
        parameters = [parameter.detach() for parameter in self.heads.parameters()]
        averaged = list(self.averaged.values())
        while self.step < until:
            block, first = divmod(self.step, _BLOCK)
            sizes, *batches = self._draw(block)
            for index in range(first, min(_BLOCK, until - block * _BLOCK)):
                size = sizes[index]
                priorities, classes, queries = (batch[:, index] for batch in batches)
                scores = self.heads(priorities[..., :size], classes[..., :size], queries)
                # The model sees the first items of the set, so they set the target.
                largest = priorities[..., :size].argmax(-1, keepdim=True)
                targets = classes.gather(-1, largest).flatten()
                loss = F.cross_entropy(scores.flatten(0, 1), targets, reduction="sum")
                loss = loss / self.recipe.batch
                self._optimiser.param_groups[0]["lr"] = self._learning_rate()
                self._optimiser.zero_grad(set_to_none=True)
                # The losses of the seeds are added, so each seed gets its own gradient.
                loss.backward()
                self._optimiser.step()
                torch._foreach_lerp_(averaged, parameters, 1 - self.recipe.averaging)
                self.step += 1
                yield loss.item() / len(self.seeds)

    def averaged_heads(self) -> Heads:
        """Return the heads with the averaged weights, for inference."""
        heads = copy.deepcopy(self.heads)
        heads.load_state_dict(self.averaged)
        return heads.requires_grad_(False)

    def save(self, path: Path, *, optimiser: bool) -> None:
        """Write the last and the averaged weights, and what resuming needs beside them.

        Args:
            path: The file; it is written whole or not at all.
            optimiser: Whether to write the state of the optimiser, which resuming needs.
        """
        tensors = {f"averaged.{name}": tensor for name, tensor in self.averaged.items()}
        for name, parameter in self.heads.named_parameters():
            tensors[f"last.{name}"] = parameter.detach()
            if optimiser:
                for key, value in self._optimiser.state[parameter].items():
                    tensors[f"{key}.{name}"] = value
        write_tensors(path, tensors, self.description)

    @property
    def description(self) -> dict[str, Any]:
        """The recipe, the seeds and the step."""
        return {"recipe": self.recipe.to_dict(), "seeds": list(self.seeds), "step": self.step}

    @classmethod
    def load(cls, path: Path, recipe: Recipe, seeds: Sequence[int]) -> Training:
        """Resume from a file.

        Raises:
            SettingsChangedError: The file is from a training with another recipe or other seeds.
            DamagedFileError: The file is damaged.
        """
        description, tensors = read_tensors(path)
        training = cls(recipe, seeds)
        for name, value in training.description.items():
            if name != "step" and description[name] != value:
                raise SettingsChangedError(
                    f"{path}: this training began with {name} {description[name]}, not {value}; "
                    "resume it with the same settings, or remove the file to start again"
                )
        training.step = description["step"]
        for name, parameter in training.heads.named_parameters():
            with torch.no_grad():
                parameter.copy_(tensors[f"last.{name}"])
            training.averaged[name].copy_(tensors[f"averaged.{name}"])
            training._optimiser.state[parameter] = {
                key: tensors[f"{key}.{name}"] for key in ("step", "exp_avg", "exp_avg_sq")
            }
        return training

    def _draw(self, block: int) -> tuple[list[int], Tensor, Tensor, Tensor]:
        recipe = self.recipe
        rng = np.random.default_rng((_SIZES, block))
        sizes = rng.integers(recipe.smallest, recipe.largest + 1, _BLOCK).tolist()
        drawn = [
            sample(
                np.random.default_rng((_ITEMS, seed, block)),
                (_BLOCK, recipe.batch),
                recipe.largest,
                recipe.ties,
            )
            for seed in self.seeds
        ]
        return (
            sizes,
            torch.from_numpy(np.stack([sets.priorities for sets in drawn])).float(),
            torch.from_numpy(np.stack([sets.classes for sets in drawn])).long(),
            torch.from_numpy(np.stack([sets.queries for sets in drawn])).float(),
        )

    def _learning_rate(self) -> float:
        recipe = self.recipe
        if recipe.schedule == "constant":
            return recipe.learning_rate
        return recipe.learning_rate * (1 + math.cos(math.pi * self.step / recipe.steps)) / 2


def train(
    recipe: Recipe,
    seeds: Sequence[int],
    folder: Path,
    *,
    keep: Sequence[int] = (),
    on_progress: Callable[[Progress], None] = lambda _: None,
    every: float = 30.0,
) -> Path:
    """Train heads, or resume a training that was stopped.

    Args:
        recipe: How to train.
        seeds: One seed per model.
        folder: Folder of the files: `checkpoint.safetensors`, and `weights-STEP.safetensors` for
            each step that is kept.
        keep: Steps whose weights are kept, beside the last.
        on_progress: Called after every 50 batches.
        every: Seconds from one checkpoint to the next.

    Returns:
        The file of the weights after the last step.

    Raises:
        SettingsChangedError: The folder holds a training with other settings.
        FloatingPointError: The loss is no longer finite; the last checkpoint stays.
    """
    final = weights_path(folder, recipe.steps)
    checkpoint = folder / "checkpoint.safetensors"
    if checkpoint.exists():
        training = Training.load(checkpoint, recipe, seeds)
    else:
        training = Training(recipe, seeds)
    kept = {*keep, recipe.steps}
    saved = time.monotonic()
    losses: list[float] = []
    # A weights file is written before the checkpoint of its step, so none is missing after a stop.
    for loss in training.run(recipe.steps):
        losses.append(loss)
        if not math.isfinite(loss):
            raise FloatingPointError(f"{folder.name}: the loss is {loss} at step {training.step}")
        if training.step in kept:
            training.save(weights_path(folder, training.step), optimiser=False)
        if time.monotonic() - saved > every or training.step == recipe.steps:
            training.save(checkpoint, optimiser=True)
            saved = time.monotonic()
        if len(losses) == _BLOCK or training.step == recipe.steps:
            on_progress(Progress(training.step, recipe.steps, sum(losses) / len(losses)))
            losses.clear()
    return final


def weights_path(folder: Path, step: int) -> Path:
    """Return the file of the weights after a step."""
    return folder / f"weights-{step}.safetensors"


def load_heads(path: Path, weights: Literal["last", "averaged"]) -> tuple[Heads, Recipe]:
    """Load trained heads.

    Args:
        path: A file of weights.
        weights: The weights after the last step, or their moving average.

    Returns:
        The heads, and the recipe of their training.

    Raises:
        DamagedFileError: The file is damaged.
    """
    description, tensors = read_tensors(path)
    recipe = Recipe.from_dict(description["recipe"])
    heads = Heads(description["seeds"], normaliser(recipe, description["seeds"]), recipe.width)
    heads.load_state_dict({name: tensors[f"{weights}.{name}"] for name in heads.state_dict()})
    return heads.requires_grad_(False), recipe
