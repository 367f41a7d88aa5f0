"""What calibration minimises: differentiable losses of a model, in nats, and their data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax.models._answers import Asked, common_length
from sharpmax.models._inspect import attention_layers
from sharpmax.models._interface import NAMES

Item = TypeVar("Item")

Objective = Callable[[PreTrainedModel, Sequence[Any]], Tensor]
"""A function of a model and some items that returns one loss per item."""

_STRIDE = 4
"""Drift is measured at every fourth token: it varies less between tokens than a loss does."""


@dataclass(frozen=True)
class Splits(Generic[Item]):
    """Data in three disjoint splits.

    Attributes:
        fit: for fitting parameters.
        select: for choosing the heads that keep them.
        test: for the reported figures; nothing is chosen by it.
    """

    fit: Sequence[Item]
    select: Sequence[Item]
    test: Sequence[Item]

    def __post_init__(self) -> None:
        for name, items in vars(self).items():
            if not len(items):
                raise ValueError(f"{name}: expected at least one item in each split, got none")

    def sizes(self) -> dict[str, int]:
        """Return the number of items per split."""
        return {name: len(items) for name, items in vars(self).items()}


@dataclass(frozen=True)
class Window:
    """A stretch of text, in tokens.

    Attributes:
        ids: the tokens.
        context: windows with the same number are not independent.
        first: the first token whose loss counts; earlier tokens are only read.
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
    """Cut texts into windows for fitting, selecting and testing.

    Each text is cut into three consecutive stretches, one per split, and each stretch into windows
    that do not overlap.

    Args:
        texts: texts, in tokens.
        length: number of tokens per window.
        shares: share of each text per split.

    Raises:
        ValueError: the texts are too short for one window per split.

    Example:
        >>> splits = text_splits([range(400)], 50)
        >>> splits.sizes()
        {'fit': 4, 'select': 2, 'test': 2}
        >>> splits.test[0].ids[0]
        300
    """
    splits: tuple[list[Window], ...] = ([], [], [])
    for text in texts:
        start = 0
        for split, share in zip(splits, shares, strict=True):
            stop = start + int(share * len(text))
            for at in range(start, stop - length + 1, length):
                split.append(Window(tuple(text[at : at + length]), sum(map(len, splits))))
            start = stop
    if not all(splits):
        raise ValueError(
            f"texts: expected at least one window of {length} tokens in each of three splits; give "
            "longer texts or a shorter length"
        )
    return Splits(*splits)


def text_loss(model: PreTrainedModel, windows: Sequence[Window]) -> Tensor:
    """Return the mean loss of the next token for each window, in nats."""
    losses = []
    for window in windows:
        ids = torch.tensor([window.ids], device=model.device)
        kept = len(window.ids) - window.first + 1
        output: Any = model(input_ids=ids, use_cache=False, logits_to_keep=kept)
        losses.append(F.cross_entropy(output.logits[0, :-1].float(), ids[0, window.first :]))
    return torch.stack(losses)


def checked(objective: Objective) -> Objective:
    """Wrap a user's objective so that its losses are checked before they are used."""

    def measure(model: PreTrainedModel, items: Sequence[Any]) -> Tensor:
        losses: Any = objective(model, items)
        if not isinstance(losses, Tensor) or not losses.is_floating_point():
            got = losses.dtype if isinstance(losses, Tensor) else type(losses).__name__
            raise TypeError(f"objective: expected a floating-point tensor of losses, got {got}")
        if losses.shape != (len(items),):
            raise ValueError(
                f"objective: expected one loss per item, shape ({len(items)},), got shape "
                f"{tuple(losses.shape)}; average over tokens, but not over items"
            )
        if torch.is_grad_enabled() and not losses.requires_grad:
            raise ValueError(
                "objective: expected losses with a gradient, got none; call the model without "
                "no_grad, and do not use item, detach or argmax"
            )
        return losses

    return measure


