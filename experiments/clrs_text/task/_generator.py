"""Access to dm-clrs, the package that defines CLRS-Text, without TensorFlow.

dm-clrs defines the algorithms, their inputs and their wording; nothing is reimplemented here.
`import clrs` also imports models and data pipelines, and with them TensorFlow, which drawing an
example only uses for one type check.

This module therefore imports the modules of dm-clrs without their parents. During the import, empty
packages replace `clrs` and `clrs._src.clrs_text`, and an empty module replaces TensorFlow. They are
removed from `sys.modules` afterwards, so that a later `import clrs` gets the complete package. If
`clrs` is already imported, that package is used.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

from sharpmax._extras import MissingExtraError

__all__ = [
    "DECIMALS",
    "NARROWEST",
    "SHORTEST",
    "SORTS",
    "WITH_TIES",
    "MissingGeneratorError",
    "Sample",
    "algorithms",
    "draw",
    "sample",
    "write",
]

Sample: TypeAlias = Any
"""An input and the output of an algorithm, as dm-clrs represents them."""

DECIMALS = 3
"""Decimals of numbers, as in CLRS-Text; further digits are cut off."""

SORTS = ("bubble_sort", "heapsort", "insertion_sort", "quicksort")
"""The algorithms that sort; their answers are the same."""

WITH_TIES = ("binary_search", "minimum", "quickselect", *SORTS)
"""The algorithms whose inputs are numbers from 0 to 1 of which only the order matters."""

NARROWEST = 0.01
"""Width of the narrowest window of near ties: ten different numbers."""

SHORTEST = 4
"""The smallest length of CLRS-Text; some algorithms have no smaller inputs."""

# Imported first, so that none of them sees the replacement of TensorFlow.
_NEEDED = ("absl.logging", "attr", "chex", "jax")
_REPLACED = ("clrs", "clrs._src.clrs_text", "tensorflow")
# One thread at a time imports modules and draws numbers.
_LOCK = threading.RLock()


class MissingGeneratorError(MissingExtraError):
    """CLRS-Text needs dm-clrs or one of its dependencies, which is not installed.

    Example:
        >>> print(MissingGeneratorError("clrs", extra="experiments", what="CLRS-Text"))
        CLRS-Text needs clrs, which is not installed: pip install 'sharpmax[experiments]' && pip
        install --no-deps dm-clrs==2.0.3
    """

    @property
    def install_command(self) -> str:
        """The two commands: the dependencies of drawing, and dm-clrs without the rest."""
        return f"{super().install_command} && pip install --no-deps dm-clrs==2.0.3"


class _Package(NamedTuple):
    """The modules of dm-clrs that draw examples and format them as text."""

    specs: Any
    samplers: Any
    text: Any


def algorithms() -> tuple[str, ...]:
    """Return the names of the thirty algorithms in alphabetical order.

    Raises:
        MissingGeneratorError: dm-clrs is not installed.

    Example:
        >>> len(algorithms()), algorithms()[:3]
        (30, ('activity_selector', 'articulation_points', 'bellman_ford'))
    """
    return tuple(sorted(_package().specs.CLRS_30_ALGS))


def draw(algorithm: str, length: int, *, seed: int, use_hints: bool = False) -> tuple[str, str]:
    r"""Draw the example that dm-clrs's own generators draw first for a seed.

    Args:
        algorithm: One of `algorithms()`.
        length: Size of the input, at least `SHORTEST`.
        seed: From 0 to 2**32 - 1.
        use_hints: Whether the answer starts with the trace of the algorithm.

    Returns:
        The question and the answer.

    Raises:
        ValueError: The algorithm is unknown, or the length is too small.
        MissingGeneratorError: dm-clrs is not installed.

    Example:
        >>> draw("minimum", 4, seed=0)
        ('minimum:\nkey: [0.548 0.715 0.602 0.544]\nmin:\n', '3\n\n')
    """
    return write(algorithm, sample(algorithm, length, seed=seed), use_hints=use_hints)


def sample(
    algorithm: str, length: int, *, seed: int, use_hints: bool = True, ties: bool = False
) -> Sample:
    """Draw an input and run the algorithm on it.

    Args:
        algorithm: As in `draw`.
        length: As in `draw`.
        seed: As in `draw`.
        use_hints: Whether the trace is needed. Without it, the fastest sort stands for all: they
            draw the same input for the same seed and give the same answer.
        ties: Move the numbers into a window whose width is log-uniform between `NARROWEST` and 1,
            so that many are close or equal. Only for the algorithms in `WITH_TIES`.

    Returns:
        The sample.

    Raises:
        ValueError: The algorithm is unknown, the length is too small, or the algorithm has no
            windows.
    """
    if ties and algorithm not in WITH_TIES:
        raise ValueError(f"ties: expected one of {', '.join(WITH_TIES)}, got {algorithm!r}")
    if not use_hints and algorithm in SORTS:
        algorithm = "insertion_sort"
    with _LOCK, warnings.catch_warnings():
        # Convex hulls use the cross product of 2-dimensional vectors, which NumPy deprecates.
        warnings.filterwarnings("ignore", "Arrays of 2-dimensional vectors", DeprecationWarning)
        sampler = _sampler(algorithm, length, ties)
        # Equal to a new sampler with this seed, but building one takes as long as drawing.
        sampler._rng.seed(seed)
        return sampler.next(batch_size=1)


def write(algorithm: str, drawn: Sample, *, use_hints: bool = False) -> tuple[str, str]:
    """Format a sample as a question and an answer."""
    question, answer = _package().text.format_clrs_example(algorithm, drawn, use_hints=use_hints)
    return str(question), str(answer)


@functools.cache
def _sampler(algorithm: str, length: int, ties: bool) -> Any:
    """Build the sampler of an algorithm and a length; each is built once."""
    if algorithm not in algorithms():
        raise ValueError(f"algorithm: expected one of {', '.join(algorithms())}, got {algorithm!r}")
    if length < SHORTEST:
        raise ValueError(f"length: expected at least {SHORTEST}, got {length}")
    with _without_notice():
        sampler, _ = _package().samplers.build_sampler(
            algorithm,
            # Draw one by one on request instead of filling a pool.
            num_samples=-1,
            track_max_steps=False,
            length=length,
            truncate_decimals=DECIMALS,
        )
    if ties:
        sampler._sample_data = functools.partial(_in_window, sampler._rng, sampler._sample_data)
    return sampler


def _in_window(rng: Any, drawn: Callable[..., list[Any]], **size: int) -> list[Any]:
    """Draw an input and move its numbers, all from 0 to 1, into a window."""
    data = drawn(**size)
    width = NARROWEST ** rng.uniform()
    bottom = (1 - width) * rng.uniform()
    return [bottom + width * each for each in data]


def _package() -> _Package:
    """Return the modules of dm-clrs, imported once."""
    with _LOCK:
        return _load()


@functools.cache
def _load() -> _Package:
    try:
        if "clrs" in sys.modules:
            return _import()
        for name in _NEEDED:
            importlib.import_module(name)
        with _isolated():
            return _import()
    except ModuleNotFoundError as error:
        raise MissingGeneratorError(
            error.name or "clrs", extra="experiments", what="CLRS-Text"
        ) from error


def _import() -> _Package:
    return _Package(
        importlib.import_module("clrs._src.specs"),
        importlib.import_module("clrs._src.samplers"),
        importlib.import_module("clrs._src.clrs_text.clrs_utils"),
    )


@contextmanager
def _isolated() -> Iterator[None]:
    """Import modules of dm-clrs without their parents, and restore `sys.modules` afterwards."""
    found = importlib.util.find_spec("clrs")
    if found is None or found.submodule_search_locations is None:
        raise ModuleNotFoundError("No module named 'clrs'", name="clrs")
    before = {name: sys.modules[name] for name in _REPLACED if name in sys.modules}
    for name in _REPLACED:
        if name not in before:
            sys.modules[name] = ModuleType(name)
    inside = list(found.submodule_search_locations)
    sys.modules["clrs"].__path__ = inside
    sys.modules["clrs._src.clrs_text"].__path__ = [f"{path}/_src/clrs_text" for path in inside]
    if "tensorflow" not in before:
        # The type of the check; no object has it.
        sys.modules["tensorflow"].Tensor = type("Tensor", (), {})  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name in [*sys.modules]:
            if name not in before and (name in _REPLACED or name.startswith("clrs.")):
                del sys.modules[name]


@contextmanager
def _without_notice() -> Iterator[None]:
    """Suppress the notice of dm-clrs that examples are drawn one by one.

    Without a handler on the root logger, absl would configure logging for the whole process.
    """
    root, absl, handler = logging.getLogger(), logging.getLogger("absl"), logging.NullHandler()
    disabled = absl.disabled
    root.addHandler(handler)
    absl.disabled = True
    try:
        yield
    finally:
        absl.disabled = disabled
        root.removeHandler(handler)
