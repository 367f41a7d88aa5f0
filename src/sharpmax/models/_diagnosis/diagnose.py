"""Measuring how the attention of a Hugging Face model spreads as its inputs grow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sharpmax._files import versions
from sharpmax.models._diagnosis.heads import of_layer
from sharpmax.models._diagnosis.meter import LooksAheadError, Meter
from sharpmax.models._diagnosis.result import Diagnosis
from sharpmax.models._handle import tensor_parallel
from sharpmax.models._inspect import Layer, attention_layers
from sharpmax.models._plan import CannotSharpenError
from sharpmax.models._record import record
from sharpmax.models._sharpen import check_reachable, inner_model

ROWS = 64
"""How many of the last rows of each length are measured, if nothing else is asked for."""

TAIL = 16
"""How many tokens are the last ones, if nothing else is asked for."""

SHORTEST = 64
"""Where no lengths are given, the longest is halved down to this."""


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

    At each length n the last rows of the prefix are measured: the entropy H of what enters the
    softmax, H / log n, exp(H), the largest weight, the weight of the first token, of a learned
    sink and of the last tokens, and the spread of the logits with the critical length that follows
    from it. Only visible keys count. Over the lengths, the slope of H against log n is 1 for a
    head that attends to all alike. `Diagnosis` says how the verdict follows.

    In a causal model the rows before position n are the last rows of the prefix of length n, so
    that one pass an input serves every length; other models take one pass a length. No weights are
    kept: beyond the pass itself, memory is for some rows of logits at a time and 28 bytes for each
    measured row of a head. The model is as it was before, also after an error; it is run in
    evaluation mode, without its head and without padding.

    An interrupt (Ctrl-C) ends the measurement and returns what the finished inputs gave, marked
    `interrupted`. In the first input it returns what is whole of that: the layers that were
    reached, or, where each length has a pass, the lengths. Where that is nothing, or one length,
    it is raised.

    Args:
        model: of transformers, or a module around one. Decoders and encoders, which read tokens;
            of a model with both, diagnose `model.get_encoder()`.
        texts_or_ids: a text, texts, tokens, or several sequences of tokens, of any lengths. Texts
            are tokenised as the tokenizer does it by default, and cut. Where the end of an input
            matters, so that a prefix of it would be something else: a mapping from sizes to inputs
            of that size, as many for each; every input is then a pass of its own, and whole.
        lengths: numbers of tokens, two at least. By default the longest that the model and the
            shortest input allow, and its halves down to 64. With a mapping, some of its sizes; by
            default all.
        tokenizer: what makes tokens of texts.
        sink: leave sinks out of entropy, n, largest weight and spread, and judge what remains. A
            sink is the first token, and a learned one as gpt-oss has it, which otherwise is one
            more key.
        tail: how many tokens are the last ones.
        rows: how many of the last rows of each length are measured, at most half of them.
        unit: what the sizes of a mapping count, such as "elements".
        on_progress: called after each layer with the number of finished inputs, with the share of
            the one at hand, and of all; with a mapping, an input is one of each size.

    Returns:
        The diagnosis: `summary()`, `records`, `heads`, `to_pandas()`, `to_json(path)`, and its
        pictures and report: `plot_entropy()`, `plot_slopes()`, `to_html(path)`.

    Raises:
        CannotSharpenError: there is no attention that can be reached, or the model is sharpened.
        NotImplementedError: the model reads something else than one sequence of tokens, or its
            heads are spread over ranks.
        TypeError, ValueError: naming the argument, what was expected and what came.

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
    for name, number in (("tail", tail), ("rows", rows)):
        _check_count(name, number, 1)
    given: list[Tensor] | list[dict[int, Tensor]]
    if isinstance(texts_or_ids, Mapping):
        chosen = _sizes(texts_or_ids, lengths)
        given = _rounds(model, texts_or_ids, chosen, tokenizer)
    else:
        if unit != "tokens":
            raise ValueError(f"unit: expected 'tokens', unless sizes are given, got {unit!r}")
        given = _sequences(model, texts_or_ids, tokenizer)
        chosen = _lengths(model, given, lengths)
    implementation = str(getattr(model.config, "_attn_implementation", ""))

    finished, interrupted = 0, False
    reached = [layer for layer in layers if layer.closed is None]

    def say_layer() -> None:
        share = meter.unfinished / (len(reached) * len(chosen))
        if on_progress is not None and share < 1:
            on_progress(finished + share, len(given))

    meter = Meter(rows, tail, sink, say_layer)
    # Where a row sees what lies ahead it is one of the whole, not of a prefix: the meter notices.
    passes = _Passes(model, meter, any(layer.kind != "encoder" for layer in reached))
    with record(model, meter) as sharpened, _evaluating(model):
        notes = sharpened.notes
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
            of_this, judged = of_layer(layer, slots, sink)
            records += of_this
            heads += judged
        else:
            why = "interrupted before it" if interrupted else "the tokens did not pass through it"
            unmeasured[layer.name] = layer.closed or why
    if not heads:
        raise CannotSharpenError(
            f"{type(model).__name__}: the tokens passed through no attention layer; give the part "
            "of the model that reads them"
        )
    return Diagnosis(
        model_name=getattr(model.config, "_name_or_path", "") or "",
        model_type=model.config.model_type,
        dtype=str(model.dtype).removeprefix("torch."),
        implementation=implementation,
        lengths=chosen,
        unit=unit,
        tokens=_mean_tokens(given[: max(finished, 1)], chosen),
        rows=rows,
        tail=tail,
        sink=sink,
        inputs=finished,
        interrupted=interrupted,
        records=tuple(records),
        heads=tuple(heads),
        unmeasured=unmeasured,
        notes=notes,
        versions=versions(("numpy", "torch", "transformers")),
    )


class _Passes:
    """Runs a model over the prefixes of tokens: at once where it looks at no later ones."""

    def __init__(self, model: PreTrainedModel, meter: Meter, at_once: bool) -> None:
        # The head would give numbers for each token of the vocabulary, at each position.
        self._body: Any = model.base_model
        self._meter = meter
        self._at_once = at_once
        device = _embedding(model).device
        self._device = torch.device("cpu") if device.type == "meta" else device
        known = inspect.signature(self._body.forward).parameters
        self._options = {"use_cache": False} if "use_cache" in known else {}
        self._takes_mask = "attention_mask" in known

    def run(self, given: Tensor | Mapping[int, Tensor], lengths: Sequence[int]) -> None:
        """Measure an input at every length, or one input of every size."""
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
                # The first input: a part of it is better than nothing.
                self._meter.keep_part()
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
            # All of them, also those that look like padding.
            options["attention_mask"] = torch.ones_like(tokens)
        with torch.no_grad():
            self._body(input_ids=tokens, **options)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within a block; afterwards every part is in its own mode again."""
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _check_model(model: PreTrainedModel, layers: list[Layer]) -> None:
    check_reachable(model, layers)
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False) and any(
        layer.kind == "cross" for layer in layers
    ):
        raise NotImplementedError(
            f"model: {name} reads two sequences; diagnose its get_encoder() instead"
        )
    if model.main_input_name != "input_ids":
        raise NotImplementedError(
            f"model: expected one that reads input_ids, {name} reads {model.main_input_name}; give "
            "its part for text, if it has one"
        )
    if tensor_parallel(model)[0] > 1:
        raise NotImplementedError(f"model: the heads of {name} are spread over ranks")


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name}: expected at least {least}, got {value}")


