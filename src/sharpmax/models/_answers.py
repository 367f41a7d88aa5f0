"""Ask a model questions, and read what their prompts have in common once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, count, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from sharpmax.models._inspect import input_device
from sharpmax.models._share import Share

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel


class Asked(Protocol):
    """A prompt and its expected answer, in tokens, such as `sharpmax.tasks` makes."""

    @property
    def ids(self) -> Sequence[int]:
        """The tokens of the prompt."""

    @property
    def answer_ids(self) -> Sequence[int]:
        """The tokens of the answer."""

    @property
    def context(self) -> int:
        """The context of the question: questions with the same number are not independent."""


class Answer(NamedTuple):
    """How a model answers one question.

    Attributes:
        exact: whether greedy decoding gives exactly the expected answer.
        log_probability: log-probability of the expected answer, in nats.
    """

    exact: bool
    log_probability: float


def answer(
    model: PreTrainedModel,
    questions: Sequence[Asked],
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Answer]:
    """Ask a model questions, and compare with the expected answers.

    No common beginning of the prompts of a context is read twice. The expected answer is read
    together with its prompt: greedy decoding gives it if each of its tokens is the most likely one.

    Args:
        model: a causal language model, sharpened or not; it is unchanged afterwards.
        questions: each with at least one token of prompt and one of answer.
        on_progress: called after each question with the number of answered questions and of all.

    Returns:
        One answer per question, in the order of the questions.

    Raises:
        ValueError: a prompt or an answer is empty.
    """
    return answer_shared(Share(), model, questions, on_progress)


def answer_shared(
    share: Share,
    model: PreTrainedModel,
    questions: Sequence[Asked],
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Answer]:
    """Ask questions as `answer` does; ranks share the contexts."""
    for number, question in enumerate(questions):
        if not question.ids or not question.answer_ids:
            raise ValueError(f"questions[{number}]: expected a prompt and an answer, got no tokens")
    # Sorted, so that neighbours share as long a beginning as possible.
    order = sorted(range(len(questions)), key=lambda at: tuple(questions[at].ids))
    contexts: dict[int, list[int]] = {}
    for number in order:
        contexts.setdefault(questions[number].context, []).append(number)
    groups = list(contexts.values())
    most = sum(len(groups[n]) for n in share.own(len(groups)))
    asked = count(1)

    def ask(numbers: list[int]) -> list[tuple[int, Answer]]:
        # A reader per context, so that an answer does not depend on the contexts before it.
        read, found = _Reader(model), []
        for number in numbers:
            found.append((number, _compared(read(questions[number]), questions[number])))
            if on_progress is not None and share.first:
                on_progress(next(asked) * len(questions) // most, len(questions))
        return found

    answers = dict(chain(*share.map(ask, groups)))
    return [answers[number] for number in range(len(questions))]


def _compared(logits: Tensor, question: Asked) -> Answer:
    expected = torch.tensor(question.answer_ids, device=logits.device)
    chosen = logits.float().log_softmax(-1).gather(-1, expected[:, None])
    return Answer(bool((logits.argmax(-1) == expected).all()), float(chosen.sum()))


class _Reader:
    """A model with a cache of what it has read."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self._cache: DynamicCache | None = None
        self._read: list[int] = []

    def __call__(self, question: Asked) -> Tensor:
        """Return the logits of each token of the answer: [answer, vocabulary]."""
        from transformers import DynamicCache

        tokens = [*question.ids, *question.answer_ids[:-1]]
        # The last token of the prompt is read again, for its logits.
        common = min(common_length(self._read, tokens), len(question.ids) - 1)
        if self._cache is None or not _can_be_cut(self._cache, len(self._read)):
            self._cache, common = DynamicCache(config=self._model.config), 0
        elif common < len(self._read):
            self._cache.crop(common - len(self._read))
        new = torch.tensor([tokens[common:]], device=input_device(self._model))
        with torch.no_grad():
            kept = len(question.answer_ids)
            options = {"past_key_values": self._cache, "use_cache": True, "logits_to_keep": kept}
            logits: Tensor = self._model(input_ids=new, **options).logits[0]
        self._read = tokens
        return logits


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common beginning of two sequences."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _can_be_cut(cache: DynamicCache, length: int) -> bool:
    """Tell whether the cache still holds every token, unlike a window or a recurrent state."""
    from transformers.cache_utils import LinearAttentionCacheLayerMixin

    layers: list[Any] = cache.layers
    return not any(
        isinstance(layer, LinearAttentionCacheLayerMixin)
        or (getattr(layer, "is_sliding", False) and length >= layer.sliding_window)
        for layer in layers
    )
