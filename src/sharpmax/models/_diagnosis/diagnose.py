"""Measure how the attention of a Hugging Face model spreads as its inputs grow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sharpmax._files import versions
from sharpmax.models._diagnosis.heads import summarise
from sharpmax.models._diagnosis.inputs import check_count, mean_tokens, prepare
from sharpmax.models._diagnosis.meter import LooksAheadError, Meter
from sharpmax.models._diagnosis.result import Diagnosis
from sharpmax.models._handle import Sharpened
from sharpmax.models._inspect import (
    CannotSharpenError,
    Layer,
    attention_layers,
    check_one_rank,
    check_reachable,
    embedding,
    evaluation_mode,
    inner_model,
)

ROWS = 64
"""Default number of measured rows per length."""

TAIL = 16
"""Default number of tokens that count as the last ones."""


def diagnose(
    model: nn.Module,
    texts_or_ids: str | Tensor | Sequence[Any] | Mapping[int, Any],
    lengths: Sequence[int] | None = None,
    tokenizer: Any = None,
    *,
    sink: bool = False,
    tail: int = TAIL,
    rows: int = ROWS,
    unit: str = "tokens",
    on_progress: Callable[[float, int], None] | None = None,
) -> Diagnosis:
    """Measure every head of a Hugging Face model on prefixes of the same inputs, and judge it.

    At each length n, this measures the last rows of the prefix: the entropy H of the attention
    weights, H / log n, exp(H), the largest weight, the weights of the first token, of a learned
    sink and of the last tokens, and the spread of the logits with the critical length that follows
    from it. Only visible keys count. The slope of H against log n is 1 for a head that attends to
    all keys equally. `Diagnosis` explains the verdicts.

    In a causal model, one pass per input serves every length, because the rows before position n
    are the last rows of the prefix of length n. Other models take one pass per length. Memory
    beyond the pass itself is a few rows of logits, and 28 bytes per measured row of a head. The
    model runs in evaluation mode, without its language-model head and without padding, and is
    unchanged afterwards, even after an error.

    An interrupt (Ctrl-C) returns what the finished inputs gave, marked `interrupted`. During the
    first input it returns the finished layers, or, with one pass per length, the finished lengths.
    It is raised if fewer than two lengths are finished.

    Args:
        model: a transformers model, or a module that contains one. It must be a decoder or an
            encoder that reads tokens; for an encoder-decoder, pass `model.get_encoder()`.
        texts_or_ids: a text, texts, tokens, or sequences of tokens, of any lengths. Texts are
            tokenised with the tokenizer's defaults, and cut. If a prefix of an input would be a
            different task, pass a mapping from sizes to inputs of that size, the same number for
            each; every input is then one pass, and used whole.
        lengths: numbers of tokens, at least two. Default: the longest that the model and the
            shortest input allow, and its halves down to 64. With a mapping: some of its sizes;
            default all.
        tokenizer: converts texts to tokens.
        sink: exclude sinks from entropy, n, largest weight and spread, and judge the rest. Sinks
            are the first token, and a learned sink (gpt-oss), which otherwise counts as a key.
        tail: number of tokens that count as the last ones.
        rows: number of measured rows per length, at most half of the length.
        unit: what the sizes of a mapping count, such as "elements".
        on_progress: called after each layer with the number of finished inputs, including the
            fraction of the current one, and the number of inputs. With a mapping, one input is one
            of each size.

    Returns:
        The diagnosis: `summary()`, `records`, `heads`, `to_pandas()`, `save(path)`, and its figures
        and report: `plot_entropy()`, `plot_slopes()`, `to_html(path)`.

    Raises:
        CannotSharpenError: no attention layer can be reached, or the model is already sharpened.
        NotImplementedError: the model does not read one sequence of tokens, or its heads are
            distributed over ranks.
        TypeError, ValueError: names the argument, what was expected and what came.

    Example:
        >>> import sharpmax, torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
        >>> model = LlamaForCausalLM(config)
        >>> tokens = torch.arange(256) % 32
        >>> diagnosis = sharpmax.diagnose(model, tokens, lengths=[32, 64, 128, 256])
        >>> [head.verdict for head in diagnosis.heads]
        ['dispersing', 'dispersing', 'dispersing', 'dispersing']
        >>> round(diagnosis.heads[0].slope, 1)
        1.0
    """
    model = inner_model(model)
    layers = attention_layers(model)
    _check_model(model, layers)
    check_count("tail", tail, 1)
    check_count("rows", rows, 1)
    given, chosen = prepare(model, texts_or_ids, lengths, tokenizer, unit)
    implementation = str(getattr(model.config, "_attn_implementation", ""))
    reachable = [layer for layer in layers if layer.unreachable is None]
    finished, interrupted = 0, False

    def report_layer() -> None:
        share = meter.unfinished / (len(reachable) * len(chosen))
        if on_progress is not None and share < 1:
            on_progress(finished + share, len(given))

    meter = Meter(rows, tail, sink, report_layer)
    # Kinds may be wrong about causality: the meter notices rows that look ahead.
    passes = _Passes(model, meter, any(layer.kind != "encoder" for layer in reachable))
    with Sharpened(model, layers, recorder=meter) as recording, evaluation_mode(model):
        try:
            for each in given:
                passes.run(each, chosen)
                finished += 1
                if on_progress is not None:
                    on_progress(finished, len(given))
        except KeyboardInterrupt:
            chosen = tuple(n for n in chosen if any(length == n for _, length in meter.kept))
            if len(chosen) < 2:
                raise
            interrupted = finished < len(given)

    records, heads, unmeasured = [], [], {}
    for layer in layers:
        slots = {n: meter.kept[layer.index, n] for n in chosen if (layer.index, n) in meter.kept}
        if slots:
            of_layer, judged = summarise(layer, slots, sink)
            records += of_layer
            heads += judged
        else:
            why = "interrupted before this layer" if interrupted else "the tokens did not reach it"
            unmeasured[layer.name] = layer.unreachable or why
    if not heads:
        raise CannotSharpenError(
            f"{type(model).__name__}: expected tokens to reach an attention layer, but they "
            "reached none; pass the submodel that reads them"
        )
    return Diagnosis(
        model_name=getattr(model.config, "_name_or_path", "") or "",
        model_type=model.config.model_type,
        dtype=str(model.dtype).removeprefix("torch."),
        implementation=implementation,
        lengths=chosen,
        unit=unit,
        tokens=mean_tokens(given[: max(finished, 1)], chosen),
        rows=rows,
        tail=tail,
        sink=sink,
        inputs=finished,
        interrupted=interrupted,
        records=tuple(records),
        heads=tuple(heads),
        unmeasured=unmeasured,
        notes=recording.notes,
        versions=versions(("numpy", "torch", "transformers")),
    )


class _Passes:
    """Run a model over prefixes of tokens: in one pass if no row looks ahead."""

    def __init__(self, model: PreTrainedModel, meter: Meter, at_once: bool) -> None:
        # The language-model head would compute logits over the vocabulary for every token.
        self._body: Any = model.base_model
        self._meter = meter
        self._at_once = at_once
        device = embedding(model).device
        self._device = torch.device("cpu") if device.type == "meta" else device
        known = inspect.signature(self._body.forward).parameters
        self._options = {"use_cache": False} if "use_cache" in known else {}
        self._takes_mask = "attention_mask" in known

    def run(self, given: Tensor | Mapping[int, Tensor], lengths: Sequence[int]) -> None:
        """Measure one input at every length, or one input of every size."""
        try:
            if isinstance(given, Mapping):
                for size in lengths:
                    self._meter.begin([len(given[size])], size)
                    self._pass(given[size])
            else:
                self._run_prefixes(given, lengths)
        except KeyboardInterrupt:
            if self._meter.kept:
                self._meter.drop()
            else:
                # Some of the first input is better than nothing.
                self._meter.keep_partial()
            raise
        except BaseException:
            self._meter.drop()
            raise
        self._meter.keep()

    def _run_prefixes(self, tokens: Tensor, lengths: Sequence[int]) -> None:
        if self._at_once:
            try:
                self._meter.begin(lengths)
                self._pass(tokens[: lengths[-1]])
            except LooksAheadError:
                self._at_once = False
                self._meter.drop()
        if not self._at_once:
            for length in lengths:
                self._meter.begin([length])
                self._pass(tokens[:length])

    def _pass(self, tokens: Tensor) -> None:
        tokens = tokens[None].to(self._device)
        options: dict[str, Any] = dict(self._options)
        if self._takes_mask:
            # Every token counts, even one that looks like padding.
            options["attention_mask"] = torch.ones_like(tokens)
        with torch.no_grad():
            self._body(input_ids=tokens, **options)


def _check_model(model: PreTrainedModel, layers: list[Layer]) -> None:
    check_reachable(model, layers)
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False) and any(
        layer.kind == "cross" for layer in layers
    ):
        raise NotImplementedError(
            f"model: expected a decoder or an encoder, got the encoder-decoder {name}; pass its "
            "get_encoder()"
        )
    if model.main_input_name != "input_ids":
        raise NotImplementedError(
            f"model: expected a model that reads input_ids, {name} reads {model.main_input_name}; "
            "pass its submodel for text, if it has one"
        )
    check_one_rank(model)
