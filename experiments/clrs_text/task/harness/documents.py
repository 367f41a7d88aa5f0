"""What the descriptions of the tasks ask for: the questions, and their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.clrs_text.task._answers import is_right
from experiments.clrs_text.task._held_out import held_out
from sharpmax._extras import require

__all__ = ["ALGORITHMS", "LENGTHS", "documents", "process_results", "records"]

ALGORITHMS = (
    "activity_selector",
    "binary_search",
    "find_maximum_subarray_kadane",
    "insertion_sort",
    "kmp_matcher",
    "minimum",
    "naive_string_matcher",
    "quickselect",
    "segments_intersect",
    "task_scheduling",
)
"""Those whose questions and answers grow no faster than the input, unless others are named."""

LENGTHS = (4, 8, 16, 32, 64)
"""Sizes of the inputs, unless others are named."""


def records(
    *,
    algorithms: str | Sequence[str] = ALGORITHMS,
    lengths: int | Sequence[int] = LENGTHS,
    each: int = 20,
    seed: int = 0,
    use_hints: bool = False,
) -> list[dict[str, Any]]:
    r"""The questions of a task, as plain dicts.

    Args:
        algorithms: Names of algorithms.
        lengths: Sizes of the inputs.
        each: How many questions of each algorithm at each length; fewer where there are not so
            many different ones.
        seed: The same seed gives the same questions.
        use_hints: Whether answers begin with the trace of the algorithm.

    Returns:
        The questions, all of the split "test".

    Example:
        >>> records(algorithms="minimum", lengths=4, each=1)
        [{'question': 'minimum:...', 'answer': '3\n\n', 'algorithm': 'minimum', 'length': 4}]
    """
    drawn = held_out(algorithms, lengths, seed=seed, each=each, use_hints=use_hints)
    names = ("question", "answer", "algorithm", "length")
    return [{name: getattr(one, name) for name in names} for one in drawn.examples]


def documents(**settings: Any) -> dict[str, Any]:
    """The questions as the harness takes them.

    Args:
        **settings: Those of `records`. The harness adds some of its own, which say nothing here.

    Returns:
        A dataset for the one split that there is.

    Raises:
        MissingExtraError: datasets is not installed.
    """
    datasets = require("datasets", extra="harness", what="a task for lm-evaluation-harness")
    known = {
        name: value for name, value in settings.items() if name in (records.__kwdefaults__ or ())
    }
    return {"test": datasets.Dataset.from_list(records(**known))}


def process_results(document: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    r"""Score what a model wrote: once for its length and once among all.

    Args:
        document: One of the questions.
        results: What the model wrote, the first of which counts.

    Returns:
        The score, 0 or 1, by the names of the metrics.

    Example:
        >>> process_results({"answer": "0, 3 | 3\n\n", "length": 16}, ["0, 0 | 3"])
        {'exact_match': 1.0, 'length_016': 1.0}
    """
    right = float(is_right(results[0], document["answer"]))
    return {"exact_match": right, f"length_{document['length']:03d}": right}
