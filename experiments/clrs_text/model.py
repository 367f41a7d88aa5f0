"""The small decoder: a Llama of transformers, trained from scratch, with embeddings of values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from experiments.clrs_text.data import LONGEST, Batch, Encoder
from experiments.clrs_text.places import CHARACTERS, PlaceEmbedding
from experiments.clrs_text.recipe import Recipe
from experiments.clrs_text.task import Characters
from sharpmax._extras import require
from sharpmax.models import load_model

__all__ = ["answer_logits", "answer_rows", "build_model", "number_features", "prepared"]

# The longest period of the waves that represent decimals; the shortest is a few steps of 0.001.
_LONGEST_PERIOD = 4.0
# Periods of the waves that represent integers, down to 2.5. The noise separates neighbours;
# integers, which serve as marks and indices, need the most.
_INTEGERS = (np.geomspace(256.0, 2.5, 12), 1.0)

_DECIMAL = re.compile(r" ?-?[0-9]+\.[0-9]+")


def prepared(recipe: Recipe, seed: int) -> tuple[PreTrainedModel, Encoder]:
    """Make the model of a recipe before training, and its encoder.

    Args:
        recipe: The recipe.
        seed: Seed of new weights.

    Returns:
        The small decoder, or the pretrained model with its adapters if the recipe has any; and the
        encoder.

    Raises:
        CannotLoadError: The pretrained model cannot be loaded.
        MissingExtraError: The recipe has adapters, and peft is not installed.
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
            # peft adds the adapters inside the model, which keeps its class, so that sharpmax's
            # attention is applied as to any other model.
            peft.get_peft_model(model, peft.LoraConfig(r=recipe.rank, target_modules="all-linear"))
    model.train()
    return model, Encoder(tokenizer, recipe.positions)


def build_model(recipe: Recipe, tokenizer: Characters, seed: int) -> PreTrainedModel:
    """Make the small decoder before training.

    Args:
        recipe: Its size and its kind of embeddings.
        tokenizer: Its tokenizer.
        seed: Seed of its weights.

    Returns:
        A `LlamaForCausalLM` with tied input and output embeddings.
    """
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.width,
        intermediate_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        head_dim=recipe.head_width or recipe.width // recipe.heads,
        max_position_embeddings=LONGEST,
        # Llama's 0.02 suits much wider models.
        initializer_range=recipe.width**-0.5,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad,
        eos_token_id=tokenizer.eos,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
        _start_as_copies(model)
        model.model.norm.weight.detach().fill_(recipe.gain)
        whole = range(recipe.places - 2)
        integers = _embedded(whole, *_INTEGERS, recipe.width)
        if recipe.values:
            _embed_values(model, tokenizer.vocabulary, recipe)
        if recipe.values and recipe.tokenizer == "numbers":
            known = {text: token for token, text in enumerate(tokenizer.vocabulary)}
            table = model.get_input_embeddings().weight.detach()
            # The vector of an index is the embedding of that integer: copying it answers.
            integers = torch.stack([table[known[str(index)]] for index in whole])
        if recipe.positions in ("places", "shifted"):
            model.places = _place_embedding(integers)
        if recipe.apart:
            _set_apart(model, tokenizer.vocabulary, recipe)
        model.get_input_embeddings().weight.requires_grad_(not recipe.fixed)
    decoder: PreTrainedModel = model
    return decoder


def _start_as_copies(model: Any) -> None:
    """Make value times output projection the identity, so that heads start by copying.

    A mimetic initialisation (Trockman and Kolter 2023). Nearly every answer copies from the
    question; training has to learn only where to look.
    """
    for layer in model.model.layers:
        attention = layer.self_attn
        orthogonal = nn.init.orthogonal_(torch.empty_like(attention.v_proj.weight))
        with torch.no_grad():
            attention.v_proj.weight.copy_(orthogonal)
            attention.o_proj.weight.copy_(orthogonal.T)


def _set_apart(model: Any, vocabulary: Sequence[str], recipe: Recipe) -> None:
    """Give the waves of decimals directions of their own, and clear these of all else."""
    weight, width = model.get_input_embeddings().weight.detach(), recipe.width
    found = [token for token, text in enumerate(vocabulary) if _DECIMAL.fullmatch(text)]
    texts, which = np.unique([vocabulary[token].strip() for token in found], return_inverse=True)
    spaced = torch.tensor([vocabulary[token].startswith(" ") for token in found])
    directions = nn.init.orthogonal_(torch.empty(2 * recipe.waves, width))
    weight[found] = recipe.noise * torch.randn(len(texts), width)[which] / width**0.5
    weight[found] += spaced[:, None] * torch.randn(width) / (2 * width**0.5)
    for table in (weight, *model.places.buffers()):
        table -= table @ directions.T @ directions
    periods = np.geomspace(_LONGEST_PERIOD, recipe.shortest, recipe.waves)
    waves = number_features([float(text) for text in texts], periods).float()[which]
    weight[found] += waves @ directions / (2 * recipe.waves) ** 0.5
    weight[found] /= (1 + recipe.noise**2) ** 0.5