def _sequences(model: PreTrainedModel, given: Any, tokenizer: Any) -> list[Tensor]:
    """Tokens of each input, checked against the vocabulary."""
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
    vocabulary = _embedding(model).shape[0]
    return [_tokens(index, each, tokenizer, vocabulary) for index, each in enumerate(given)]


def _tokens(index: int, given: Any, tokenizer: Any, vocabulary: int) -> Tensor:
    where = f"texts_or_ids[{index}]"
    if isinstance(given, str):
        if tokenizer is None:
            raise ValueError(f"tokenizer: expected one, since {where} is a text, got None")
        if not given.strip():
            raise ValueError(f"{where}: expected a text with something in it, got {given!r}")
        # What is longer than the model allows is cut below; its warning would be beside the point.
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
    """The sizes in their order, of those that inputs were given for."""
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
    """Tokens of one input of each size, as often as there are inputs, checked."""
    sequences = {size: _sequences(model, given[size], tokenizer) for size in sizes}
    counts = {size: len(several) for size, several in sequences.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"texts_or_ids: expected as many inputs for each size, got {counts}")
    limit = positions(model)
    for size, several in sequences.items():
        longest = max(map(len, several))
        if limit is not None and longest > limit:
            raise ValueError(
                f"texts_or_ids[{size}]: expected at most the {limit} positions of "
                f"{type(model).__name__}, got {longest} tokens; give smaller ones"
            )
    return [dict(zip(sizes, row, strict=True)) for row in zip(*sequences.values(), strict=True)]


