"""Observe the rows of a model's attention without changing it."""

from __future__ import annotations

from torch import nn

from sharpmax._attention import SinkRole
from sharpmax.models._handle import Sharpened
from sharpmax.models._inspect import attention_layers, check_reachable, inner_model
from sharpmax.models._interface import Recorder


def record(model: nn.Module, recorder: Recorder, *, sink_role: SinkRole = "key") -> Sharpened:
    """Pass the statistics of every row of attention to a recorder, without changing the model.

    Use it instead of `output_attentions=True`, whose weights grow with the square of the length.
    The statistics of a row are four numbers; entropy, largest weight and logsumexp follow from
    them.

    Args:
        model: a transformers model, or a module that contains one.
        recorder: every attention layer calls its `record(layer, statistics)` in each pass.
        sink_role: role of a learned sink, as in `sharpmax.sharpen`.

    Returns:
        A handle, which is a context manager; `restore()` ends the recording.

    Raises:
        CannotSharpenError: no attention layer can be reached, or the model is already sharpened.
        TypeError: names the argument, what was expected and what came.

    Example:
        >>> import sharpmax, torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> class Entropies:
        ...     def record(self, layer, statistics):
        ...         print(layer, tuple(statistics.entropy().shape))
        >>> with sharpmax.models.record(model, Entropies()):
        ...     logits = model(torch.arange(8)[None]).logits
        0 (1, 2, 8)
        1 (1, 2, 8)
    """
    if not isinstance(recorder, Recorder):
        raise TypeError(
            "recorder: expected an object with a method record(layer, statistics), got "
            f"{type(recorder).__name__}"
        )
    model = inner_model(model)
    layers = attention_layers(model)
    check_reachable(model, layers)
    return Sharpened(model, layers, sink_role=sink_role, recorder=recorder)
