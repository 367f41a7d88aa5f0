"""The functions that the task descriptions name: questions and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.clrs_text.task._examples import is_correct
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
"""Default algorithms: their questions and answers grow no faster than the input."""

LENGTHS = (4, 8, 16, 32, 64)
"""Default input sizes."""


def records(
    *,
    algorithms: str | Sequence[str] = ALGORITHMS,
    lengths: int | Sequence[int] = LENGTHS,
    each: int = 20,
    seed: int = 0,
    use_hints: bool = False,
) -> list[dict[str, Any]]:
    r"""Draw the questions of a task, as plain dicts.

    Args:
        algorithms: Names of algorithms.
        lengths: Sizes of the inputs.
        each: Questions per algorithm and length; fewer where there are not that many.
        seed: The same seed gives the same questions.
        use_hints: Whether answers start with the trace of the algorithm.

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
    """Draw the questions in the form that the harness expects.

    Args:
        **settings: The arguments of `records`. Other settings, which the harness adds, are ignored.

    Returns:
        A dataset for the split "test".

    Raises:
        MissingExtraError: datasets is not installed.
    """
    datasets = require("datasets", extra="harness", what="a task for lm-evaluation-harness")
    known = {
        name: value for name, value in settings.items() if name in (records.__kwdefaults__ or ())
    }
    return {"test": datasets.Dataset.from_list(records(**known))}


def process_results(document: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    r"""Score a generated answer, overall and for its length.

    Args:
        document: The question.
        results: The generated answers; only the first counts.

    Returns:
        The score, 0 or 1, by metric.

    Example:
        >>> process_results({"answer": "0, 3 | 3\n\n", "length": 16}, ["0, 0 | 3"])
        {'exact_match': 1.0, 'length_016': 1.0}
    """
    correct = float(is_correct(results[0], document["answer"]))
    return {"exact_match": correct, f"length_{document['length']:03d}": correct}
