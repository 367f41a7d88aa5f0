"""What calibration makes smaller: losses of a model, in nats, that can be differentiated."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax.models._answers import Asked, common_length
from sharpmax.models._inspect import attention_layers
from sharpmax.models._interface import NAMES

Item = TypeVar("Item")

Objective = Callable[[PreTrainedModel, Sequence[Any]], Tensor]
"""A model and items of the data to their losses, a number an item."""

_APART = 4
"""Drift is measured at every fourth place: it differs less from place to place than a loss does."""


@dataclass(frozen=True)
class Splits(Generic[Item]):
    """Data in three parts, which must have nothing in common.

    Attributes:
        fit: what parameters are fitted on.
        select: what tells which heads keep them.
        test: what gives the published figures; nothing is chosen by it.
    """

    fit: Sequence[Item]
    select: Sequence[Item]
    test: Sequence[Item]

    def __post_init__(self) -> None:
        for name, items in vars(self).items():
            if not len(items):
                raise ValueError(f"{name}: expected at least one item in each part, got none")

    def sizes(self) -> dict[str, int]:
        """How many items each part has."""
        return {name: len(items) for name, items in vars(self).items()}


@dataclass(frozen=True)
class Window:
    """A stretch of text, in tokens.

    Attributes:
        ids: the tokens.
        context: windows with the same number are not independent of each other.
        first: the first token whose loss counts; what is before it is only read.
    """

    ids: tuple[int, ...]
    context: int = 0
    first: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.first < len(self.ids):
            raise ValueError(
                f"first: expected from 1 to {len(self.ids) - 1}, below the number of tokens, got "
                f"{self.first}"
            )


def text_splits(
    texts: Iterable[Sequence[int]], length: int, *, shares: Sequence[float] = (0.5, 0.25, 0.25)
) -> Splits[Window]:
    """Windows of texts, of which the first part is for fitting and the last for the test.

    Each text is cut into three stretches, one after the other, and each of these into windows
    without overlap; so no window of a part is within a window's length of another part's.

    Args:
        texts: in tokens.
        length: tokens of a window.
        shares: of a text that go to each part.

    Raises:
        ValueError: the texts are too short for a window in each part.

    Example:
        >>> splits = text_splits([range(400)], 50)
        >>> splits.sizes()
        {'fit': 4, 'select': 2, 'test': 2}
        >>> splits.test[0].ids[0]
        300
    """
    parts: tuple[list[Window], ...] = ([], [], [])
    for text in texts:
        start = 0
        for part, share in zip(parts, shares, strict=True):
            stop = start + int(share * len(text))
            for at in range(start, stop - length + 1, length):
                part.append(Window(tuple(text[at : at + length]), sum(map(len, parts))))
            start = stop
    if not all(parts):
        raise ValueError(
            f"texts: expected enough for a window of {length} tokens in each of three parts; give "
            "longer texts or a shorter length"
        )
    return Splits(*parts)


def text_loss(model: PreTrainedModel, windows: Sequence[Window]) -> Tensor:
    """The mean loss of the next token in each window."""
    losses = []
    for window in windows:
        ids = torch.tensor([window.ids], device=model.device)
        kept = len(window.ids) - window.first + 1
        output: Any = model(input_ids=ids, use_cache=False, logits_to_keep=kept)
        losses.append(F.cross_entropy(output.logits[0, :-1].float(), ids[0, window.first :]))
    return torch.stack(losses)


def checked(objective: Objective) -> Objective:
    """An objective that somebody brought, whose losses are looked at before they are used.

    Raises:
        TypeError, ValueError: by what is returned, saying what was expected and what came.
    """

    def measure(model: PreTrainedModel, items: Sequence[Any]) -> Tensor:
        losses: Any = objective(model, items)
        if not isinstance(losses, Tensor) or not losses.is_floating_point():
            got = losses.dtype if isinstance(losses, Tensor) else type(losses).__name__
            raise TypeError(f"objective: expected a tensor of floating losses, got {got}")
        if losses.shape != (len(items),):
            raise ValueError(
                f"objective: expected a loss for each item, of shape ({len(items)},), got shape "
                f"{tuple(losses.shape)}; average over tokens, but not over items"
            )
        if torch.is_grad_enabled() and not losses.requires_grad:
            raise ValueError(
                "objective: expected losses through which gradients pass to the attention, got "
                "none; call the model without no_grad, and leave out item, detach and argmax"
            )
        return losses

    return measure


def drift(as_it_is: Callable[[], AbstractContextManager[None]]) -> Objective:
    """How far what a model expects of texts is from what it expected before its change.

    It is the Kullback-Leibler divergence of the probabilities of the next token, in the mean over
    every fourth place of a window. The loss of the next token falls where a change suits the style
    of the texts at hand, and says little about others then; the divergence has nothing to gain.

    Args:
        as_it_is: gives a context in which the model is as it was.
    """

    def measure(model: PreTrainedModel, windows: Sequence[Window]) -> Tensor:
        found = []
        for window in windows:
            with torch.no_grad(), as_it_is():
                before = _expected(model, window)
            after = _expected(model, window)
            found.append(F.kl_div(after, before, log_target=True, reduction="batchmean"))
        return torch.stack(found)

    return measure


def _expected(model: PreTrainedModel, window: Window) -> Tensor:
    """Logarithms of the probabilities of tokens, [places, vocabulary]."""
    places = torch.arange(window.first - 1, len(window.ids), _APART, device=model.device)
    ids = torch.tensor([window.ids], device=model.device)
    output: Any = model(input_ids=ids, use_cache=False, logits_to_keep=places)
    logits: Tensor = output.logits[0]
    return logits.float().log_softmax(-1)


def answer_loss(model: PreTrainedModel, questions: Sequence[Asked]) -> Tensor:
    """Minus the logarithm of the probability of each answer."""
    losses = []
    for logits, targets in _answers(model, questions):
        losses.append(F.cross_entropy(logits.float(), targets, reduction="sum"))
    return torch.stack(losses)


def answer_wrong(model: PreTrainedModel, questions: Sequence[Asked]) -> Tensor:
    """1 for each answer that greedy decoding does not give token by token, and 0 for others."""
    found = [
        float((logits.argmax(-1) != targets).any())
        for logits, targets in _answers(model, questions)
    ]
    return torch.tensor(found)


def _answers(model: PreTrainedModel, questions: Sequence[Asked]) -> Iterator[tuple[Tensor, Tensor]]:
    """For each question the logits where its answer is due, and the tokens of the answer.

    Questions that share their context and the beginning of their prompts are read in one row: each
    sees that beginning and itself, as if it had been asked alone. Where a model cannot be told who
    sees whom, as with layers that see only what is near, each is asked alone.
    """
    packs = _takes_any_mask(model)
    for _, together in groupby(questions, key=lambda question: question.context):
        for row in _rows(list(together), packs):
            options: dict[str, Any] = {}
            if len(row.counts) > 1:
                options["attention_mask"] = row.mask.to(model.device)[None, None]
                options["position_ids"] = row.positions.to(model.device)[None]
            output: Any = model(
                input_ids=row.ids.to(model.device)[None],
                use_cache=False,
                logits_to_keep=row.asked,
                **options,
            )
            targets = row.targets.to(model.device)
            yield from zip(
                output.logits[0].split(row.counts), targets.split(row.counts), strict=True
            )


def _takes_any_mask(model: PreTrainedModel) -> bool:
    """Whether a mask and positions that are given are all that counts, in every layer."""
    config = model.config.get_text_config()
    if config._attn_implementation not in ("sdpa", *NAMES) or getattr(config, "alibi", False):
        return False
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    # A mask that is given takes the place of the model's own, and with it of its windows.
    return all(layer.kind == "global" for layer in attention_layers(model))


@dataclass(frozen=True)
class _Row:
    """Several questions in one row of tokens.

    Attributes:
        ids: the tokens that are read.
        positions: of these.
        mask: which of them see which.
        asked: the places whose next tokens belong to an answer.
        targets: these next tokens.
        counts: how many of them each question has.
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor
    asked: Tensor
    targets: Tensor
    counts: list[int]


