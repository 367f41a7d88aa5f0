"""Test sets of CLRS-Text: no question twice, and no input that training has seen."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from experiments.clrs_text.task._examples import Example, Lengths, drawn_input, example, in_turn

__all__ = ["HeldOut", "held_out", "shared_inputs"]

# After so many draws without a new question, a length is taken to have no more of them.
_PATIENCE = 200


@dataclass(frozen=True)
class HeldOut:
    """Examples for a test, and what was thrown away on the way to them.

    Attributes:
        examples: The examples; no two of an algorithm and a length have the same question.
        each: How many were asked for, of each algorithm at each length.
        repeated: Draws thrown away because their question was there already.
        shared: Draws thrown away because training had their input.
        fewer: How many there are of each algorithm at each length that has fewer than asked for.
    """

    examples: tuple[Example, ...]
    each: int
    repeated: int
    shared: int
    fewer: Mapping[tuple[str, int], int]

    def __str__(self) -> str:
        """Say how many there are, what was thrown away, and where there are too few."""
        said = (
            f"{len(self.examples)} questions; {self.repeated} draws were repeated and "
            f"{self.shared} shared with training"
        )
        few = (f"{name} at {length} has {n}" for (name, length), n in self.fewer.items())
        return "; ".join([said, *(f"{each} of {self.each}" for each in few)])


def held_out(
    algorithms: str | Sequence[str],
    lengths: Lengths,
    *,
    seed: int,
    each: int,
    use_hints: bool = False,
    training: Iterable[str] = (),
) -> HeldOut:
    """Draw a test set, and check it.

    Inputs of the split "test" are in no stream for training, whatever its seed. Short inputs are
    few, and often drawn twice: what comes again is thrown away and drawn anew, as long as there is
    anything new. The result says what was thrown away and where there are fewer than asked for.

    Args:
        algorithms: One or more of `experiments.clrs_text.task.algorithms()`.
        lengths: One or more sizes of the input, at least 4; or a mapping from each algorithm to
            its own.
        seed: The same seed gives the same set.
        each: How many examples of each algorithm at each length.
        use_hints: Whether answers begin with the trace of the algorithm; the inputs are the same.
        training: Questions to check against, from wherever they are; their inputs are left out,
            whichever algorithm they were for.

    Returns:
        The test set.

    Raises:
        ValueError: There is no such algorithm, or a length is too small for it.
        MissingGeneratorError: dm-clrs is not installed.

    Example:
        >>> print(held_out("naive_string_matcher", [4, 64], seed=0, each=32))
        41 questions; 201 draws were repeated and 0 shared with training;
        naive_string_matcher at 4 has 9 of 32
    """
    seen = {drawn_input(question) for question in training}
    found: list[Example] = []
    fewer: dict[tuple[str, int], int] = {}
    repeated = shared = 0
    for algorithm, length in in_turn(algorithms, lengths):
        own: dict[str, Example] = {}
        idle = 0
        for index in itertools.count():
            if len(own) == each or idle == _PATIENCE:
                break
            one = example(
                algorithm, length, seed=seed, index=index, use_hints=use_hints, split="test"
            )
            drawn = drawn_input(one.question)
            idle += 1
            if drawn in seen:
                shared += 1
            elif drawn in own:
                repeated += 1
            else:
                own[drawn], idle = one, 0
        found += own.values()
        if len(own) < each:
            fewer[algorithm, length] = len(own)
    return HeldOut(tuple(found), each, repeated, shared, fewer)


def shared_inputs(training: Iterable[str], test: Iterable[str]) -> set[str]:
    r"""The inputs that questions for training and for a test have in common.

    Args:
        training: Questions.
        test: Questions.

    Returns:
        Their common inputs, whichever algorithms they are for; of examples of the two splits,
        none.

    Example:
        >>> shared_inputs(
        ...     ["bubble_sort:\nkey: [0.1 0.2]\npred:\n"], ["quicksort:\nkey: [0.1 0.2]\npred:\n"]
        ... )
        {'key: [0.1 0.2]'}
    """
    return {drawn_input(question) for question in training} & {
        drawn_input(question) for question in test
    }