def _place_embedding(integers: Tensor) -> PlaceEmbedding:
    """Make the vectors of places; place 1 is the bracket, place 2 the index 0."""
    count, width = integers.shape
    first = torch.randn(2, width) / width**0.5
    return PlaceEmbedding(
        _embedded(range(count + 2), *_INTEGERS, width),
        # Smaller than the embedding of the number itself.
        torch.cat([first, integers]) / 2,
        torch.randn(CHARACTERS, width) / width**0.5,
    )


def number_features(values: Sequence[float], periods: np.ndarray) -> Tensor:
    """Represent numbers by waves of many periods, so that close numbers have close features.

    Args:
        values: The numbers.
        periods: Periods of the waves.

    Returns:
        Sine and cosine of each number at each period, each of variance 1: [numbers, features].
    """
    angles = 2 * np.pi * np.asarray(values, np.float64)[:, None] / periods
    return torch.from_numpy(np.sqrt(2) * np.concatenate([np.sin(angles), np.cos(angles)], 1))


def _embedded(values: Sequence[float], periods: np.ndarray, noise: float, width: int) -> Tensor:
    """Embed numbers: their features in random directions, plus noise."""
    features = number_features(values, periods).float()
    drawn = features @ torch.randn(features.shape[1], width) / features.shape[1] ** 0.5
    drawn += noise * torch.randn_like(drawn)
    return torch.div(drawn, (width * (1 + noise**2)) ** 0.5)


def _embed_values(model: Any, vocabulary: Sequence[str], recipe: Recipe) -> None:
    """Set the embeddings of numbers, or of digits, from their values.

    A decimal with a space before it is the same number plus a shift that all of these share.
    Integers with a space are contents of lists, those without are answers and indices: the two
    kinds get independent directions.
    """
    weight = model.get_input_embeddings().weight
    width = weight.shape[1]
    tokens = {text: token for token, text in enumerate(vocabulary)}
    space = torch.randn(width) / (2 * width**0.5)
    decimals = [text for text in vocabulary if "." in text and text[0] not in " ."]
    integers = [text for text in vocabulary if text.removeprefix("-").isdigit()]
    periods = np.geomspace(_LONGEST_PERIOD, recipe.shortest, recipe.waves)
    alone = _embedded([float(text) for text in decimals], periods, recipe.noise, width)
    whole, spaced = (
        _embedded([int(text) for text in integers], *_INTEGERS, width) for _ in range(2)
    )
    with torch.no_grad():
        for texts, plain, other in ((decimals, alone, alone + space), (integers, whole, spaced)):
            for text, one, two in zip(texts, plain, other, strict=True):
                weight[tokens[text]] = one
                if f" {text}" in tokens:
                    weight[tokens[f" {text}"]] = two


def answer_logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Return the logits of answer tokens, [examples, longest answer, vocabulary]."""
    small: Any = model
    tokens, before = batch.tokens.to(model.device), batch.before.to(model.device)
    small.answer_rows = before
    inputs: dict[str, Any] = {"input_ids": tokens, "position_ids": batch.positions.to(model.device)}
    if (places := getattr(model, "places", None)) is not None:
        numbers = inputs.pop("position_ids")
        embedded = small.get_input_embeddings()(inputs.pop("input_ids")) + places(numbers)
        inputs |= {"inputs_embeds": embedded, "position_ids": torch.zeros_like(numbers)}
    # Without a mask, transformers takes positions other than 0, 1, 2 … for packed sequences.
    inputs |= {"attention_mask": torch.ones_like(tokens), "use_cache": False}
    if isinstance(model, LlamaForCausalLM):
        # Only the answers need logits.
        logits: Tensor = small.lm_head(_rows(small.model(**inputs).last_hidden_state, before))
        return logits
    kept = before.unique()
    return _rows(small(**inputs, logits_to_keep=kept).logits, torch.searchsorted(kept, before))


def answer_rows(model: PreTrainedModel) -> Tensor:
    """Return the rows that give answers in the current pass, [examples, longest answer].

    An attention that treats these rows in its own way asks for them. Padding counts as row 0.
    """
    rows: Tensor = model.answer_rows  # type: ignore[assignment]
    return rows


def _rows(states: Tensor, which: Tensor) -> Tensor:
    """Take some rows of each example, [examples, which, width]."""
    return states.gather(1, which[..., None].expand(-1, -1, states.shape[-1]))
