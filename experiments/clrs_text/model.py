"""The small decoder: transformers' own Llama, from scratch, with numbers that know their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from experiments.clrs_text.data import LONGEST, Batch, Encoder
from experiments.clrs_text.places import CHARACTERS, PLACES, PlaceEmbedding
from experiments.clrs_text.recipe import Recipe
from experiments.clrs_text.task import Characters
from sharpmax._extras import require
from sharpmax.models import load_model

__all__ = ["answer_logits", "build_model", "number_features", "prepared"]

# Periods of the waves that numbers are told apart by: those of decimals down to a few steps of
# 0.001, and those of integers from the largest down to 2.
_DECIMAL_PERIODS = np.geomspace(4.0, 0.005, 16)
_INTEGER_PERIODS = np.geomspace(256.0, 2.5, 12)
# How far embeddings of numbers are from being functions of their values alone: neighbours have to
# be told apart, and integers, which are marks and indices, above all.
_DECIMAL_NOISE, _INTEGER_NOISE = 0.5, 1.0


def prepared(recipe: Recipe, seed: int) -> tuple[PreTrainedModel, Encoder]:
    """The model of a recipe before training, and what makes tokens for it.

    Args:
        recipe: What to train.
        seed: Of weights that are new.

    Returns:
        The small decoder; or the pretrained model, with adapters beside its weights where the
        recipe asks for them.

    Raises:
        CannotLoadError: There is no such pretrained model.
        MissingExtraError: Adapters were asked for, and peft is not installed.
    """
    if recipe.model is None:
        encoder = Encoder.of(recipe)
        return build_model(recipe, encoder.tokenizer, seed), encoder
    loaded, tokenizer = load_model(recipe.model)
    model: Any = loaded
    model = model.float()
    if recipe.rank:
        peft = require("peft", extra="adapters", what="training adapters of a pretrained model")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            # The adapters are put inside the model, which stays what it is: sharpmax's attention
            # comes in as for any other.
            peft.get_peft_model(model, peft.LoraConfig(r=recipe.rank, target_modules="all-linear"))
    model.train()
    return model, Encoder(tokenizer, recipe.positions)


def build_model(recipe: Recipe, tokenizer: Characters, seed: int) -> PreTrainedModel:
    """The model before training.

    Args:
        recipe: Its size.
        tokenizer: Its tokens.
        seed: Of its weights.

    Returns:
        A `LlamaForCausalLM` whose input and output embeddings are the same.
    """
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.width,
        intermediate_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        max_position_embeddings=LONGEST,
        # Llama's 0.02 is for models that are a great deal wider.
        initializer_range=recipe.width**-0.5,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad,
        eos_token_id=tokenizer.eos,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
        _copy_at_first(model)
        whole = range(PLACES - 2)
        integers = _integers(whole, recipe.width)
        if recipe.values:
            _give_values(model, tokenizer.vocabulary)
        if recipe.values and recipe.tokenizer == "numbers":
            known = {text: token for token, text in enumerate(tokenizer.vocabulary)}
            table = model.get_input_embeddings().weight.detach()
            # An index is given by the embedding of the integer, and so answered by copying.
            integers = torch.stack([table[known[str(index)]] for index in whole])
        if recipe.positions == "places":
            model.places = _place_embedding(integers)
        model.get_input_embeddings().weight.requires_grad_(not recipe.fixed)
    decoder: PreTrainedModel = model
    return decoder


def _copy_at_first(model: Any) -> None:
    """Begin with heads that hand on what they see: values times outputs are the identity.

    A mimetic initialisation (Trockman and Kolter 2023). Copying from the question, which nearly
    every answer needs, is there before training; where to look is left to learn.
    """
    for layer in model.model.layers:
        attention = layer.self_attn
        orthogonal = nn.init.orthogonal_(torch.empty_like(attention.v_proj.weight))
        with torch.no_grad():
            attention.v_proj.weight.copy_(orthogonal)
            attention.o_proj.weight.copy_(orthogonal.T)


def _place_embedding(integers: Tensor) -> PlaceEmbedding:
    """Vectors of places: before the first integer, which is that of the first number, a bracket."""
    width = integers.shape[1]
    first = torch.randn(2, width) / width**0.5
    return PlaceEmbedding(
        _integers(range(PLACES), width),
        # What a number is comes before where it is.
        torch.cat([first, integers]) / 2,
        torch.randn(CHARACTERS, width) / width**0.5,
    )


def number_features(values: Sequence[float], periods: np.ndarray) -> Tensor:
    """What is the same for near numbers: waves of many periods, [numbers, features].

    Args:
        values: The numbers.
        periods: Of the waves.

    Returns:
        Sine and cosine of each number at each period, each of deviation 1.
    """
    angles = 2 * np.pi * np.asarray(values, np.float64)[:, None] / periods
    return torch.from_numpy(np.sqrt(2) * np.concatenate([np.sin(angles), np.cos(angles)], 1))


def _decimals(values: Sequence[float], width: int) -> Tensor:
    return _numbers(values, _DECIMAL_PERIODS, _DECIMAL_NOISE, width)


def _integers(values: Sequence[int], width: int) -> Tensor:
    return _numbers(values, _INTEGER_PERIODS, _INTEGER_NOISE, width)


def _numbers(values: Sequence[float], periods: np.ndarray, noise: float, width: int) -> Tensor:
    """Embeddings of numbers: features of their values in random directions, and noise."""
    features = number_features(values, periods).float()
    drawn = features @ torch.randn(features.shape[1], width) / features.shape[1] ** 0.5
    drawn += noise * torch.randn_like(drawn)
    return torch.div(drawn, (width * (1 + noise**2)) ** 0.5)


def _give_values(model: Any, vocabulary: Sequence[str]) -> None:
    """Begin embeddings of numbers, or of digits, with features of their values.

    A decimal with a space in front of it is the same number: it differs by what all of these
    differ. Integers with a space are the contents of lists, and those without are answers and
    indices: both have directions of their own.
    """
    weight = model.get_input_embeddings().weight
    width = weight.shape[1]
    tokens = {text: token for token, text in enumerate(vocabulary)}
    space = torch.randn(width) / (2 * width**0.5)
    decimals = [text for text in vocabulary if _is_decimal(text)]
    integers = [text for text in vocabulary if _is_whole(text)]
    alone = _decimals([float(text) for text in decimals], width)
    whole, spaced = (_integers([int(text) for text in integers], width) for _ in range(2))
    with torch.no_grad():
        for texts, plain, other in ((decimals, alone, alone + space), (integers, whole, spaced)):
            for text, one, two in zip(texts, plain, other, strict=True):
                weight[tokens[text]] = one
                if f" {text}" in tokens:
                    weight[tokens[f" {text}"]] = two


def _is_decimal(text: str) -> bool:
    return "." in text and not text.startswith((" ", "."))


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdigit()


def answer_logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Logits of the tokens of answers: [examples, longest answer, vocabulary]."""
    small: Any = model
    tokens, before = batch.tokens.to(model.device), batch.before.to(model.device)
    inputs: dict[str, Any] = {"input_ids": tokens, "position_ids": batch.positions.to(model.device)}
    if (places := getattr(model, "places", None)) is not None:
        numbers = inputs.pop("position_ids")
        embedded = small.get_input_embeddings()(inputs.pop("input_ids")) + places(numbers)
        inputs |= {"inputs_embeds": embedded, "position_ids": torch.zeros_like(numbers)}
    # Of ones: without it, positions that are not 0, 1, 2 … are taken for several texts in one.
    inputs |= {"attention_mask": torch.ones_like(tokens), "use_cache": False}
    if isinstance(model, LlamaForCausalLM):
        # Logits are made for answers alone.
        logits: Tensor = small.lm_head(_taken(small.model(**inputs).last_hidden_state, before))
        return logits
    kept = before.unique()
    return _taken(small(**inputs, logits_to_keep=kept).logits, torch.searchsorted(kept, before))


def _taken(rows: Tensor, which: Tensor) -> Tensor:
    """Some rows of each example: [examples, which, width]."""
    return rows.gather(1, which[..., None].expand(-1, -1, rows.shape[-1]))