def drift(original: Callable[[], AbstractContextManager[None]]) -> Objective:
    """Return the KL divergence from the original next-token predictions as an objective.

    It is averaged over every fourth token of a window. Unlike the loss of the next token, it cannot
    fall because a change happens to suit the style of the texts.

    Args:
        original: returns a context in which the model computes what it did before the change.
    """

    def measure(model: PreTrainedModel, windows: Sequence[Window]) -> Tensor:
        found = []
        for window in windows:
            with torch.no_grad(), original():
                before = _predictions(model, window)
            after = _predictions(model, window)
            found.append(F.kl_div(after, before, log_target=True, reduction="batchmean"))
        return torch.stack(found)

    return measure


def _predictions(model: PreTrainedModel, window: Window) -> Tensor:
    """Return log-probabilities of next tokens, [places, vocabulary]."""
    places = torch.arange(window.first - 1, len(window.ids), _STRIDE, device=model.device)
    ids = torch.tensor([window.ids], device=model.device)
    output: Any = model(input_ids=ids, use_cache=False, logits_to_keep=places)
    logits: Tensor = output.logits[0]
    return logits.float().log_softmax(-1)


def answer_loss(model: PreTrainedModel, questions: Sequence[Asked]) -> Tensor:
    """Return the negative log-probability of each answer, in nats."""
    losses = []
    for logits, targets in _answers(model, questions):
        losses.append(F.cross_entropy(logits.float(), targets, reduction="sum"))
    return torch.stack(losses)


def answer_wrong(model: PreTrainedModel, questions: Sequence[Asked]) -> Tensor:
    """Return 0 for each answer that greedy decoding gives exactly, and 1 for others."""
    found = [
        float((logits.argmax(-1) != targets).any())
        for logits, targets in _answers(model, questions)
    ]
    return torch.tensor(found)


def _answers(model: PreTrainedModel, questions: Sequence[Asked]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits of each answer and its tokens.

    Questions that share their context and the beginning of their prompts are read in one row: each
    sees that beginning and itself, as if it had been asked alone. Where a model does not accept
    such a mask, each question is asked alone.
    """
    packs = _accepts_masks(model)
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


def _accepts_masks(model: PreTrainedModel) -> bool:
    """Tell whether a given mask and positions alone decide what every layer sees."""
    config = model.config.get_text_config()
    if config._attn_implementation not in ("sdpa", *NAMES) or getattr(config, "alibi", False):
        return False
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    # A given mask replaces the model's own, including its windows.
    return all(layer.kind == "global" for layer in attention_layers(model))


class _Row(NamedTuple):
    """Several questions in one row of tokens: which token sees which, and where answers stand."""

    ids: Tensor
    positions: Tensor
    mask: Tensor
    asked: Tensor
    """The places whose next tokens belong to an answer."""
    targets: Tensor
    counts: list[int]
    """The number of answer tokens per question."""


def _rows(questions: list[Asked], packs: bool) -> Iterator[_Row]:
    """Yield one row for all questions if most of their prompts is common, else one per question."""
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
    # The branch of each token; branch 0 is the common beginning, which all others see.
    branch = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    places = torch.arange(len(branch))
    sees = (places[:, None] >= places) & ((branch == branch[:, None]) | (branch == 0))
    ends = torch.tensor(lengths).cumsum(0)[1:].tolist()
    positions = torch.cat([torch.arange(common), *(common + torch.arange(n) for n in lengths[1:])])
    counts = [len(question.answer_ids) for question in questions]
    asked = [torch.arange(end - n, end) for end, n in zip(ends, counts, strict=True)]
    yield _Row(
        ids=torch.tensor([*questions[0].ids[:common], *(t for each in branches for t in each)]),
        positions=positions,
        mask=sees,
        asked=torch.cat(asked),
        targets=torch.tensor([t for question in questions for t in question.answer_ids]),
        counts=counts,
    )