def _rows(questions: list[Asked], packs: bool) -> Iterator[_Row]:
    """Questions in one row where that can be and most of their prompts is common, else alone."""
    common = len(questions[0].ids) - 1
    for question in questions:
        limit = min(common, len(question.ids) - 1)
        common = min(limit, common_length(questions[0].ids, question.ids))
    branches = [(*question.ids[common:], *question.answer_ids[:-1]) for question in questions]
    if len(questions) > 1 and (not packs or sum(map(len, branches)) > common):
        for question in questions:
            yield from _rows([question], packs)
        return
    lengths = [common, *map(len, branches)]
    # Which branch each token is in; the common beginning is number 0, and everybody sees it.
    branch = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    places = torch.arange(len(branch))
    sees = (places[:, None] >= places) & ((branch == branch[:, None]) | (branch == 0))
    starts = torch.tensor(lengths).cumsum(0)
    positions = torch.cat([torch.arange(common), *(common + torch.arange(n) for n in lengths[1:])])
    counts = [len(question.answer_ids) for question in questions]
    asked = [
        torch.arange(int(end) - count, int(end))
        for end, count in zip(starts[1:], counts, strict=True)
    ]
    yield _Row(
        ids=torch.tensor([*questions[0].ids[:common], *(t for each in branches for t in each)]),
        positions=positions,
        mask=sees,
        asked=torch.cat(asked),
        targets=torch.tensor([t for question in questions for t in question.answer_ids]),
        counts=counts,
    )
