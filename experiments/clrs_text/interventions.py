"""Interventions: replace the attention of some heads, and measure how many answers come back."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from experiments.clrs_text.data import Encoder, batches
from experiments.clrs_text.evaluation import AT_ONCE
from experiments.clrs_text.model import answer_logits
from experiments.clrs_text.task import SORTS, Example

__all__ = [
    "FEW",
    "HEADS",
    "INTERVENTIONS",
    "KINDS",
    "WITH_ITEMS",
    "Head",
    "Kind",
    "Score",
    "best_heads",
    "bounds",
    "measured",
    "right_items",
]

INTERVENTIONS = "CLRS-Text interventions, format 1"
"""The kind of file that holds what interventions measured."""

HEADS = 3
"""The most heads in a set that is changed together."""

FEW = 16
"""Questions that heads are chosen on, and that single heads are tested on."""


Head: TypeAlias = tuple[int, int]
"""A layer and a head in it."""

Kind = Literal["oracle", "hard"]
"""All weight on the right items, evenly; or on the item with the highest logit."""

KINDS: tuple[Kind, ...] = get_args(Kind)

_NAME = "clrs_text_interventions"
_NUMBER = re.compile(r" ?-?[0-9.]+")
# Their answer is the index of an item in the first list.
_INDICES = ("binary_search", "minimum", "quickselect")

WITH_ITEMS = (*SORTS, *_INDICES)
"""The algorithms whose answers are items of their questions."""


class Score(NamedTuple):
    """How well a model answers.

    Attributes:
        exact: Share of correct answers.
        tokens: Share of correct answer tokens given the correct tokens before them.
    """

    exact: float
    tokens: float


def right_items(encoder: Encoder, one: Example) -> list[list[int]]:
    """Find the tokens of the question that each token of the answer should be read from.

    For a sort, these are the numbers equal to the next number of the answer; for an algorithm that
    answers with an index, the number at that index.

    Args:
        encoder: An encoder with one token per number.
        one: An example.

    Returns:
        Per answer token, the indices of tokens in the question; none for brackets and line ends,
        which are not read from the question.

    Raises:
        ValueError: The answers of the algorithm are not items of its question.
    """
    encoded = encoder(one)
    texts = [encoder.tokenizer.vocabulary[token] for token in encoded.tokens]
    opening = texts.index("[")
    listed = range(opening + 1, texts.index("]", opening))
    answers = texts[encoded.asked :]
    if one.algorithm in SORTS:
        # The first number of a list is the only one without a space.
        values = {index: texts[index].strip() for index in listed}
        return [[i for i, text in values.items() if text == each.strip()] for each in answers]
    if one.algorithm in _INDICES:
        return [
            # A target above all numbers has an index beyond the list: no item gives it.
            list(listed[int(each) : int(each) + 1]) if _NUMBER.fullmatch(each) else []
            for each in answers
        ]
    known = ", ".join(WITH_ITEMS)
    raise ValueError(f"algorithm: expected one of {known}, got {one.algorithm!r}")


def measured(
    model: PreTrainedModel,
    encoder: Encoder,
    examples: Sequence[Example],
    heads: Collection[Head] = (),
    kind: Kind = "oracle",
) -> Score:
    """Measure a model whose heads attend differently in the rows that give items of an answer.

    All other rows, and all other heads, keep plain softmax. The result bounds what a rule for the
    temperature of these heads can gain in these rows: "hard" for the limit of low temperature,
    "oracle" even if the logits were right.

    Args:
        model: The small decoder, trained with plain softmax and not sharpened.
        encoder: Its encoder.
        examples: The questions.
        heads: The heads to change; none measures the model as it is.
        kind: What they do instead.

    Returns:
        The shares of correct answers and tokens.
    """
    shares = [0.0] * len(examples)
    items = [right_items(encoder, one) for one in examples]
    with _replaced(model, heads, kind) as show:
        for numbers, batch in batches([encoder(one) for one in examples], AT_ONCE):
            right = torch.zeros(*batch.tokens.shape, batch.tokens.shape[1], dtype=torch.bool)
            for row, number in enumerate(numbers):
                for before, own in zip(batch.before[row].tolist(), items[number], strict=False):
                    right[row, before, own] = True
            show(right)
            with torch.inference_mode():
                likeliest = answer_logits(model, batch).argmax(-1)
            found = (likeliest == batch.targets).sum(-1) / (batch.targets >= 0).sum(-1)
            for number, share in zip(numbers, found.tolist(), strict=True):
                shares[number] = share
    count = len(shares)
    return Score(sum(share == 1 for share in shares) / count, sum(shares) / count)


def best_heads(
    measure: Callable[[Collection[Head]], float], heads: Sequence[Head], count: int
) -> list[Head]:
    """Choose heads one by one, each the one that gains most beside those before it.

    Args:
        measure: Returns what to increase for a set of heads.
        heads: The heads to choose from.
        count: Number of heads to choose.

    Returns:
        The heads in the order of choice, fewer than `count` if no further head gains anything.

    Example:
        >>> gains = {(0, 0): 1.0, (0, 1): 3.0, (1, 0): -1.0}
        >>> best_heads(lambda chosen: sum(gains[head] for head in chosen), list(gains), 3)
        [(0, 1), (0, 0)]
    """
    chosen: list[Head] = []
    reached = measure(chosen)
    while len(chosen) < count:
        left = [head for head in heads if head not in chosen]
        gained = {head: measure([*chosen, head]) for head in left}
        best = max(gained, key=gained.__getitem__, default=None)
        if best is None or gained[best] <= reached:
            break
        chosen.append(best)
        reached = gained[best]
    return chosen


def bounds(
    model: PreTrainedModel,
    encoder: Encoder,
    few: Sequence[Example],
    asked: Mapping[int, Sequence[Example]],
) -> dict[str, Any]:
    """Measure what interventions in single heads and in a set of heads bring back.

    Args:
        model: As in `measured`.
        encoder: Its encoder.
        few: Questions to choose the set on, by the share of correct tokens.
        asked: The test questions by size.

    Returns:
        Per kind the chosen "heads" and, by size, the scores "plain", of the "set" and, on the first
        `FEW` questions, of none ("few") and each head alone ("single", [layers][heads]). Plain
        data, as from JSON.
    """
    config = model.config
    layers, heads = range(config.num_hidden_layers), range(config.num_attention_heads)
    every = [(layer, head) for layer in layers for head in heads]
    found: dict[str, Any] = {}
    for kind in KINDS:
        score = partial(measured, model, encoder, kind=kind)
        best = best_heads(lambda own, score=score: score(few, own).tokens, every, HEADS)  # type: ignore[misc]
        found[kind] = {
            "heads": [list(head) for head in best],
            "sizes": {
                str(size): {
                    "plain": list(score(own)),
                    "set": list(score(own, best)),
                    "few": list(score(own[:FEW])),
                    "single": [
                        [list(score(own[:FEW], [(layer, head)])) for head in heads]
                        for layer in layers
                    ],
                }
                for size, own in asked.items()
            },
        }
    return found


@contextmanager
def _replaced(
    model: PreTrainedModel, heads: Collection[Head], kind: Kind
) -> Iterator[Callable[[Tensor], None]]:
    """Replace the attention of a model; yields a function to show the right items of a batch."""
    shown: list[Tensor] = []

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
        scaling: float, **_: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        """Compute attention as transformers calls it: [batch, queries, heads, width], and None."""
        count = query.shape[2]
        hidden = torch.ones(count, count, dtype=torch.bool, device=query.device).triu(1)
        if mask is not None:
            hidden = hidden | ~mask
        weights = (query @ key.mT * scaling).masked_fill(hidden, -torch.inf).softmax(-1)
        right = shown[-1].to(query.device)
        answers = right.any(-1, keepdim=True)
        for head in (head for layer, head in heads if layer == module.layer_idx):
            own = weights[:, head]
            if kind == "oracle":
                other = right / right.sum(-1, keepdim=True).clamp(min=1)
            else:
                other = torch.zeros_like(own).scatter_(-1, own.argmax(-1, keepdim=True), 1.0)
            weights[:, head] = torch.where(answers, other.to(own), own)
        return (weights @ value).transpose(1, 2).contiguous(), None

    before = model.config._attn_implementation
    AttentionInterface.register(_NAME, attend)
    AttentionMaskInterface.register(_NAME, sdpa_mask)
    model.set_attn_implementation(_NAME)
    try:
        yield shown.append
    finally:
        model.set_attn_implementation(before)
