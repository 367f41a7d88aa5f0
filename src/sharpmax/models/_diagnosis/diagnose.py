"""Measure how the attention of a model spreads as its inputs grow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from sharpmax._files import versions
from sharpmax.models import _inspect
from sharpmax.models._diagnosis.examples import Found, with_texts
from sharpmax.models._diagnosis.heads import summarise
from sharpmax.models._diagnosis.inputs import Rounds, check_count, prepare, prepare_calls
from sharpmax.models._diagnosis.meter import LooksAheadError, Meter, Slots
from sharpmax.models._diagnosis.result import Diagnosis
from sharpmax.models._handle import Sharpened
from sharpmax.models._open import open_model
from sharpmax.models._torch_module.way import TorchModule, call
from sharpmax.models._way import CannotSharpenError, evaluation_mode

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS = 64  # measured per length
TAIL = 16  # tokens that count as the last ones


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
    examples: int = 0,
    on_progress: Callable[[float, int], None] | None = None,
) -> Diagnosis:
    """Measure every head of a model as its inputs grow, and judge it.

    At each length n, this measures the last rows of the prefix: the entropy H of the attention
    weights, H / log n, exp(H), the largest weight, the weights of the first token, of a learned
    sink and of the last tokens, and the spread of the logits with the critical length that follows
    from it. Only visible keys count. The slope of H against log n is 1 for a head that attends to
    all keys equally. `Diagnosis` explains the verdicts.

    A Hugging Face model reads prefixes of the same inputs. If it is causal, one pass per input
    serves every length, because the rows before position n are the last rows of the prefix of
    length n. Any other model reads the inputs that you make for each length, one pass each. Memory
    beyond the pass is a few rows of logits, and 28 bytes per measured row of a head. The model runs
    in evaluation mode, without its language-model head and without padding, and is unchanged
    afterwards, even after an error.

    An interrupt (Ctrl-C) returns what the finished inputs gave, or the finished layers or lengths
    of the first one, marked `interrupted`. It is raised if fewer than two lengths are finished.

    Args:
        model: a transformers model, or a module that contains one: a decoder or an encoder that
            reads tokens. For an encoder-decoder, pass `model.get_encoder()`. Or any other PyTorch
            module that `sharpmax.sharpen` can reach.
        texts_or_ids: for a model that is not of transformers, a function that makes the inputs of a
            length, or a mapping from lengths to inputs, or to lists of them; inputs are the
            argument of the model, a tuple or a mapping of its arguments, or a function that calls
            it. Otherwise a text, texts, tokens, or sequences of tokens, of any lengths. If a prefix
            of an input would be a different task, pass a mapping from sizes to inputs of that size,
            the same number for each; every input is then one pass, and used whole.
        lengths: numbers of tokens, at least two. Default: the longest that the model and the
            shortest input allow, and its halves down to 64. With a mapping: some or all sizes.
        tokenizer: converts texts to tokens, and the tokens of examples to text.
        sink: exclude sinks from entropy, n, largest weight and spread, and judge the rest. Sinks
            are the first token, and a learned sink (gpt-oss), which otherwise counts as a key.
        tail: number of tokens that count as the last ones.
        rows: number of measured rows per length, at most half of the length.
        unit: what the sizes of a mapping count, such as "elements".
        examples: number of rows per head whose keys with the largest weights are recorded, of the
            first input at its longest length. `sharpmax explore` shows them.
        on_progress: called after each layer with the number of finished inputs, including the
            fraction of the current one, and the number of inputs (with a mapping: per size).

    Returns:
        The diagnosis, with `summary()`, `heads`, `plot_slopes()`, `to_html(path)`, `save(path)`.

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
    way = open_model(model)
    inner, layers = way.model, way.layers
    check_count("tail", tail, 1)
    check_count("rows", rows, 1)
    check_count("examples", examples, 0)
    reads_tokens = way.of_transformers
    if reads_tokens:
        _check_model(inner, [layer.kind for layer in layers])
        way.check_one_rank()
        given, chosen = prepare(inner, texts_or_ids, lengths, tokenizer, unit)
    else:
        given, chosen = prepare_calls(texts_or_ids, lengths)
    share = way.share
    of_inputs = _digest(given) if reads_tokens else len(given)
    share.agree(model=way.identity, lengths=chosen, inputs=of_inputs, rows=rows, tail=tail)
    if share.divided and isinstance(way, TorchModule):
        # A rank without inputs has to know the layers as well.
        way.probe(given[0][chosen[0]])
    implementation = way.state(layers[0])[0] if layers else "its own"
    finished, interrupted = 0, False

    def report(done: float) -> None:
        if on_progress is not None and share.first:
            on_progress(share.of_all(done, len(given)), len(given))

    def report_layer() -> None:
        reachable = sum(layer.unreachable is None for layer in layers)
        part = len(meter.open) / (reachable * len(chosen))
        if part < 1:
            report(finished + part)

    meter = Meter(rows, tail, sink, report_layer, examples)
    # Kinds may be wrong about causality: the meter notices rows that look ahead.
    causal = any(layer.kind != "encoder" for layer in layers if layer.unreachable is None)
    at_once = causal and reads_tokens and not isinstance(texts_or_ids, Mapping)
    read = _reader(inner, whole=way.spread) if reads_tokens else partial(call, inner)
    passes = _Passes(read, meter, tokens=reads_tokens, at_once=at_once)
    with Sharpened(way, observe=meter.observe) as recording, evaluation_mode(inner):

        def measure_own() -> tuple[Slots, dict[int, Found]]:
            nonlocal finished
            for number in share.own(len(given)):
                passes.run(given[number])
                finished += 1
                report(finished)
            return meter.kept, meter.examples

        try:
            meter.take(share.gathered(measure_own))
            finished = len(given)
        except KeyboardInterrupt:
            if share.divided:
                raise
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
            f"{type(inner).__name__}: expected inputs to reach an attention layer, but they "
            "reached none; pass the submodel that reads them. "
            + "; ".join(f"{name}: {why}" for name, why in unmeasured.items())
        )
    measured = given[: max(finished, 1)]
    return Diagnosis(
        model_name=way.identity[0],
        model_type=way.identity[1],
        dtype=way.dtype,
        implementation=implementation,
        lengths=chosen,
        unit=unit,
        tokens=tuple(
            float(np.mean([len(each[n]) if reads_tokens else n for each in measured]))
            for n in chosen
        ),
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
        examples=with_texts(
            meter.examples, given[0][chosen[-1]].tolist() if reads_tokens else None, tokenizer
        ),
    )


