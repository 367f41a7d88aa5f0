"""Test sets of CLRS-Text: no question twice, and no input of a training."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from experiments.clrs_text.task._examples import Example, Lengths, drawn_input, example, in_turn

__all__ = ["HeldOut", "held_out", "shared_inputs"]

# After this many draws without a new question, a length counts as exhausted.
_PATIENCE = 200


@dataclass(frozen=True)
class HeldOut:
    """A test set, and how many draws were rejected.

    Attributes:
        examples: The examples; no two of an algorithm and a length have the same question.
        each: The requested number per algorithm and length.
        repeated: Draws rejected because the set already had their question.
        shared: Draws rejected because training has their input.
        fewer: The number per algorithm and length where it is below `each`.
    """

    examples: tuple[Example, ...]
    each: int
    repeated: int
    shared: int
    fewer: Mapping[tuple[str, int], int]

    def __str__(self) -> str:
        """Summarise the numbers of examples and of rejected draws."""
        total = (
            f"{len(self.examples)} questions; rejected draws: {self.repeated} repeated, "
            f"{self.shared} shared with training"
        )
        few = (f"{name} at {length} has {n}" for (name, length), n in self.fewer.items())
        return "; ".join([total, *(f"{each} of {self.each}" for each in few)])


def held_out(
    algorithms: str | Sequence[str],
    lengths: Lengths,
    *,
    seed: int,
    each: int,
    use_hints: bool = False,
    training: Iterable[str] = (),
) -> HeldOut:
    """Draw a test set and check it.

    No training stream has inputs of the split "test", whatever its seed. Short inputs are few and
    often drawn twice; repeated draws are rejected until a length yields nothing new.

    Args:
        algorithms: One or more of `experiments.clrs_text.task.algorithms()`.
        lengths: One or more input sizes, at least 4; or a mapping from each algorithm to its sizes.
        seed: The same seed gives the same set.
        each: Number of examples per algorithm and length.
        use_hints: Whether answers start with the trace of the algorithm; the inputs are the same.
        training: Questions from elsewhere whose inputs must not occur, for any algorithm.

    Returns:
        The test set.

    Raises:
        ValueError: An algorithm is unknown, or a length is too small.
        MissingGeneratorError: dm-clrs is not installed.

    Example:
        >>> print(held_out("naive_string_matcher", [4, 64], seed=0, each=32))
        41 questions; rejected draws: 201 repeated, 0 shared with training;
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
    r"""Find the inputs that training and test questions share.

    Args:
        training: Training questions.
        test: Test questions.

    Returns:
        The shared inputs, for any algorithm. The two splits share none.

    Example:
        >>> shared_inputs(
        ...     ["bubble_sort:\nkey: [0.1 0.2]\npred:\n"], ["quicksort:\nkey: [0.1 0.2]\npred:\n"]
        ... )
        {'key: [0.1 0.2]'}
    """
    return {drawn_input(question) for question in training} & {
        drawn_input(question) for question in test
    }
