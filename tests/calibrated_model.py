"""A tiny model in which one head can be spoilt, and its distance from the intact model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from sharpmax.models import Window
from sharpmax.models._calibration.parameters import FamilyName, HeadParameters
from sharpmax.models._handle import Sharpened
from sharpmax.models._hugging_face import HuggingFace

HEADS, WIDTH = 2, 8


def tiny(layer: int | None = None, head: int = 0, factor: float = 1.0) -> LlamaForCausalLM:
    """The model, with the logits of one head multiplied by a factor."""
    config = LlamaConfig(
        vocab_size=32, hidden_size=HEADS * WIDTH, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, initializer_range=0.3,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
    if layer is not None:
        with torch.no_grad():
            rows = slice(head * WIDTH, (head + 1) * WIDTH)
            model.model.layers[layer].self_attn.q_proj.weight[rows] *= factor
    return model


@cache
def whole() -> LlamaForCausalLM:
    return tiny().requires_grad_(False)


def distance(model: PreTrainedModel, windows: Sequence[Window]) -> Tensor:
    """How far the next tokens are from those of the intact model, one number per window."""
    ids = torch.tensor([window.ids for window in windows])
    theirs = whole()(input_ids=ids).logits.log_softmax(-1)
    ours = model(input_ids=ids).logits.log_softmax(-1)
    every = F.kl_div(ours, theirs, log_target=True, reduction="none")
    return every.sum(-1).mean(-1)


def some_windows(count: int = 8, seed: int = 1, length: int = 12) -> list[Window]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(32, (count, length), generator=generator).tolist()
    return [Window(tuple(row), context) for context, row in enumerate(rows)]


@contextmanager
def opened(
    model: LlamaForCausalLM, family: FamilyName, flatten: bool = False
) -> Iterator[tuple[Sharpened, HeadParameters]]:
    """The model with rules that can be changed, and the parameters of all its heads."""
    way = HuggingFace(model)
    layers = way.layers
    references = {layer.index: torch.ones(HEADS) for layer in layers}
    with Sharpened(way) as sharpened:
        yield sharpened, HeadParameters(family, layers, flatten, references)
