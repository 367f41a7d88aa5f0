"""Examples of CLRS-Text without end: each depends on its seed and its number alone."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

from experiments.clrs_text.task._answers import without_trace
from experiments.clrs_text.task._generator import sample, write
from sharpmax._extras import require

__all__ = [
    "Example",
    "Lengths",
    "Split",
    "Stream",
    "drawn_input",
    "example",
    "examples",
    "in_turn",
    "split_of",
]

Split: TypeAlias = Literal["train", "test"]
"""What examples are for. Every input belongs to one of the two, see `split_of`."""

Lengths: TypeAlias = int | Sequence[int] | Mapping[str, Sequence[int]]
"""One length, several, or those of each algorithm."""

# One input in so many is for tests.
_TEST_SHARE = 8
# Far more than are needed, unless a length has too few inputs to have any for tests.
_ATTEMPTS = 1000


@dataclass(frozen=True)
class Example:
    """A question about an input and its answer, in the words of CLRS-Text.

    Attributes:
        question: Name of the algorithm, the input, and what is asked for; ends with a line.
        answer: The trace if there is one, a bar, and what it comes to; ends with an empty line.
        algorithm: Name of the algorithm.
        length: Size of the input.
        use_hints: Whether traces were asked for; `segments_intersect` has none.
        split: What the example is for.
        index: Its number in its stream.
        seed: With this seed dm-clrs's own generators give this very example first.
    """

    question: str
    answer: str
    algorithm: str
    length: int
    use_hints: bool
    split: Split
    index: int
    seed: int

    @property
    def text(self) -> str:
        """The question and the answer."""
        return self.question + self.answer

    @property
    def target(self) -> str:
        """What the answer comes to, without the trace."""
        return without_trace(self.answer)


def drawn_input(question: str) -> str:
    r"""What was drawn for a question: its input, without the algorithm and what is asked for.

    Args:
        question: Of an example, with or without a trace.

    Returns:
        The input.

    Raises:
        ValueError: It is not a question.

    Example:
        >>> drawn_input("minimum:\nkey: [0.5 0.1], initial_trace: 0\ntrace | min:\n")
        'key: [0.5 0.1]'
    """
    lines = question.split("\n")
    if len(lines) != 4:
        raise ValueError(
            "question: expected an algorithm, an input and what is asked for, each with its line, "
            f"got {question[:80]!r}"
        )
    return lines[1].partition(", initial_trace:")[0]


def split_of(question: str) -> Split:
    """What a question is for, decided by its input alone.

    Every eighth input, by a hash of its text, is for tests and all others for training. So the two
    share no input, whatever the seeds, the algorithms and the lengths, traces or none.

    Args:
        question: Of an example.

    Returns:
        The split.
    """
    digest = hashlib.blake2b(drawn_input(question).encode(), digest_size=8).digest()
    return "train" if int.from_bytes(digest, "big") % _TEST_SHARE else "test"


def example(
    algorithm: str,
    length: int,
    *,
    seed: int,
    index: int = 0,
    use_hints: bool = False,
    split: Split = "train",
) -> Example:
    """Draw one example.

    Args:
        algorithm: One of `algorithms()`.
        length: Size of the input, at least 4.
        seed: Of the stream.
        index: Number of the example in the stream.
        use_hints: Whether the answer begins with the trace of the algorithm; the input is the same.
        split: What the example is for: only inputs of this split are drawn.

    Returns:
        The example.

    Raises:
        ValueError: There is no such algorithm or split, or the length is too small for it.
        MissingGeneratorError: dm-clrs is not installed.

    Example:
        >>> print(example("minimum", 4, seed=0).question)
        minimum:
        key: [0.059 0.296 0.691 0.071]
        min:
        <BLANKLINE>
    """
    if split not in get_args(Split):
        raise ValueError(f"split: expected one of {', '.join(get_args(Split))}, got {split!r}")
    for attempt in range(_ATTEMPTS):
        name = f"{seed}/{split}/{algorithm}/{length}/{index}/{attempt}"
        own = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big")
        drawn = sample(algorithm, length, seed=own)
        question, answer = write(algorithm, drawn)
        if split_of(question) == split:
            if use_hints:
                question, answer = write(algorithm, drawn, use_hints=True)
            return Example(question, answer, algorithm, length, use_hints, split, index, own)
    raise ValueError(
        f"length: expected one at which {algorithm} has inputs for {split}; {length} has none in "
        f"{_ATTEMPTS} draws"
    )


def examples(
    algorithms: str | Sequence[str],
    lengths: Lengths,
    *,
    seed: int,
    use_hints: bool = False,
    split: Split = "train",
    start: int = 0,
    count: int | None = None,
) -> Iterator[Example]:
    """Draw examples, of all algorithms at all lengths in turn.

    Each example depends on the seed and its number alone, so a stream goes on from any number as
    if it had never stopped.

    Args:
        algorithms: One or more of `experiments.clrs_text.task.algorithms()`.
        lengths: One or more sizes of the input, at least 4; or a mapping from each algorithm to
            its own.
        seed: The same seed gives the same examples.
        use_hints: Whether answers begin with the trace of the algorithm; the inputs are the same.
        split: What the examples are for. The two splits share no input, whatever the seeds.
        start: Number of the first example.
        count: How many; None draws without end.

    Yields:
        The examples.

    Raises:
        ValueError: There is no such algorithm or split, a length is too small, or there are none.
        MissingGeneratorError: dm-clrs is not installed.

    Example:
        >>> names = ["minimum", "quickselect"]
        >>> [(e.algorithm, e.length) for e in examples(names, [4, 8], seed=0, count=3)]
        [('minimum', 4), ('minimum', 8), ('quickselect', 4)]
        >>> begun = list(examples(names, [4, 8], seed=0, count=5))
        >>> begun[3:] == list(examples(names, [4, 8], seed=0, start=3, count=2))
        True
    """
    turns = in_turn(algorithms, lengths)
    numbers = itertools.count(start) if count is None else range(start, start + count)
    for index in numbers:
        algorithm, length = turns[index % len(turns)]
        yield example(algorithm, length, seed=seed, index=index, use_hints=use_hints, split=split)


def in_turn(algorithms: str | Sequence[str], lengths: Lengths) -> list[tuple[str, int]]:
    """All algorithms at all of their lengths.

    Raises:
        ValueError: There are none, or an algorithm has none.

    Example:
        >>> in_turn(["bfs", "dfs"], {"bfs": [4, 8], "dfs": [16]})
        [('bfs', 4), ('bfs', 8), ('dfs', 16)]
    """
    names = [algorithms] if isinstance(algorithms, str) else algorithms
    of_all = [lengths] if isinstance(lengths, int) else lengths
    if isinstance(of_all, Mapping) and not of_all.keys() >= set(names):
        without = ", ".join(name for name in names if name not in of_all)
        raise ValueError(f"lengths: expected those of all algorithms, got none of {without}")
    turns = [
        (name, length)
        for name in names
        for length in (of_all[name] if isinstance(of_all, Mapping) else of_all)
    ]
    if not turns:
        raise ValueError(
            f"algorithms, lengths: expected one of each at least, got {algorithms}, {lengths}"
        )
    return turns


@dataclass(frozen=True)
class Stream:
    """Examples as plain dicts, for loaders of data; may be gone through again and again.

    The attributes are the arguments of `examples`.

    Example:
        >>> stream = Stream("minimum", [4, 8], seed=0, count=100)
        >>> [(record["length"], record["target"]) for record in stream][:2]
        [(4, '0'), (8, '5')]
    """

    algorithms: str | Sequence[str]
    lengths: Lengths
    seed: int
    use_hints: bool = False
    split: Split = "train"
    start: int = 0
    count: int | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        arguments = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for one in examples(**arguments):
            yield asdict(one) | {"text": one.text, "target": one.target}

    def to_datasets(self) -> Any:
        """The stream as an `IterableDataset` of the package datasets.

        Raises:
            MissingExtraError: datasets is not installed.
        """
        datasets = require("datasets", extra="harness", what="a dataset of CLRS-Text")
        return datasets.IterableDataset.from_generator(_records, gen_kwargs={"stream": self})


def _records(stream: Stream) -> Iterator[dict[str, Any]]:
    yield from stream
