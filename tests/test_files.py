from __future__ import annotations

from sharpmax import _files
from sharpmax import _results as results


def test_results_are_written_by_the_same_functions() -> None:
    # What they do is tested with the results.
    for name in _files.__all__:
        assert getattr(results, name) is getattr(_files, name)
