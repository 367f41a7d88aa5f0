"""Examples of CLRS-Text: each depends on its seed and its index alone."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

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
    "is_correct",
    "score",
    "split_of",
    "without_trace",
]

Split: TypeAlias = Literal["train", "test"]
"""What an example is for. Every input belongs to one split, see `split_of`."""

Lengths: TypeAlias = int | Sequence[int] | Mapping[str, Sequence[int]]
"""One length, several, or several per algorithm."""

# One input in this many is for tests.
_TEST_SHARE = 8
# Far more draws than needed, unless a length has too few inputs to have any for tests.
_ATTEMPTS = 1000
# Separates the trace of an algorithm from its result.
_SEPARATOR = "|"


@dataclass(frozen=True)
class Example:
    """A question about an input, and its answer, in the wording of CLRS-Text.

    Attributes:
        question: The algorithm, the input, and what is asked for; ends with a newline.
        answer: The trace if there is one, a bar, and the result; ends with an empty line.
        algorithm: Name of the algorithm.
        length: Size of the input.
        use_hints: Whether traces were requested; `segments_intersect` has none.
        split: What the example is for.
        index: Its index in its stream.
        seed: The seed with which dm-clrs's own generators draw this example first, unless its
            numbers were moved to be close.
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
        """The answer without the trace."""
        return without_trace(self.answer)


def without_trace(answer: str) -> str:
    r"""Return the result at the end of an answer.

    Args:
        answer: One line, in which a bar separates the trace, if there is one, from the result.

    Returns:
        The text after the bar, without surrounding white space.

    Example:
        >>> without_trace("(0, 1), (0, 2) | (0, 3)\n\n"), without_trace("0, 3\n\n")
        ('(0, 3)', '0, 3')
    """
    return answer.partition("\n")[0].rpartition(_SEPARATOR)[-1].strip()


def is_correct(generated: str, answer: str) -> bool:
    """Tell whether a generated text gives the same result as an answer; see `score`."""
    line = generated.partition("\n")[0]
    has_trace = _SEPARATOR in answer
    return has_trace == (_SEPARATOR in line) and without_trace(line) == without_trace(answer)


def score(generated: str, example: Example) -> bool:
    r"""Tell whether a generated text has the correct answer, character by character.

    Only the first line counts. With a trace, the text after the bar must be correct; the trace
    itself need not be. An unfinished trace has no answer.

    Args:
        generated: What a model wrote after the question.
        example: The example with the question.

    Returns:
        Whether the answer is correct.

    Example:
        >>> one = next(examples("minimum", 4, seed=0, use_hints=True))
        >>> one.answer
        '0, 0 | 0\n\n'
        >>> score("0, 2 | 0\n\nminimum:", one), score("0, 0", one)
        (True, False)
    """
    return is_correct(generated, example.answer)


def drawn_input(question: str) -> str:
    r"""Extract the input from a question.

    Args:
        question: The question of an example, with or without a trace.

    Returns:
        The input.

    Raises:
        ValueError: The text is not a question.

    Example:
        >>> drawn_input("minimum:\nkey: [0.5 0.1], initial_trace: 0\ntrace | min:\n")
        'key: [0.5 0.1]'
    """
    lines = question.split("\n")
    if len(lines) != 4:
        raise ValueError(
            "question: expected three lines (algorithm, input, what is asked for), "
            f"got {question[:80]!r}"
        )
    return lines[1].partition(", initial_trace:")[0]


def split_of(question: str) -> Split:
    """Assign a question to a split by a hash of its input.

    One input in eight is for tests. The splits share no input, whatever the seeds, algorithms and
    lengths, with or without traces.

    Args:
        question: The question of an example.

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
    ties: bool = False,
) -> Example:
    """Draw one example.

    Args:
        algorithm: One of `algorithms()`.
        length: Size of the input, at least 4.
        seed: Seed of the stream.
        index: Index of the example in the stream.
        use_hints: Whether the answer starts with the trace of the algorithm; the input is the same.
        split: The split that the input must belong to.
        ties: Whether many of its numbers are close or equal. The stream is another one.

    Returns:
        The example.

    Raises:
        ValueError: The algorithm or the split is unknown, or the length is too small.
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
        name = f"{seed}/{split}/{algorithm}/{length}/{index}/{attempt}" + "/ties" * ties
        own = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big")
        drawn = sample(algorithm, length, seed=own, use_hints=use_hints, ties=ties)
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
    """Draw examples of all algorithms at all lengths in turn.

    Each example depends on the seed and its index alone, so a stream can be continued from any
    index.

    Args:
        algorithms: One or more of `experiments.clrs_text.task.algorithms()`.
        lengths: One or more input sizes, at least 4; or a mapping from each algorithm to its sizes.
        seed: The same seed gives the same examples.
        use_hints: Whether answers start with the trace of the algorithm; the inputs are the same.
        split: What the examples are for. The two splits share no input, whatever the seeds.
        start: Index of the first example.
        count: Number of examples; None draws without end.

    Yields:
        The examples.

    Raises:
        ValueError: An algorithm or the split is unknown, a length is too small, or there are none.
        MissingGeneratorError: dm-clrs is not installed.

    Example:
        >>> names = ["minimum", "quickselect"]
        >>> [(e.algorithm, e.length) for e in examples(names, [4, 8], seed=0, count=3)]
        [('minimum', 4), ('minimum', 8), ('quickselect', 4)]
        >>> first = list(examples(names, [4, 8], seed=0, count=5))
        >>> first[3:] == list(examples(names, [4, 8], seed=0, start=3, count=2))
        True
    """
    turns = in_turn(algorithms, lengths)
    numbers = itertools.count(start) if count is None else range(start, start + count)
    for index in numbers:
        algorithm, length = turns[index % len(turns)]
        yield example(algorithm, length, seed=seed, index=index, use_hints=use_hints, split=split)


def in_turn(algorithms: str | Sequence[str], lengths: Lengths) -> list[tuple[str, int]]:
    """Pair all algorithms with all of their lengths.

    Raises:
        ValueError: There are no algorithms, or an algorithm has no lengths.

    Example:
        >>> in_turn(["bfs", "dfs"], {"bfs": [4, 8], "dfs": [16]})
        [('bfs', 4), ('bfs', 8), ('dfs', 16)]
    """
    names = [algorithms] if isinstance(algorithms, str) else algorithms
    if not isinstance(lengths, Mapping):
        lengths = dict.fromkeys(names, [lengths] if isinstance(lengths, int) else lengths)
    if missing := [name for name in names if name not in lengths]:
        raise ValueError(
            f"lengths: expected those of all algorithms, got none of {', '.join(missing)}"
        )
    turns = [(name, length) for name in names for length in lengths[name]]
    if not turns:
        raise ValueError(
            f"algorithms, lengths: expected at least one of each, got {algorithms}, {lengths}"
        )
    return turns


@dataclass(frozen=True)
class Stream:
    """Examples as plain dicts, for data loaders; can be iterated more than once.

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
        """Return the stream as an `IterableDataset` of the package datasets.

        Raises:
            MissingExtraError: datasets is not installed.
        """
        datasets = require("datasets", extra="harness", what="a dataset of CLRS-Text")
        return datasets.IterableDataset.from_generator(_records, gen_kwargs={"stream": self})


def _records(stream: Stream) -> Iterator[dict[str, Any]]:
    yield from stream
