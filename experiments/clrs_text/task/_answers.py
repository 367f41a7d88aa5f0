"""Answers of CLRS-Text: where the trace ends, and whether a generated answer is right."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Answered", "is_right", "score", "without_trace"]

_SEPARATOR = "|"


class Answered(Protocol):
    """What has an answer: examples have."""

    @property
    def answer(self) -> str:
        """The answer, with its trace if it has one."""


def without_trace(answer: str) -> str:
    r"""What an answer comes to, after its trace.

    Args:
        answer: As the examples have it: one line, in which a bar divides the trace, if there is
            one, from what it comes to.

    Returns:
        What is behind the bar, without white space around it.

    Example:
        >>> without_trace("(0, 1), (0, 2) | (0, 3)\n\n"), without_trace("0, 3\n\n")
        ('(0, 3)', '0, 3')
    """
    return answer.partition("\n")[0].rpartition(_SEPARATOR)[-1].strip()


def is_right(generated: str, answer: str) -> bool:
    """Whether a generated text has the same answer; see `score`."""
    line = generated.partition("\n")[0]
    if (_SEPARATOR in answer) != (_SEPARATOR in line):
        return False
    return without_trace(line) == without_trace(answer)


def score(generated: str, example: Answered) -> bool:
    r"""Whether a generated text has the right answer, character by character.

    What counts is the first line, up to the end of which an answer reaches. With a trace, what
    follows its bar has to be right and the trace itself need not be; a trace that does not come to
    an end has no answer.

    Args:
        generated: What a model wrote after the question.
        example: The example whose question it was.

    Returns:
        True if the answer is the one of the example.

    Example:
        >>> from experiments.clrs_text.task import examples
        >>> one = next(examples("minimum", 4, seed=0, use_hints=True))
        >>> one.answer
        '0, 0 | 0\n\n'
        >>> score("0, 2 | 0\n\nminimum:", one), score("0, 0", one)
        (True, False)
    """
    return is_right(generated, example.answer)
