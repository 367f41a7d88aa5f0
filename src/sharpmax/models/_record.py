"""Seeing the rows of a model's attention without changing it."""

from __future__ import annotations

from torch import nn

from sharpmax._attention.problem import SinkRole
from sharpmax.models._handle import Sharpened
from sharpmax.models._inspect import attention_layers
from sharpmax.models._interface import Observer, Recorder
from sharpmax.models._rule import Rule
from sharpmax.models._sharpen import check_reachable, inner_model


def record(
    model: nn.Module, recorder: Recorder | Observer, *, sink_role: SinkRole = "key"
) -> Sharpened:
    """Tell a recorder about every row of attention, and change nothing.

    It takes the place of `output_attentions=True`, whose weights grow with the square of the
    length: the statistics of a row are four numbers, and entropy, largest weight and logsumexp
    follow from them.

    Args:
        model: of transformers, or a module around one.
        recorder: its `record(layer, statistics)` is called by every attention layer in each pass.
        sink_role: of a learned sink, as in `sharpmax.sharpen`.

    Returns:
        A handle, which is a context manager; `restore()` ends the recording.

    Raises:
        CannotSharpenError: there is no attention that can be reached, or the model is sharpened.
        TypeError: naming the argument, what was expected and what came.

    Example:
        >>> import sharpmax, torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(
        ...     vocab_size=32,
        ...     hidden_size=16,
        ...     intermediate_size=16,
        ...     num_hidden_layers=2,
        ...     num_attention_heads=2,
        ... )
        >>> model = LlamaForCausalLM(config).eval()
        >>> class Entropies:
        ...     def record(self, layer, statistics):
        ...         print(layer, tuple(statistics.entropy().shape))
        >>> with sharpmax.models.record(model, Entropies()):
        ...     logits = model(torch.arange(8)[None]).logits
        0 (1, 2, 8)
        1 (1, 2, 8)
    """
    if not isinstance(recorder, Recorder | Observer):
        raise TypeError(
            "recorder: expected something with a method record(layer, statistics), got "
            f"{type(recorder).__name__}"
        )
    model = inner_model(model)
    layers = attention_layers(model)
    check_reachable(model, layers)
    rules = {layer.index: Rule() for layer in layers if layer.closed is None}
    return Sharpened(model, layers, rules, sink_role=sink_role, recorder=recorder)
