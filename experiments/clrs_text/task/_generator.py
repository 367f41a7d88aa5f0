"""The door to dm-clrs, the package that defines CLRS-Text.

The algorithms, their inputs and their wording are those of dm-clrs: nothing of it is written again
here. But `import clrs` imports everything it has, models and data pipelines included, and with them
gigabytes of TensorFlow, of which drawing an example needs nothing: one test for a type is all.

So its modules are imported here without their parents. For the time of this import, empty packages
stand in for `clrs` and `clrs._src.clrs_text`, whose own files would import the rest, and an empty
module stands in for TensorFlow. Then all of it is taken out of `sys.modules` again: who imports
`clrs` later gets it whole. Where `clrs` has been imported already, that one is used.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

from sharpmax._extras import MissingExtraError

__all__ = [
    "DECIMALS",
    "SHORTEST",
    "MissingGeneratorError",
    "Sample",
    "algorithms",
    "draw",
    "sample",
    "write",
]

Sample: TypeAlias = Any
"""An input with what an algorithm made of it, as dm-clrs keeps it."""

DECIMALS = 3
"""Decimals that numbers are cut to, as in CLRS-Text."""

SHORTEST = 4
"""The smallest length of CLRS-Text; some of the algorithms have no inputs below it."""

# Imported as they are, and first, so that none of them meets what stands in for TensorFlow.
_NEEDED = ("absl.logging", "attr", "chex", "jax")
_STANDS_IN = ("clrs", "clrs._src.clrs_text", "tensorflow")
# Modules are imported and numbers drawn by one thread at a time.
_LOCK = threading.RLock()


class MissingGeneratorError(MissingExtraError):
    """CLRS-Text was asked for, and dm-clrs or what it needs is not installed.

    Example:
        >>> print(MissingGeneratorError("clrs", extra="experiments", what="CLRS-Text"))
        CLRS-Text needs clrs, which is not installed: pip install 'sharpmax[clrs]' && pip install
        --no-deps dm-clrs==2.0.3
    """

    @property
    def install_command(self) -> str:
        """The two commands: what dm-clrs needs here, and itself without the rest."""
        return f"{super().install_command} && pip install --no-deps dm-clrs==2.0.3"


class _Package(NamedTuple):
    """The modules of dm-clrs that draw examples and write them as text."""

    specs: Any
    samplers: Any
    text: Any


def algorithms() -> tuple[str, ...]:
    """The names of the thirty algorithms, in the order of the alphabet.

    Raises:
        MissingGeneratorError: dm-clrs is not installed.

    Example:
        >>> len(algorithms()), algorithms()[:3]
        (30, ('activity_selector', 'articulation_points', 'bellman_ford'))
    """
    return tuple(sorted(_package().specs.CLRS_30_ALGS))


def draw(algorithm: str, length: int, *, seed: int, use_hints: bool = False) -> tuple[str, str]:
    r"""Draw an example: the first that dm-clrs's own generators give for this seed.

    Args:
        algorithm: One of `algorithms()`.
        length: Size of the input, at least `SHORTEST`.
        seed: From 0 to 2**32 - 1.
        use_hints: Whether the answer begins with the trace of the algorithm.

    Returns:
        The question and the answer.

    Raises:
        ValueError: There is no such algorithm, or the length is too small.
        MissingGeneratorError: dm-clrs is not installed.

    Example:
        >>> draw("minimum", 4, seed=0)
        ('minimum:\nkey: [0.548 0.715 0.602 0.544]\nmin:\n', '3\n\n')
    """
    return write(algorithm, sample(algorithm, length, seed=seed), use_hints=use_hints)


def sample(algorithm: str, length: int, *, seed: int) -> Sample:
    """Draw an input and run the algorithm on it; for the arguments see `draw`."""
    with _LOCK, warnings.catch_warnings():
        # Convex hulls take cross products of vectors in the plane, which NumPy is giving up.
        warnings.filterwarnings("ignore", "Arrays of 2-dimensional vectors", DeprecationWarning)
        sampler = _sampler(algorithm, length)
        # What a new sampler would begin with; but making one takes as long as drawing.
        sampler._rng.seed(seed)
        return sampler.next(batch_size=1)


def write(algorithm: str, drawn: Sample, *, use_hints: bool = False) -> tuple[str, str]:
    """Write as a question and an answer what `sample` has drawn."""
    question, answer = _package().text.format_clrs_example(algorithm, drawn, use_hints=use_hints)
    return str(question), str(answer)


@functools.cache
def _sampler(algorithm: str, length: int) -> Any:
    """What draws inputs and runs the algorithm on them; one is kept for each length."""
    if algorithm not in algorithms():
        raise ValueError(f"algorithm: expected one of {', '.join(algorithms())}, got {algorithm!r}")
    if length < SHORTEST:
        raise ValueError(f"length: expected at least {SHORTEST}, got {length}")
    with _no_notice():
        sampler, _ = _package().samplers.build_sampler(
            algorithm,
            # Drawn one by one when asked for, not a pool beforehand.
            num_samples=-1,
            track_max_steps=False,
            length=length,
            truncate_decimals=DECIMALS,
        )
    return sampler


def _package() -> _Package:
    """The modules of dm-clrs, imported once."""
    with _LOCK:
        return _load()


@functools.cache
def _load() -> _Package:
    try:
        if "clrs" in sys.modules:
            return _import()
        for name in _NEEDED:
            importlib.import_module(name)
        with _without_the_rest():
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
def _without_the_rest() -> Iterator[None]:
    """Let modules of dm-clrs be imported without their parents, and leave no sign of it."""
    found = importlib.util.find_spec("clrs")
    if found is None or found.submodule_search_locations is None:
        raise ModuleNotFoundError("No module named 'clrs'", name="clrs")
    before = {name: sys.modules[name] for name in _STANDS_IN if name in sys.modules}
    for name in _STANDS_IN:
        if name not in before:
            sys.modules[name] = ModuleType(name)
    inside = list(found.submodule_search_locations)
    sys.modules["clrs"].__path__ = inside
    sys.modules["clrs._src.clrs_text"].__path__ = [f"{path}/_src/clrs_text" for path in inside]
    if "tensorflow" not in before:
        # The type that is tested for: no object has it.
        sys.modules["tensorflow"].Tensor = type("Tensor", (), {})  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name in [*sys.modules]:
            if name not in before and (name in _STANDS_IN or name.startswith("clrs.")):
                del sys.modules[name]


@contextmanager
def _no_notice() -> Iterator[None]:
    """Hold back a notice, given once, that examples are drawn one by one.

    For this notice absl would set up the logging of the whole process, were there no handler yet.
    """
    root, absl, handler = logging.getLogger(), logging.getLogger("absl"), logging.NullHandler()
    root.addHandler(handler)
    absl.addFilter(_none)
    try:
        yield
    finally:
        absl.removeFilter(_none)
        root.removeHandler(handler)


def _none(record: logging.LogRecord) -> bool:  # noqa: ARG001
    return False
