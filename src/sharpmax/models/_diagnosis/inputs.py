"""The inputs of a diagnosis: tokens of texts or of given sizes, and the lengths to measure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax.models._inspect import check_positions, embedding, positions

SHORTEST = 64
"""If no lengths are given, the longest is halved down to this."""

Inputs = list[Tensor] | list[dict[int, Tensor]]
"""Sequences whose prefixes are measured, or one sequence per size."""


def prepare(
    model: PreTrainedModel, given: Any, lengths: Sequence[int] | None, tokenizer: Any, unit: str
) -> tuple[Inputs, tuple[int, ...]]:
    """Return checked tokens and ascending lengths; the arguments are those of `diagnose`."""
    if isinstance(given, Mapping):
        sizes = _sizes(given, lengths)
        return _rounds(model, given, sizes, tokenizer), sizes
    if unit != "tokens":
        raise ValueError(
            f"unit: expected 'tokens' unless inputs are given by size, got {unit!r}; pass a "
            "mapping from sizes to inputs"
        )
    sequences = _sequences(model, given, tokenizer)
    return sequences, _lengths(model, sequences, lengths)


def mean_tokens(given: Inputs, lengths: Sequence[int]) -> tuple[float, ...]:
    """Return the mean number of tokens per length or size."""
    by_size = [each for each in given if isinstance(each, Mapping)]
    return tuple(
        float(np.mean([len(each[length]) for each in by_size])) if by_size else float(length)
        for length in lengths
    )


def check_count(name: str, value: object, least: int) -> None:
    """Raise unless a value is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name}: expected at least {least}, got {value}")


def _sequences(model: PreTrainedModel, given: Any, tokenizer: Any) -> list[Tensor]:
    """Return the tokens of each input, checked against the vocabulary."""
    if isinstance(given, str):
        given = [given]
    elif isinstance(given, Tensor) or hasattr(given, "__array__"):
        given = torch.as_tensor(given)
        given = [given] if given.ndim == 1 else list(given)
    elif not isinstance(given, Sequence):
        raise TypeError(
            "texts_or_ids: expected a text, texts, tokens or sequences of tokens, got "
            f"{type(given).__name__}"
        )
    elif given and all(isinstance(each, int) for each in given):
        given = [given]
    if not len(given):
        raise ValueError("texts_or_ids: expected at least one input, got none")
    vocabulary = embedding(model).shape[0]
    return [_tokens(index, each, tokenizer, vocabulary) for index, each in enumerate(given)]


def _tokens(index: int, given: Any, tokenizer: Any, vocabulary: int) -> Tensor:
    where = f"texts_or_ids[{index}]"
    if isinstance(given, str):
        if tokenizer is None:
            raise ValueError(f"tokenizer: expected one, because {where} is a text, got None")
        if not given.strip():
            raise ValueError(f"{where}: expected a text that is not empty, got {given!r}")
        # Without the warning about long inputs, which are cut later.
        given = tokenizer(given, verbose=False)["input_ids"]
    try:
        tokens = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{where}: expected a text or tokens, got {given!r:.60}") from None
    if not tokens.numel():
        raise ValueError(f"{where}: expected at least one token, got none")
    if tokens.ndim != 1 or tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise TypeError(
            f"{where}: expected integers along one axis, got {tokens.dtype} of shape "
            f"{tuple(tokens.shape)}"
        )
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocabulary:
        raise ValueError(
            f"{where}: expected tokens from 0 to {vocabulary - 1}, got {low if low < 0 else high}"
        )
    return tokens.long()


def _sizes(given: Mapping[int, Any], asked: Sequence[int] | None) -> tuple[int, ...]:
    """Return the chosen sizes of a mapping, in ascending order."""
    chosen = _ordered("lengths" if asked is not None else "texts_or_ids", asked or given, 1)
    if missing := [size for size in chosen if size not in given]:
        raise ValueError(
            f"lengths: expected some of {', '.join(map(str, sorted(given)))}, the sizes of the "
            f"inputs, got {missing[0]}"
        )
    return chosen


def _rounds(
    model: PreTrainedModel, given: Mapping[int, Any], sizes: Sequence[int], tokenizer: Any
) -> list[dict[int, Tensor]]:
    """Return the tokens of one input per size, as often as there are inputs."""
    sequences = {size: _sequences(model, given[size], tokenizer) for size in sizes}
    counts = {size: len(several) for size, several in sequences.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"texts_or_ids: expected the same number of inputs for each size, got {counts}"
        )
    for size, several in sequences.items():
        check_positions(model, f"texts_or_ids[{size}]", max(map(len, several)))
    return [dict(zip(sizes, row, strict=True)) for row in zip(*sequences.values(), strict=True)]


def _lengths(
    model: PreTrainedModel, sequences: list[Tensor], asked: Sequence[int] | None
) -> tuple[int, ...]:
    """Return lengths that all inputs and the positions of the model allow, in ascending order."""
    if asked is None:
        longest = min(len(tokens) for tokens in sequences)
        longest = min(longest, positions(model) or longest)
        if longest < 4:
            raise ValueError(
                f"texts_or_ids: expected at least 4 tokens, got {longest}; use longer inputs"
            )
        found = [longest, longest // 2]
        while found[-1] // 2 >= SHORTEST:
            found.append(found[-1] // 2)
        return tuple(reversed(found))
    chosen = _ordered("lengths", asked, 2)
    check_positions(model, "lengths", chosen[-1])
    for index, tokens in enumerate(sequences):
        if len(tokens) < chosen[-1]:
            raise ValueError(
                f"texts_or_ids[{index}]: expected at least {chosen[-1]} tokens, the longest of the "
                f"lengths, got {len(tokens)}; use longer inputs or shorter lengths"
            )
    return chosen


def _ordered(name: str, asked: Iterable[int], least: int) -> tuple[int, ...]:
    """Return distinct integers, at least two, in ascending order."""
    try:
        asked = list(asked)
    except TypeError:
        raise TypeError(f"{name}: expected integers, got {asked!r}") from None
    for length in asked:
        check_count(name, length, least)
    chosen = tuple(sorted(set(asked)))
    if len(chosen) < 2:
        raise ValueError(f"{name}: expected at least two, to compare them, got {list(chosen)}")
    return chosen
