"""Does a model answer questions right: prompts that begin alike are read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin


class Asked(Protocol):
    """A prompt and the answer that has to follow it, in tokens; `sharpmax.tasks` makes such."""

    @property
    def ids(self) -> Sequence[int]:
        """The prompt."""

    @property
    def answer_ids(self) -> Sequence[int]:
        """The answer."""

    @property
    def context(self) -> int:
        """Questions with the same number are not independent of each other."""


class Answer(NamedTuple):
    """What a model makes of a question.

    Attributes:
        exact: whether greedy decoding gives the answer, token by token.
        log_probability: of the whole answer, in nats.
    """

    exact: bool
    log_probability: float


def answer(
    model: PreTrainedModel,
    questions: Sequence[Asked],
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Answer]:
    """Ask a model all questions.

    The prompts are taken in such an order, and the cache is cut back to such a length, that no
    token is read twice in the same place after the same tokens. The answer is read along with its
    prompt: greedy decoding gives it if each of its tokens is the likeliest after those before.

    Args:
        model: a causal language model, sharpened or not; it stays as it is.
        questions: each with at least one token of prompt and one of answer.
        on_progress: called after each question with the number of those answered and of all.

    Returns:
        An answer a question, in the order of the questions.

    Raises:
        ValueError: a prompt or an answer is empty.
    """
    for number, question in enumerate(questions):
        if not question.ids or not question.answer_ids:
            raise ValueError(f"questions[{number}]: expected tokens in prompt and answer, got none")
    read = _Reader(model)
    found: dict[int, Answer] = {}
    # In this order, neighbours share as many of their first tokens as any two of them do.
    order = sorted(range(len(questions)), key=lambda number: tuple(questions[number].ids))
    for number in order:
        question = questions[number]
        found[number] = _judge(read(question), torch.tensor(question.answer_ids))
        if on_progress is not None:
            on_progress(len(found), len(questions))
    return [found[number] for number in range(len(questions))]


class _Reader:
    """A model that remembers what it has read."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self._cache: DynamicCache | None = None
        self._read: list[int] = []

    def __call__(self, question: Asked) -> Tensor:
        """Logits [answer, vocabulary] of what comes at the place of each token of the answer."""
        tokens = [*question.ids, *question.answer_ids[:-1]]
        # The logits after the last token of the prompt are needed, so that one is read anyway.
        common = min(common_length(self._read, tokens), len(question.ids) - 1)
        if self._cache is None or not _can_be_cut(self._cache, len(self._read)):
            self._cache, common = DynamicCache(config=self._model.config), 0
        elif common < len(self._read):
            self._cache.crop(common - len(self._read))
        new = torch.tensor([tokens[common:]], device=self._model.device)
        with torch.no_grad():
            output = self._model(
                input_ids=new,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=len(question.answer_ids),
            )
        self._read = tokens
        logits: Tensor = output.logits[0]
        return logits


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


def _can_be_cut(cache: DynamicCache, length: int) -> bool:
    """Whether all that was read is still there, token by token.

    A sliding window forgets what lies before it, and a recurrent state has no tokens in it.
    """
    layers: list[Any] = cache.layers
    return not any(
        isinstance(layer, LinearAttentionCacheLayerMixin)
        or (getattr(layer, "is_sliding", False) and length >= layer.sliding_window)
        for layer in layers
    )


def _judge(logits: Tensor, answer_ids: Tensor) -> Answer:
    answer_ids = answer_ids.to(logits.device)
    exact = bool((logits.argmax(-1) == answer_ids).all())
    chosen = logits.float().log_softmax(-1).gather(-1, answer_ids[:, None])
    return Answer(exact, float(chosen.sum()))