def _mean_tokens(
    given: Sequence[Tensor] | Sequence[Mapping[int, Tensor]], lengths: Sequence[int]
) -> tuple[float, ...]:
    """The mean number of tokens at each length or size."""
    by_size = [each for each in given if isinstance(each, Mapping)]
    return tuple(
        float(np.mean([len(each[length]) for each in by_size])) if by_size else float(length)
        for length in lengths
    )


def _lengths(
    model: PreTrainedModel, sequences: list[Tensor], asked: Sequence[int] | None
) -> tuple[int, ...]:
    """The lengths in their order, which all inputs and the model's positions allow."""
    limit = positions(model)
    shortest = min(len(tokens) for tokens in sequences)
    if asked is None:
        longest = shortest if limit is None else min(shortest, limit)
        if longest < 4:
            raise ValueError(
                f"texts_or_ids: expected at least 4 tokens, got {longest}; give longer inputs"
            )
        found = [longest, longest // 2]
        while found[-1] // 2 >= SHORTEST:
            found.append(found[-1] // 2)
        return tuple(reversed(found))
    chosen = _ordered("lengths", asked, 2)
    if limit is not None and chosen[-1] > limit:
        raise ValueError(
            f"lengths: expected at most the {limit} positions of {type(model).__name__}, got "
            f"{chosen[-1]}; leave the longer ones out"
        )
    for index, tokens in enumerate(sequences):
        if len(tokens) < chosen[-1]:
            raise ValueError(
                f"texts_or_ids[{index}]: expected at least {chosen[-1]} tokens, the longest of the "
                f"lengths, got {len(tokens)}; give longer inputs or shorter lengths"
            )
    return chosen


def _ordered(name: str, asked: Iterable[int], least: int) -> tuple[int, ...]:
    """Different integers, two at least, in their order."""
    try:
        asked = list(asked)
    except TypeError:
        raise TypeError(f"{name}: expected integers, got {asked!r}") from None
    for length in asked:
        _check_count(name, length, least)
    chosen = tuple(sorted(set(asked)))
    if len(chosen) < 2:
        raise ValueError(f"{name}: expected two at least, to compare them, got {list(chosen)}")
    return chosen


def _embedding(model: PreTrainedModel) -> Tensor:
    """The table of tokens."""
    table: Any = model.get_input_embeddings()
    weight: Tensor = table.weight
    return weight


def positions(model: PreTrainedModel) -> int | None:
    """How many positions the model has, where its configuration says so."""
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:
        return None
    for name, part in model.named_modules():
        if name.endswith("position_embeddings") and getattr(part, "padding_idx", None) is not None:
            # Some count positions from behind that of padding.
            return limit - int(part.padding_idx) - 1
    return limit
