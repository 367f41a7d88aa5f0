"""Train a stack of heads, so that it can be stopped at any moment and go on."""

from __future__ import annotations

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
from experiments.max_retrieval.methods import normaliser
from experiments.max_retrieval.recipe import Recipe
from experiments.max_retrieval.task import sample
from sharpmax._files import SettingsChangedError

__all__ = ["Progress", "Training", "load_heads", "train"]

# Batches are drawn this many at a time. A block depends on its seed and its number alone, so a
# training that goes on sees the batches that it would have seen.
_BLOCK = 50
_SIZES, _ITEMS = 0, 1


class Progress(NamedTuple):
    """How far a training is.

    Attributes:
        step: Batches so far.
        steps: Batches in all.
        loss: Mean cross-entropy over seeds since the last report, in nats.
    """

    step: int
    steps: int
    loss: float


class Training:
    """A training under way: weights, their average, and the state of the optimiser.

    Args:
        recipe: How to train.
        seeds: A seed for each model; it sets the first weights and the batches.
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
        """Train up to a step; gives the mean loss over seeds after every batch."""
        parameters = [parameter.detach() for parameter in self.heads.parameters()]
        averaged = list(self.averaged.values())
        while self.step < until:
            block, first = divmod(self.step, _BLOCK)
            sizes, *batches = self._draw(block)
            for index in range(first, min(_BLOCK, until - block * _BLOCK)):
                size = sizes[index]
                priorities, classes, queries = (batch[:, index] for batch in batches)
                scores = self.heads(priorities[..., :size], classes[..., :size], queries)
                # By the first items of the set, which are the ones that the model sees.
                largest = priorities[..., :size].argmax(-1, keepdim=True)
                targets = classes.gather(-1, largest).flatten()
                loss = F.cross_entropy(scores.flatten(0, 1), targets, reduction="sum")
                loss = loss / self.recipe.batch
                self._optimiser.param_groups[0]["lr"] = self._learning_rate()
                self._optimiser.zero_grad(set_to_none=True)
                # The seeds' losses are added, so each seed has the gradient of its own.
                loss.backward()
                self._optimiser.step()
                torch._foreach_lerp_(averaged, parameters, 1 - self.recipe.averaging)
                self.step += 1
                yield loss.item() / len(self.seeds)

    def save(self, path: Path) -> None:
        """Write everything that going on needs, whole or not at all."""
        tensors = {f"averaged.{name}": tensor for name, tensor in self.averaged.items()}
        for name, parameter in self.heads.named_parameters():
            tensors[f"last.{name}"] = parameter.detach()
            for key, value in self._optimiser.state[parameter].items():
                tensors[f"{key}.{name}"] = value
        write_tensors(path, tensors, self.description)

    def save_weights(self, path: Path) -> None:
        """Write the last and the averaged weights alone."""
        tensors = {f"averaged.{name}": tensor for name, tensor in self.averaged.items()}
        for name, parameter in self.heads.named_parameters():
            tensors[f"last.{name}"] = parameter.detach()
        write_tensors(path, tensors, self.description)

    @property
    def description(self) -> dict[str, Any]:
        """What the training is, and how far."""
        return {"recipe": self.recipe.to_dict(), "seeds": list(self.seeds), "step": self.step}

    @classmethod
    def load(cls, path: Path, recipe: Recipe, seeds: Sequence[int]) -> Training:
        """Go on from a file.

        Raises:
            SettingsChangedError: The file is of a training with another recipe or other seeds.
            ValueError: The file is damaged.
        """
        description, tensors = read_tensors(path)
        training = cls(recipe, seeds)
        for name, value in training.description.items():
            if name != "step" and description[name] != value:
                raise SettingsChangedError(
                    f"{path}: this training began with {name} {description[name]}, not {value}; "
                    f"go on with the same settings, or remove the file to begin anew"
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
    """Train heads, or go on where an earlier call was stopped.

    Args:
        recipe: How to train.
        seeds: A seed for each model.
        folder: Where the files are: `checkpoint.safetensors`, and `weights-STEP.safetensors` for
            each step that is kept.
        keep: Steps whose weights are kept, beside the last.
        on_progress: Called after every 50 batches.
        every: Seconds from one checkpoint to the next.

    Returns:
        The file of the weights after the last step.

    Raises:
        SettingsChangedError: The folder holds a training with other settings.
        FloatingPointError: The loss is not finite any more; the last checkpoint stays.
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
    # A weights file is written before the checkpoint of its step, so none is missed on going on.
    for loss in training.run(recipe.steps):
        losses.append(loss)
        if not math.isfinite(loss):
            raise FloatingPointError(f"{folder.name}: the loss is {loss} at step {training.step}")
        if training.step in kept:
            training.save_weights(weights_path(folder, training.step))
        if time.monotonic() - saved > every or training.step == recipe.steps:
            training.save(checkpoint)
            saved = time.monotonic()
        if len(losses) == _BLOCK or training.step == recipe.steps:
            on_progress(Progress(training.step, recipe.steps, sum(losses) / len(losses)))
            losses.clear()
    return final


def weights_path(folder: Path, step: int) -> Path:
    """Where the weights after a step are."""
    return folder / f"weights-{step}.safetensors"


def load_heads(path: Path, weights: Literal["last", "averaged"]) -> tuple[Heads, Recipe]:
    """Heads that were trained.

    Args:
        path: A file of weights.
        weights: Those after the last step, or the moving average.

    Returns:
        The heads, and the recipe that they were trained by.

    Raises:
        ValueError: The file is damaged.
    """
    description, tensors = read_tensors(path)
    recipe = Recipe.from_dict(description["recipe"])
    heads = Heads(description["seeds"], normaliser(recipe, description["seeds"]), recipe.width)
    heads.load_state_dict({name: tensors[f"{weights}.{name}"] for name in heads.state_dict()})
    return heads.requires_grad_(False), recipe
