r"""CLRS-Text: thirty textbook algorithms as questions and answers in text.

The data of the paper's second experiment, drawn by dm-clrs, which defines it:

    pip install 'sharpmax[experiments]'
    pip install --no-deps dm-clrs==2.0.3

`examples` draws examples for training or testing, `held_out` draws a test set and checks it, and
`score` compares a generated text with the answer. `Characters` and `Numbers` are two tokenizers for
the same text. The folder `harness` holds the task for lm-evaluation-harness.

Example:
    >>> one = next(examples("insertion_sort", 5, seed=1, use_hints=True))
    >>> one.algorithm, one.length, one.target
    ('insertion_sort', 5, '[0.235 0.31 0.342 0.445 0.5]')
"""

from experiments.clrs_text.task._examples import Example, Stream, example, examples, score
from experiments.clrs_text.task._generator import (
    SORTS,
    WITH_TIES,
    MissingGeneratorError,
    algorithms,
)
from experiments.clrs_text.task._held_out import HeldOut, held_out, shared_inputs
from experiments.clrs_text.task._tokenizers import Characters, Numbers

__all__ = [
    "SORTS",
    "WITH_TIES",
    "Characters",
    "Example",
    "HeldOut",
    "MissingGeneratorError",
    "Numbers",
    "Stream",
    "algorithms",
    "example",
    "examples",
    "held_out",
    "score",
    "shared_inputs",
]
