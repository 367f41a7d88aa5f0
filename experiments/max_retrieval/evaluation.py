"""Measure the accuracy of heads at any number of items, on the same sets for all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from experiments.max_retrieval.head import Heads
from experiments.max_retrieval.task import CLASSES, Sets, sample

__all__ = [
    "Answering",
    "Streamed",
    "Weigh",
    "accuracy",
    "accuracy_as_trained",
    "number_of_sets",
    "unlabelled_sets",
]

Weigh = Callable[[Tensor, int], Tensor]
"""Turns logits [sets, items] and the number of items n into weights of the same shape.

There may be fewer logits than n: items that cannot matter are left out."""

NOTHING = 80.0
"""exp(-80) of a million items is far below the rounding of a sum of one."""

# First numbers of the seeds of random streams; trainings use others.
_TEST, _UNLABELLED = 1001, 1002
# Items drawn at a time; another number would give other test sets.
_DRAWN = 8192
# Items whose hidden layers are in memory at a time.
_ITEMS = 16384


def number_of_sets(n: int) -> int:
    """Return the number of test sets of a full run: 4,096 up to n = 1,024, and 1,024 above."""
    return 4096 if n <= 1024 else 1024


def test_sets(n: int, sets: int) -> Iterator[Sets]:
    """Yield the test sets of a size, a few at a time: the same for every head and every method.

    Args:
        n: Items in a set.
        sets: Total number of sets.
    """
    few = max(1, _DRAWN // n)
    for number, start in enumerate(range(0, sets, few)):
        yield sample(np.random.default_rng((_TEST, n, number)), min(few, sets - start), n)


test_sets.__test__ = False  # type: ignore[attr-defined]


class Answering(Protocol):
    """Answers sets, with weights made in one of several ways."""

    def logits(self, sets: Sets) -> Tensor:
        """Logits of the items, [sets, items]."""

    def scores(self, ways: Sequence[Weigh], sets: Sets) -> Tensor:
        """Scores of the classes for each way to make weights: [sets, ways, classes]."""


class Streamed:
    """A head whose items stream: logits and weights of items are kept, not their hidden layers.

    Args:
        heads: A stack of one, whose logits are plain products.
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

        # A single block is kept; several blocks are computed again for the mixture.
        @functools.lru_cache(maxsize=1)
        def hidden(number: int) -> Tensor:
            block = blocks[number]
            return self._heads.hidden(priorities[None, :, block], classes[None, :, block])

        with torch.inference_mode():
            probes = self._heads.probes(queries[None])
            numbers = range(len(blocks))
            logits = [self._heads.logits(hidden(number), probes)[0, :, 0] for number in numbers]
            row = torch.cat(logits, -1)
            items = _that_matter(row)
            row = row.gather(-1, items)
            weights = torch.stack([weigh(row, priorities.shape[1]) for weigh in ways], 1)
            if len(blocks) == 1:
                near = hidden(0)[0].gather(1, items[..., None].expand(-1, -1, self._heads.width))
            else:
                near = self._heads.hidden(
                    priorities.gather(-1, items)[None], classes.gather(-1, items)[None]
                )[0]
            scores = self._heads.scores((weights @ near).flatten(0, 1)[None])[0]
            return scores.reshape(len(row), len(ways), CLASSES)


def _that_matter(logits: Tensor) -> Tensor:
    """Return the indices of the items whose weights are not negligible in single precision, by row.

    The rest are so far below the largest logit that even their sum would add nothing, with any
    inverse temperature of at least 1.
    """
    largest = logits.amax(-1, keepdim=True)
    most = int((logits > largest - NOTHING).sum(-1).max())
    return logits.topk(most, -1, sorted=False).indices


def accuracy(
    head: Answering, weighs: Mapping[str, Sequence[Weigh]], n: int, sets: int
) -> dict[str, float]:
    """Return the accuracy of a head on the test sets, with other weights of the same logits.

    Args:
        head: Answers sets.
        weighs: By name, ways to turn logits into weights. If a name has several, a set counts as
            correct if one of them gives the right answer.
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
    """Return the accuracy of a head on the test sets, with the method that it was trained with.

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
    """Return sets for calibration, separate from training and test; their labels are not used.

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
