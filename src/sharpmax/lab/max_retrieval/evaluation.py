"""How often heads are right, at any number of items, on the same sets for all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sharpmax.lab.max_retrieval.head import Heads
from sharpmax.tasks.max_retrieval import CLASSES, Sets, sample

__all__ = [
    "Answering",
    "Streamed",
    "Weigh",
    "accuracy",
    "accuracy_as_trained",
    "number_of_sets",
    "unlabelled_sets",
]

Weigh = Callable[[Tensor], Tensor]
"""Logits [sets, items] to weights of the same shape."""

# First numbers of the seeds of random streams; trainings use others.
_TEST, _UNLABELLED = 1001, 1002
# Items whose hidden layer is in memory at a time: 8192 x 128 numbers stay in the cache.
_ITEMS = 8192


def number_of_sets(n: int) -> int:
    """How many sets a size is tested on in a full run: 4,096 up to n = 1,024, and 1,024 above."""
    return 4096 if n <= 1024 else 1024


def test_sets(n: int, sets: int) -> Iterator[Sets]:
    """The test sets of a size, a few at a time: the same for every head and every method.

    Args:
        n: Items in a set.
        sets: Number of sets in all.
    """
    few = max(1, _ITEMS // n)
    for number, start in enumerate(range(0, sets, few)):
        yield sample(np.random.default_rng((_TEST, n, number)), min(few, sets - start), n)


test_sets.__test__ = False  # type: ignore[attr-defined]


class Answering(Protocol):
    """Something that answers sets, with weights made in one of several ways."""

    def logits(self, sets: Sets) -> Tensor:
        """Logits of the items, [sets, items]."""

    def scores(self, ways: Sequence[Weigh], sets: Sets) -> Tensor:
        """Scores of the classes for each way to make weights: [sets, ways, classes]."""


class Streamed:
    """A head whose items stream: an item's logit and weights are kept, not its hidden layer.

    Args:
        heads: A stack of one, whose logits are one map of products.
    """

    def __init__(self, heads: Heads) -> None:
        self._heads = heads

    def logits(self, sets: Sets) -> Tensor:
        """Logits of the items, [sets, items]."""
        priorities, classes, queries = _tensors(sets)
        with torch.inference_mode():
            hidden = self._heads.hidden(priorities[None], classes[None])
            return self._heads.logits(hidden, self._heads.probes(queries[None]))[0, :, 0]

    def scores(self, ways: Sequence[Weigh], sets: Sets) -> Tensor:
        """Scores of the classes for each way to make weights: [sets, ways, classes]."""
        priorities, classes, queries = _tensors(sets)
        blocks = [slice(at, at + _ITEMS) for at in range(0, priorities.shape[1], _ITEMS)]

        # One block is kept; of several, each is made again for the mixture.
        @functools.lru_cache(maxsize=1)
        def hidden(number: int) -> Tensor:
            block = blocks[number]
            return self._heads.hidden(priorities[None, :, block], classes[None, :, block])

        with torch.inference_mode():
            probes = self._heads.probes(queries[None])
            numbers = range(len(blocks))
            logits = [self._heads.logits(hidden(number), probes)[0, :, 0] for number in numbers]
            row = torch.cat(logits, -1)
            weights = torch.stack([weigh(row) for weigh in ways], 1)
            mixture = torch.zeros(len(row), len(ways), self._heads.width)
            for number, block in enumerate(blocks):
                mixture += weights[..., block] @ hidden(number)[0]
            scores = self._heads.scores(mixture.flatten(0, 1)[None])[0]
            return scores.reshape(len(row), len(ways), CLASSES)


def accuracy(
    head: Answering, weighs: Mapping[str, Sequence[Weigh]], n: int, sets: int
) -> dict[str, float]:
    """Share of the test sets that a head answers right, with other weights of the same logits.

    Args:
        head: Answers sets.
        weighs: By name, ways to make weights of logits. Where there are several under a name, a set
            counts as right if it is right with one of them.
        n: Items in a set.
        sets: Number of test sets.

    Returns:
        Accuracy by name.
    """
    ways = [weigh for several in weighs.values() for weigh in several]
    right = dict.fromkeys(weighs, 0)
    for few in test_sets(n, sets):
        scores = head.scores(ways, few)
        hits = (scores.argmax(-1) == torch.from_numpy(few.targets)[:, None]).numpy()
        first = 0
        for name, several in weighs.items():
            right[name] += int(hits[:, first : first + len(several)].any(-1).sum())
            first += len(several)
    return {name: count / sets for name, count in right.items()}


def accuracy_as_trained(heads: Heads, n: int, sets: int) -> float:
    """Share of the test sets that a head answers right, with the weights that it was trained with.

    Args:
        heads: A stack of one.
        n: Items in a set.
        sets: Number of test sets.
    """
    right = 0
    for few in test_sets(n, sets):
        with torch.inference_mode():
            priorities, classes, queries = _tensors(few)
            scores = heads(priorities[None], classes[None], queries[None])[0]
        right += int((scores.argmax(-1) == torch.from_numpy(few.targets)).sum())
    return right / sets


def unlabelled_sets(n: int, sets: int = 2048) -> Sets:
    """Sets for calibration, apart from those of training and test; their labels are not used.

    Args:
        n: Items in a set.
        sets: Number of sets.
    """
    return sample(np.random.default_rng((_UNLABELLED, n)), sets, n)


def _tensors(sets: Sets) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.from_numpy(sets.priorities).float(),
        torch.from_numpy(sets.classes),
        torch.from_numpy(sets.queries).float(),
    )
