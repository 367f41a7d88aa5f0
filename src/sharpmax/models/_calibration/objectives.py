"""What calibration minimises: differentiable losses of a model, in nats, and their data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, groupby
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from sharpmax.models._answers import Asked, common_length
from sharpmax.models._calibration.shared import Shared
from sharpmax.models._config import NAMES
from sharpmax.models._inspect import attention_layers, input_device, source_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Item = TypeVar("Item")

Objective = Callable[[Any, Sequence[Any]], Tensor]
"""A function of a model and some items that returns one loss per item."""

_STRIDE = 4  # drift is measured at every fourth token: it varies less than a loss does
_ROWS = 64  # tokens whose distributions are in single precision at a time
_CACHED = 2**18  # numbers of them, where a gradient is taken at once, to stay in the cache


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
            raise ValueError(f"first: expected from 1 to {len(self.ids) - 1}, got {self.first}")


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
        targets = torch.tensor(window.ids[window.first :], device=input_device(model))
        logits = _logits(model, window, len(targets) + 1)[:-1]
        parts = [
            F.cross_entropy(part.float(), own, reduction="sum")
            for part, own in zip(logits.split(_ROWS), targets.split(_ROWS), strict=True)
        ]
        losses.append(torch.stack(parts).sum() / len(targets))
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


def drift(
    original: Callable[[], AbstractContextManager[None]], shared: Shared | None = None
) -> Objective:
    """Return the KL divergence from the predictions in the context `original()` as an objective.

    Unlike the loss of the next token, it cannot fall because a change suits the style of the texts.
    The original predictions are kept in `shared`.
    """
    kept = Shared() if shared is None else shared

    def measure(model: PreTrainedModel, windows: Sequence[Window]) -> Tensor:
        found = []
        for window in windows:
            places = torch.arange(
                window.first - 1, len(window.ids), _STRIDE, device=input_device(model)
            )
            compute = partial(_logits, model, window, places)
            before = kept.logits(model, window, original, compute)
            found.append(_divergence(compute(), before) / len(places))
        return torch.stack(found)

    return measure


class _Divergence(torch.autograd.Function):
    """Sum the KL divergence of rows of logits from the original ones, with its gradient at once.

    Automatic differentiation would keep five arrays in single precision, each of twice the size of
    half-precision logits, and read them from memory again.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, original: Tensor) -> Tensor:
        rows = max(1, _CACHED // logits.shape[-1])
        gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        losses = []
        parts = zip(logits.split(rows), original.split(rows), strict=True)
        for at, (new, old) in zip(count(0, rows), parts, strict=False):
            after, before = new.float().log_softmax(-1), old.float().log_softmax(-1)
            expected = before.exp()
            losses.append(torch.dot(expected.flatten(), (before - after).flatten()))
            if gradient is not None:
                gradient[at : at + rows] = after.exp_().sub_(expected)
        ctx.gradient = gradient
        return torch.stack(losses).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return upstream * ctx.gradient, None


_divergence: Callable[[Tensor, Tensor], Tensor] = _Divergence.apply


def _logits(model: PreTrainedModel, window: Window, keep: int | Tensor) -> Tensor:
    ids = torch.tensor([window.ids], device=input_device(model))
    logits: Tensor = model(input_ids=ids, use_cache=False, logits_to_keep=keep).logits[0]
    return logits


def answer_loss(model: PreTrainedModel, questions: Sequence[Asked]) -> Tensor:
    """Return the negative log-probability of each answer, in nats."""
    pairs = _answers(model, questions)
    losses = [F.cross_entropy(logits.float(), each, reduction="sum") for logits, each in pairs]
    return torch.stack(losses)


def answer_wrong(model: PreTrainedModel, questions: Sequence[Asked]) -> Tensor:
    """Return 0 for each answer that greedy decoding gives exactly, and 1 for others."""
    pairs = _answers(model, questions)
    return torch.tensor([float((logits.argmax(-1) != each).any()) for logits, each in pairs])


def _answers(model: PreTrainedModel, questions: Sequence[Asked]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits of each answer and its tokens.

    Questions that share their context and the beginning of their prompts are read in one row, if
    the model accepts such a mask: each sees that beginning and itself, as if it were asked alone.
    """
    windows, device = _windows(model), input_device(model)
    for _, together in groupby(questions, key=lambda question: question.context):
        for options, targets, counts in _rows(list(together), windows):
            placed: dict[str, Any] = {name: value.to(device) for name, value in options.items()}
            if "attention_mask" in placed and windows is not None:
                placed["attention_mask"] = _masks(placed, windows)
            logits: Tensor = model(**placed, use_cache=False).logits[0]
            expected = targets.to(device).split(counts)
            yield from zip(logits.split(counts), expected, strict=True)


def _windows(model: PreTrainedModel) -> dict[str, int | None] | None:
    """Return the window of each type of layer, if given masks and positions decide what they see.

    The only type of a model whose layers are all alike is "".
    """
    config = model.config.get_text_config()
    kinds = {layer.kind for layer in attention_layers(model)}
    window = getattr(config, "sliding_window", None)
    if (
        config._attn_implementation not in ("sdpa", *NAMES)
        or getattr(config, "alibi", False)
        or "position_ids" not in inspect.signature(model.forward).parameters
    ):
        return None
    if kinds == {"global"}:
        return {"": None}
    if kinds == {"sliding"} and window:
        return {"": window}
    types = {"full_attention": None, "sliding_attention": window}
    if (
        kinds == {"global", "sliding"}
        and window
        and set(getattr(config, "layer_types", None) or ()) == set(types)
        and "attention_mask, dict)" in source_of(model.base_model)
    ):
        return types
    return None


def _masks(options: dict[str, Tensor], windows: dict[str, int | None]) -> Any:
    """Return the mask of each type of layer, or the only one: a given mask replaces the window."""
    positions = options["position_ids"][0]
    apart = positions[:, None] - positions
    masks = {
        name: options["attention_mask"] & (apart < (window or len(apart)))
        for name, window in windows.items()
    }
    return masks.get("", masks)


def _rows(
    questions: list[Asked], windows: dict[str, int | None] | None
) -> Iterator[tuple[dict[str, Tensor], Tensor, list[int]]]:
    """Yield arguments of the model, answer tokens, and their number per question.

    All questions are in one row if most of their prompts is common, else each is in its own.
    """
    first = questions[0].ids
    common = min(min(len(each.ids) - 1, common_length(first, each.ids)) for each in questions)
    branches = [(*question.ids[common:], *question.answer_ids[:-1]) for question in questions]
    if len(questions) > 1 and (windows is None or sum(map(len, branches)) > common):
        for question in questions:
            yield from _rows([question], windows)
        return
    lengths = torch.tensor([common, *map(len, branches)])
    counts = [len(question.answer_ids) for question in questions]
    ends = zip(lengths.cumsum(0)[1:].tolist(), counts, strict=True)
    row = {
        "input_ids": torch.tensor([[*first[:common], *chain(*branches)]]),
        # The places whose next tokens belong to an answer.
        "logits_to_keep": torch.cat([torch.arange(end - count, end) for end, count in ends]),
    }
    if len(questions) > 1:
        # The branch of each token; branch 0 is the common beginning, which all others see.
        branch = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        places = torch.arange(len(branch))
        sees = (places[:, None] >= places) & ((branch == branch[:, None]) | (branch == 0))
        own = [common + torch.arange(len(each)) for each in branches]
        row["attention_mask"] = sees[None, None]
        row["position_ids"] = torch.cat([torch.arange(common), *own])[None]
    yield row, torch.tensor([*chain(*(question.answer_ids for question in questions))]), counts
