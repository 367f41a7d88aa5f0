"""The inputs of a diagnosis: tokens of texts or of given sizes, and the lengths to measure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sharpmax.models._inspect import check_positions, positions, vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Rounds = list[dict[int, Any]]
"""One input per length, as often as there are inputs."""

SHORTEST = 64  # if no lengths are given, the longest is halved down to this


def prepare(
    model: PreTrainedModel, given: Any, lengths: Sequence[int] | None, tokenizer: Any, unit: str
) -> tuple[Rounds, tuple[int, ...]]:
    """Return checked tokens by length, for each input, and the ascending lengths."""
    if isinstance(given, Mapping):
        sizes = _sizes(given, lengths)
        sequences = {size: _sequences(model, given[size], tokenizer) for size in sizes}
        found = _rounds(sequences)
        for size, several in sequences.items():
            check_positions(model, f"texts_or_ids[{size}]", max(map(len, several)))
        return found, sizes
    if unit != "tokens":
        raise ValueError(
            f"unit: expected 'tokens' unless inputs are given by size, got {unit!r}; pass a "
            "mapping from sizes to inputs"
        )
    inputs = _sequences(model, given, tokenizer)
    chosen = _lengths(model, inputs, lengths)
    return [{length: tokens[:length] for length in chosen} for tokens in inputs], chosen


def prepare_calls(given: Any, lengths: Sequence[int] | None) -> tuple[Rounds, tuple[int, ...]]:
    """Return the inputs of a model that does not read tokens by length, and the lengths.

    A function makes the inputs of a length. In a mapping, a list holds several inputs.
    """
    if callable(given):
        if lengths is None:
            raise ValueError("lengths: expected numbers for which to make inputs, got None")
        given = {length: given(length) for length in _ordered("lengths", lengths, 1)}
    elif not isinstance(given, Mapping):
        raise TypeError(
            "texts_or_ids: expected a function of a length, or a mapping from lengths to inputs, "
            f"for a model that is not of transformers, got {type(given).__name__}"
        )
    sizes = _sizes(given, lengths)
    several = {size: given[size] for size in sizes}
    return _rounds({n: x if isinstance(x, list) else [x] for n, x in several.items()}), sizes


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
        got = f"sequences of tokens, got {type(given).__name__}"
        raise TypeError(f"texts_or_ids: expected a text, texts, tokens or {got}")
    elif given and all(isinstance(each, int) for each in given):
        given = [given]
    if not len(given):
        raise ValueError("texts_or_ids: expected at least one input, got none")
    known = vocabulary(model)
    return [_tokens(index, each, tokenizer, known) for index, each in enumerate(given)]


def _tokens(index: int, given: Any, tokenizer: Any, known: int) -> Tensor:
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
        got = f"{tokens.dtype} of shape {tuple(tokens.shape)}"
        raise TypeError(f"{where}: expected integers along one axis, got {got}")
    for extreme in (int(tokens.min()), int(tokens.max())):
        if not 0 <= extreme < known:
            raise ValueError(f"{where}: expected tokens from 0 to {known - 1}, got {extreme}")
    return tokens.long()


def _sizes(given: Mapping[int, Any], lengths: Sequence[int] | None) -> tuple[int, ...]:
    """Return the sizes of inputs that are given by size, or those that are asked for."""
    sizes = _ordered("lengths" if lengths is not None else "texts_or_ids", lengths or given, 1)
    if missing := [size for size in sizes if size not in given]:
        raise ValueError(
            f"lengths: expected some of {', '.join(map(str, sorted(given)))}, the sizes of the "
            f"inputs, got {missing[0]}"
        )
    return sizes


def _rounds(sequences: dict[int, list[Any]]) -> Rounds:
    """Return one input per size, as often as there are inputs."""
    counts = {size: len(several) for size, several in sequences.items()}
    if len(set(counts.values())) > 1:
        expected = "expected the same number of inputs for each size"
        raise ValueError(f"texts_or_ids: {expected}, got {counts}")
    return [dict(zip(sequences, row, strict=True)) for row in zip(*sequences.values(), strict=True)]


def _lengths(
    model: PreTrainedModel, sequences: list[Tensor], asked: Sequence[int] | None
) -> tuple[int, ...]:
    """Return lengths that all inputs and the positions of the model allow, in ascending order."""
    if asked is None:
        longest = min(*map(len, sequences), positions(model) or len(sequences[0]))
        if longest < 4:
            advice = "use longer inputs"
            raise ValueError(f"texts_or_ids: expected at least 4 tokens, got {longest}; {advice}")
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