def _digest(given: Rounds) -> tuple[int, int]:
    """Return the number of inputs and a hash of their tokens, the same in every process."""
    return len(given), hash(tuple(tuple(x.tolist()) for each in given for x in each.values()))


class _Passes:
    """Run a model over inputs of several lengths: prefixes in one pass if no row looks ahead."""

    def __init__(
        self, read: Callable[[Any], Any], meter: Meter, *, tokens: bool, at_once: bool
    ) -> None:
        self._read, self._meter, self._tokens, self._at_once = read, meter, tokens, at_once

    def run(self, given: Mapping[int, Any]) -> None:
        """Measure one input of every length."""
        try:
            if self._at_once:
                try:
                    self._pass(given[max(given)], list(given))
                except LooksAheadError:
                    self._at_once = False
                    self._meter.drop()
            for length, inputs in given.items() if not self._at_once else ():
                self._pass(inputs, [len(inputs)] if self._tokens else None, length)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not self._meter.kept:
                # Some of the first input is better than nothing.
                self._meter.keep_partial()
            self._meter.drop()
            raise
        self._meter.keep()

    def _pass(self, inputs: Any, prefixes: Sequence[int] | None, size: int | None = None) -> None:
        self._meter.begin(prefixes, size)
        with torch.no_grad():
            self._read(inputs)


def _reader(model: PreTrainedModel, *, whole: bool) -> Callable[[Tensor], Any]:
    """Return a function that reads tokens; `whole` if only the whole model gathers its weights."""
    # The language-model head would compute logits over the vocabulary for every token.
    body: Any = model if whole else model.base_model
    known = inspect.signature(body.forward).parameters
    device = _inspect.input_device(model)

    def read(tokens: Tensor) -> Any:
        tokens = tokens[None].to(device)
        # Every token counts, even one that looks like padding.
        options: dict[str, Any] = {"use_cache": False, "logits_to_keep": 1}
        options["attention_mask"] = torch.ones_like(tokens)
        return body(input_ids=tokens, **{n: x for n, x in options.items() if n in known})

    return read


def _check_model(model: PreTrainedModel, kinds: Sequence[str]) -> None:
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False) and "cross" in kinds:
        raise NotImplementedError(
            f"model: expected a decoder or an encoder, got the encoder-decoder {name}; pass its "
            "get_encoder()"
        )
    if model.main_input_name != "input_ids":
        raise NotImplementedError(
            f"model: expected a model that reads input_ids, {name} reads {model.main_input_name}; "
            "pass its submodel for text, if it has one"
        )
