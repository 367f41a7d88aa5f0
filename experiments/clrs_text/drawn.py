"""The examples of a training, drawn once for all arms that are trained on the same."""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple
from pathlib import Path

from experiments.clrs_text.data import training_examples
from experiments.clrs_text.recipe import Recipe
from experiments.clrs_text.task import Example
from sharpmax._files import read_sealed, write_sealed

__all__ = ["Drawn"]

_KIND = "CLRS-Text examples, format 1"
# Batches in a file.
_TOGETHER = 64


class Drawn:
    """The batches of a training; in a folder they are kept, for other trainings on the same.

    Drawing takes as long as a quarter of a training, since dm-clrs runs the algorithm for every
    example.

    Args:
        recipe: What is trained.
        seed: Of the training.
        folder: Where to keep what was drawn; None draws every batch anew.
    """

    def __init__(self, recipe: Recipe, seed: int, folder: Path | None = None) -> None:
        self._recipe = recipe
        self._seed = seed
        self._folder = folder
        # What `training_examples` depends on.
        of_recipe = recipe.to_dict()
        names = ("lengths", "batch", "curriculum", "steps")
        told = json.dumps([of_recipe[name] for name in names])
        digest = hashlib.blake2b(told.encode(), digest_size=6).hexdigest()
        self._name = f"{digest}-seed-{seed}"
        self._file = -1
        self._batches: list[list[Example]] = []

    def __call__(self, step: int) -> list[Example]:
        """The examples of a batch."""
        if self._folder is None:
            return training_examples(self._recipe, self._seed, step)
        file, place = divmod(step, _TOGETHER)
        if file != self._file:
            self._batches = self._read(self._folder / self._name / f"{file:05}.json", file)
            self._file = file
        return self._batches[place]

    def _read(self, path: Path, file: int) -> list[list[Example]]:
        """Read the batches of a file; draw them if there is none."""
        if not path.exists():
            steps = range(file * _TOGETHER, min((file + 1) * _TOGETHER, self._recipe.steps))
            drawn = [training_examples(self._recipe, self._seed, step) for step in steps]
            batches = [[astuple(one) for one in batch] for batch in drawn]
            # Two trainings may draw the same at a time: they write the same.
            write_sealed(path, _KIND, {"batches": batches})
            return drawn
        kept = read_sealed(path, _KIND)["batches"]
        return [[Example(*one) for one in batch] for batch in kept]
