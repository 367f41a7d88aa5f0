"""The small decoder: transformers' own Llama, from scratch, with numbers that know their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from sharpmax._extras import require
from sharpmax.lab.clrs_text.data import LONGEST, Batch, Encoder
from sharpmax.lab.clrs_text.recipe import Recipe
from sharpmax.models import load_model
from sharpmax.tasks.clrs_text import Characters

__all__ = ["answer_logits", "build_model", "number_features", "prepared"]

# Periods of the waves that numbers begin with. Shorter ones would tell nothing of the order of
# numbers that are as far apart as those of an example.
_PERIODS = np.geomspace(4.0, 0.05, 12)
# What integers are divided by before they become waves.
_APART = 64
# How far embeddings of numbers are from being functions of their values alone: neighbours have to
# be told apart.
_NOISE = 0.5


def prepared(recipe: Recipe, seed: int) -> tuple[PreTrainedModel, Encoder]:
    """The model of a recipe before training, and what makes tokens for it.

    Args:
        recipe: What to train.
        seed: Of weights that are new.

    Returns:
        The small decoder; or the pretrained model, with adapters beside its weights where the
        recipe asks for them.

    Raises:
        CannotLoad: There is no such pretrained model.
        MissingExtra: Adapters were asked for, and peft is not installed.
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
        if recipe.values and recipe.tokenizer == "numbers":
            _give_values(model, tokenizer.vocabulary)
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


def number_features(values: Sequence[float]) -> Tensor:
    """What is the same for near numbers: waves of many periods, [numbers, features].

    Args:
        values: The numbers.

    Returns:
        Sine and cosine of each number at periods from 4 to 0.05, each of deviation 1.
    """
    angles = 2 * np.pi * np.asarray(values, np.float64)[:, None] / _PERIODS
    return torch.from_numpy(np.sqrt(2) * np.concatenate([np.sin(angles), np.cos(angles)], 1))


def _give_values(model: Any, vocabulary: Sequence[str]) -> None:
    """Begin embeddings of numbers with features of their values, and a little noise.

    Integers, which are indices and marks, have a projection of their own, and are made as small as
    to be as far apart as the decimals of an example.
    A number with a space in front of it is the same number: it differs by what all of these differ.
    """
    weight = model.get_input_embeddings().weight
    width = weight.shape[1]
    tokens = {text: token for token, text in enumerate(vocabulary)}
    decimals = {text: float(text) for text in vocabulary if _is_decimal(text)}
    integers = {text: int(text) / _APART for text in vocabulary if _is_whole(text)}
    space = torch.randn(width)
    for numbers in (decimals, integers):
        features = number_features(list(numbers.values())).float()
        drawn = features @ torch.randn(features.shape[1], width) / features.shape[1] ** 0.5
        drawn = (drawn + _NOISE * torch.randn_like(drawn)) / (1 + _NOISE**2) ** 0.5
        with torch.no_grad():
            for text, embedding in zip(numbers, drawn / width**0.5, strict=True):
                weight[tokens[text]] = embedding
                if f" {text}" in tokens:
                    weight[tokens[f" {text}"]] = embedding + _NOISE * space / width**0.5


def _is_decimal(text: str) -> bool:
    return "." in text and not text.startswith((" ", "."))


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdigit()


def answer_logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Logits in front of the tokens of answers: [examples, places, vocabulary]."""
    callable_model: Any = model
    logits: Tensor = callable_model(
        input_ids=batch.tokens.to(model.device),
        position_ids=batch.positions.to(model.device),
        # Of ones: without it, positions that are not 0, 1, 2 … are taken for several texts in one.
        attention_mask=torch.ones_like(batch.tokens, device=model.device),
        logits_to_keep=batch.places.to(model.device),
        use_cache=False,
    ).logits
    return logits
