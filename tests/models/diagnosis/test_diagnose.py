"""Diagnosis against the weights that a model shows, on heads made for a verdict, on bad input."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers as hf
from torch import Tensor

import sharpmax
from model_families import BY_NAME, DECODERS, TINY, VOCABULARY, indexed, result, shared
from sharpmax.models import CannotSharpenError, Diagnosis, HeadRecord
from sharpmax.models._attachment import ATTRIBUTE
from sharpmax.models._config import NAMES
from sharpmax.models._diagnosis.inputs import SHORTEST
from sharpmax.models._diagnosis.meter import Meter, rows_of

LENGTHS = (8, 21, 40)
ROWS = 6
TAIL = 3
FIELDS = ("mean", "deviation", "q10", "q50", "q90")


@pytest.fixture(autouse=True)
def _no_gradient() -> Iterator[None]:
    with torch.no_grad():
        yield


def tokens(length: int = 40, seed: int = 0, vocabulary: int = VOCABULARY) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, vocabulary, (length,), generator=generator)


def words(text: str, **_: Any) -> dict[str, list[int]]:
    """A tokenizer with one token per word."""
    return {"input_ids": [4 + sum(map(ord, word)) % 40 for word in text.split()]}


def assert_untouched(model: hf.PreTrainedModel) -> None:
    for module in model.modules():
        assert ATTRIBUTE not in module.__dict__
        name = getattr(getattr(module, "config", None), "_attn_implementation", None)
        assert name not in NAMES


def by_place(diagnosis: Diagnosis) -> dict[tuple[int, int, int], HeadRecord]:
    return {(r.layer, r.head, r.length): r for r in diagnosis.records}


def with_learned(row: Tensor, learned: bool) -> Tensor:
    """The weights of visible keys; what is missing from 1 is that of a learned sink."""
    row = row.double()
    return torch.cat([row[row > 0], (1.0 - row.sum())[None]]) if learned else row[row > 0]


def slow_rows(weights: Tensor, learned: bool, sink: bool) -> dict[str, list[float]]:
    """Figures of rows of weights [rows, keys]."""
    found: dict[str, list[float]] = {name: [] for name in ("entropy", "largest_weight", "n")}
    found |= {name: [] for name in ("first_mass", "sink_mass", "tail_mass")}
    for row in weights.double():
        some = with_learned(row, learned)
        if sink:
            some = row[1:][row[1:] > 0]
            some = some / some.sum()
        found["n"].append(len(some))
        found["entropy"].append(float(-(some * some.log()).sum()))
        found["largest_weight"].append(float(some.max()))
        found["first_mass"].append(float(row[0]))
        found["sink_mass"].append(float(1.0 - row.sum()) if learned else 0.0)
        found["tail_mass"].append(float(row[row > 0][-TAIL:].sum()))
    entropy, count = np.array(found["entropy"]), np.array(found["n"])
    found["effective_support"] = np.exp(entropy).tolist()
    found["normalised_entropy"] = (entropy / np.log(count)).tolist()
    return found


def slow(
    model: hf.PreTrainedModel, inputs: Sequence[Tensor], length: int, sink: bool
) -> list[list[dict[str, list[float]]]]:
    """By layer and head, from weights that eager attention shows, a pass a length."""
    shown = copy.deepcopy(model)
    shown.set_attn_implementation("eager")
    rows, learned = rows_of(length, ROWS), model.config.model_type == "gpt_oss"
    passes = [shown(each[None, :length], output_attentions=True).attentions for each in inputs]
    return [
        [
            slow_rows(torch.cat([seen[layer][0, head, -rows:] for seen in passes]), learned, sink)
            for head in range(passes[0][layer].shape[1])
        ]
        for layer in range(len(passes[0]))
    ]


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "bert", "mistral"])
def test_figures_are_those_of_the_weights_that_eager_attention_shows(name: str, sink: bool) -> None:
    model = shared(name)
    inputs = [tokens(seed=seed) for seed in range(2)]
    diagnosis = sharpmax.diagnose(model, inputs, LENGTHS, sink=sink, tail=TAIL, rows=ROWS)
    records = by_place(diagnosis)
    assert len(records) == len(diagnosis.records) == 2 * 4 * len(LENGTHS)
    for length in LENGTHS:
        for layer, heads in enumerate(slow(model, inputs, length, sink)):
            for head, expected in enumerate(heads):
                record = records[layer, head, length]
                assert record.measured == 2 * min(ROWS, length // 2)
                assert (record.skipped, record.non_finite) == (0, 0)
                assert record.visible == pytest.approx(np.mean(expected.pop("n")))
                for figure, rows in expected.items():
                    values = [np.mean(rows), np.std(rows), *np.quantile(rows, [0.1, 0.5, 0.9])]
                    got = getattr(record, figure)
                    assert got._fields == FIELDS
                    assert list(got) == pytest.approx(values, rel=1e-4, abs=1e-5), figure


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "bert"])
def test_the_spread_is_that_of_visible_logits(name: str) -> None:
    """Differences of logits are differences of the logarithms of weights."""
    model = copy.deepcopy(shared(name))
    model.set_attn_implementation("eager")
    diagnosis = sharpmax.diagnose(model, tokens(), LENGTHS, rows=ROWS)
    for length in LENGTHS:
        shown = model(tokens()[None, :length], output_attentions=True).attentions
        for (layer, head, _), record in by_place(diagnosis).items():
            if record.length != length:
                continue
            spreads = []
            for row in shown[layer][0, head, -rows_of(length, ROWS) :]:
                some = with_learned(row, name == "gpt_oss")
                spreads.append(float(some.max().log() - some.min().log()))
            assert record.spread is not None
            assert record.spread.mean == pytest.approx(np.mean(spreads), rel=1e-4)
            median = float(np.median(spreads))
            expected = sharpmax.theory.critical_length(median, 0.01)
            assert record.critical_length == pytest.approx(expected, rel=1e-2, abs=1)


@pytest.mark.parametrize("family", DECODERS, ids=str)
def test_prefixes_of_one_pass_are_separate_passes(
    family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shared(family.name)
    at_once = sharpmax.diagnose(model, tokens(), LENGTHS, rows=ROWS)
    passes = []
    begin = Meter.begin

    def one_at_a_time(self: Meter, prefixes: Sequence[int], size: int | None) -> None:
        passes.append(tuple(prefixes))
        begin(self, prefixes, size)

    monkeypatch.setattr(Meter, "begin", one_at_a_time)
    for length in LENGTHS:
        # The shorter one has to be there and is not looked at.
        apart = by_place(sharpmax.diagnose(model, tokens(length), (2, length), rows=ROWS))
        for place, record in by_place(at_once).items():
            if record.length == length:
                mine, other = record.flat(), apart[place].flat()
                # A few more keys can move an integer by one.
                critical = mine.pop("critical_length"), other.pop("critical_length")
                assert critical[0] == pytest.approx(critical[1], rel=1e-3, abs=1)
                for name, value in mine.items():
                    if isinstance(value, float):
                        assert value == pytest.approx(other[name], rel=1e-3, abs=1e-4), name
                    else:
                        assert value == other[name]
    assert passes == [(2, length) for length in LENGTHS]


def test_an_encoder_takes_a_pass_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[tuple[int, ...]] = []
    monkeypatch.setattr(Meter, "begin", lambda _, prefixes, *_size: passes.append(tuple(prefixes)))
    monkeypatch.setattr(Meter, "observe", lambda *_: None)
    with pytest.raises(CannotSharpenError, match="expected inputs to reach an attention layer"):
        sharpmax.diagnose(shared("bert"), tokens(), LENGTHS)
    assert passes == [(length,) for length in LENGTHS]


def test_a_model_that_looks_ahead_unannounced_is_found_out() -> None:
    model = copy.deepcopy(shared("bert"))
    for module in model.modules():
        if hasattr(module, "is_causal"):
            # It says that it is causal, and its masks say otherwise.
            module.is_causal = True
    model.set_attn_implementation("eager")
    got = by_place(sharpmax.diagnose(model, tokens(), LENGTHS))
    expected = by_place(sharpmax.diagnose(shared("bert"), tokens(), LENGTHS))
    for place, record in got.items():
        assert record.entropy == pytest.approx(expected[place].entropy, rel=1e-3)
        assert record.visible == record.length


def made_for_verdicts() -> hf.PreTrainedModel:
    """In the first layer: a head that sees all alike, one that sees one, one the first token."""
    model = BY_NAME["llama"].build(
        num_key_value_heads=4, vocab_size=256, max_position_embeddings=256, attention_bias=True
    )
    attention, width = model.model.layers[0].self_attn, 8
    query, key = attention.q_proj, attention.k_proj
    table = model.model.embed_tokens.weight.data
    table[:, 0] = 0.0
    table[2, 0] = 100.0
    for projection in (query, key):
        projection.bias.data.zero_()
    query.weight.data[:width] = 0.0
    query.weight.data[width : 2 * width] *= 40.0
    key.weight.data[width : 2 * width] = query.weight.data[width : 2 * width]
    # The slowest of the rotations hardly turns within these lengths.
    sink = slice(2 * width, 3 * width)
    query.weight.data[sink] = 0.0
    key.weight.data[sink] = 0.0
    query.bias.data[2 * width + 3] = 20.0
    key.weight.data[2 * width + 3, 0] = 1.0
    return model


def test_heads_that_are_made_for_a_verdict() -> None:
    model = made_for_verdicts()
    permutation = torch.randperm(250, generator=torch.Generator().manual_seed(1)) + 4
    ids = torch.cat([torch.tensor([2]), permutation[:127]])
    diagnosis = sharpmax.diagnose(model, ids, [32, 64, 128])
    uniform, sharp, sink, _ = diagnosis.heads[:4]
    assert uniform.verdict == "dispersing"
    assert uniform.slope == pytest.approx(1.0, abs=1e-5)
    assert sharp.verdict == "flat"
    assert sharp.slope == pytest.approx(0.0, abs=0.1)
    assert sink.verdict == "sink"
    records = by_place(diagnosis)
    last = records[0, 0, 128]
    assert last.normalised_entropy is not None
    assert last.spread is not None
    assert last.normalised_entropy.mean == pytest.approx(1.0, abs=1e-5)
    assert last.spread.mean == pytest.approx(0.0, abs=1e-5)
    assert last.critical_length == 101
    largest, first = records[0, 1, 128].largest_weight, records[0, 2, 128].first_mass
    assert largest is not None
    assert first is not None
    assert largest.mean > 0.9
    assert first.mean > 0.99

    # Without the sink, what remains of that head is even.
    apart = sharpmax.diagnose(model, ids, [32, 64, 128], sink=True)
    assert apart.heads[2].verdict == "dispersing"
    assert apart.heads[2].slope == pytest.approx(1.0, abs=1e-2)
    table = diagnosis.summary().splitlines()[7:]
    assert table[0].split()[3] == "dispersing"
    assert table[-1].split()[3] == "sink"


def test_local_layers_come_apart() -> None:
    diagnosis = sharpmax.diagnose(shared("gemma2"), tokens(), LENGTHS)
    kinds = {(head.kind, head.verdict == "local") for head in diagnosis.heads}
    assert kinds == {("sliding", True), ("global", False)}
    assert all(r.visible == 4 for r in diagnosis.records if r.kind == "sliding" and r.length > 8)
    text = diagnosis.summary()
    assert text.index("\nheads at 40") < text.index("\nlocal heads at 40")
    # Up to its window, a sliding layer is like any other.
    wide = BY_NAME["gemma2"].build(sliding_window=64)
    assert "local" not in {head.verdict for head in sharpmax.diagnose(wide, tokens()).heads}


def test_a_learned_sink_has_its_mass() -> None:
    model = BY_NAME["gpt_oss"].build()
    for layer in model.model.layers:
        layer.self_attn.sinks.data.fill_(30.0)
    heads = sharpmax.diagnose(model, tokens(), LENGTHS).heads
    assert {head.verdict for head in heads} == {"local", "sink"}
    # A row whose only key is the first token has nothing left without it.
    few = sharpmax.diagnose(model, tokens(), [2, 40], sink=True, rows=40)
    assert few.rows_skipped == 0
    assert {r.measured for r in few.records if r.length == 2} == {1}


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "bert", "gpt2", "roberta"])
def test_the_model_is_as_it_was(name: str) -> None:
    model, inputs = BY_NAME[name].build(), BY_NAME[name].inputs()
    before, configuration = result(model, **inputs), copy.deepcopy(model.config.to_dict())
    next(iter(model.modules())).training = True
    modes = [module.training for module in model.modules()]
    sharpmax.diagnose(model, tokens(), LENGTHS)
    assert [module.training for module in model.modules()] == modes
    model.eval()
    assert_untouched(model)
    assert model.config.to_dict() == configuration
    assert torch.equal(result(model, **inputs), before)


def test_passes_are_unchanged_while_it_measures() -> None:
    model, outputs = shared("llama"), []
    hook = model.model.norm.register_forward_hook(lambda *call: outputs.append(call[2]))
    sharpmax.diagnose(model, tokens(), LENGTHS)
    model(tokens()[None])
    hook.remove()
    assert torch.equal(outputs[0], outputs[1])


def test_dropout_and_gradients_stay_out_of_it() -> None:
    model = BY_NAME["bert"].build(attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.5)
    model.train()
    with torch.enable_grad():
        first = sharpmax.diagnose(model, tokens(), LENGTHS)
    assert first == sharpmax.diagnose(model.eval(), tokens(), LENGTHS)


def test_half_precision_is_measured_in_single() -> None:
    model = BY_NAME["llama"].build().to(torch.bfloat16)
    diagnosis = sharpmax.diagnose(model, tokens(), LENGTHS)
    assert diagnosis.dtype == "bfloat16"
    assert diagnosis.rows_non_finite == 0
    exact = sharpmax.diagnose(shared("llama"), tokens(), LENGTHS)
    for got, expected in zip(diagnosis.records, exact.records, strict=True):
        assert got.entropy == pytest.approx(expected.entropy, abs=0.2)


def test_rows_that_are_not_finite_are_counted_and_left_out() -> None:
    model = BY_NAME["llama"].build()
    model.model.layers[1].self_attn.q_proj.weight.data[:8] = torch.nan
    diagnosis = sharpmax.diagnose(model, tokens(), LENGTHS)
    bad, good = (r for r in diagnosis.records if r.layer == 1 and r.length == 40 and r.head < 2)
    assert (bad.measured, bad.non_finite, bad.entropy, bad.critical_length) == (0, 20, None, None)
    assert (good.measured, good.non_finite) == (20, 0)
    assert diagnosis.rows_non_finite == sum(rows_of(length, 64) for length in LENGTHS)
    broken = diagnosis.heads[4]
    assert (broken.slope, broken.verdict) == (None, None)
    assert "1 unknown" in diagnosis.summary()


def test_facts() -> None:
    diagnosis = sharpmax.diagnose(shared("llama"), tokens(), LENGTHS, tail=TAIL, rows=ROWS)
    assert (diagnosis.model_type, diagnosis.dtype) == ("llama", "float32")
    assert diagnosis.implementation == "sdpa"
    assert (diagnosis.lengths, diagnosis.tail, diagnosis.rows) == (LENGTHS, TAIL, ROWS)
    assert (diagnosis.inputs, diagnosis.interrupted) == (1, False)
    assert diagnosis.rows_measured == 2 * 4 * (4 + 6 + 6)
    assert {"sharpmax", "torch", "transformers"} <= diagnosis.versions.keys()
    assert not diagnosis.unmeasured


def test_inputs_of_every_form_are_the_same() -> None:
    model, text = shared("llama"), " ".join(f"word{i}" for i in range(40))
    ids = words(text)["input_ids"]
    expected = sharpmax.diagnose(model, ids, LENGTHS)
    assert sharpmax.diagnose(model, text, LENGTHS, words) == expected
    assert sharpmax.diagnose(model, [text], LENGTHS, words) == expected
    assert sharpmax.diagnose(model, [ids], [40, 8, 21, 8]) == expected
    assert sharpmax.diagnose(model, torch.tensor([ids]), LENGTHS) == expected
    assert sharpmax.diagnose(model, np.array(ids), LENGTHS) == expected
    assert sharpmax.diagnose(torch.nn.Sequential(model), ids, LENGTHS) == expected


def test_a_tokenizer_of_transformers(recwarn: pytest.WarningsRecorder) -> None:
    vocabulary = {f"word{i}": i for i in range(40)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="word0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=16)
    diagnosis = sharpmax.diagnose(shared("llama"), " ".join(vocabulary), LENGTHS, tokenizer)
    assert diagnosis == sharpmax.diagnose(shared("llama"), [*range(40)], LENGTHS)
    assert not recwarn


def test_lengths_of_its_own() -> None:
    model = BY_NAME["llama"].build(max_position_embeddings=300)
    found = sharpmax.diagnose(model, [tokens(400), tokens(301)]).lengths
    assert found == (75, 150, 300)
    assert found[0] >= SHORTEST
    assert sharpmax.diagnose(model, tokens(50)).lengths == (25, 50)


def test_an_interrupt_keeps_what_was_measured() -> None:
    seen = []

    def stop(done: float, total: int) -> None:
        seen.append((done, total))
        if done == 2:
            raise KeyboardInterrupt

    model, inputs = shared("llama"), [tokens(seed=seed) for seed in range(4)]
    partial = sharpmax.diagnose(model, inputs, LENGTHS, on_progress=stop)
    assert seen == [(0.5, 4), (1, 4), (1.5, 4), (2, 4)]
    assert (partial.inputs, partial.interrupted) == (2, True)
    assert "2 inputs (interrupted)" in partial.summary()
    whole = sharpmax.diagnose(model, inputs[:2], LENGTHS)
    assert partial.records == whole.records
    assert_untouched(model)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_an_interrupt_within_an_input_leaves_that_input_out(name: str) -> None:
    model, inputs = shared(name), [tokens(seed=seed) for seed in range(3)]
    per_input = 1 if name == "llama" else len(LENGTHS)

    def interrupt_after(passes: int) -> Any:
        calls = []

        def hook(*_: Any) -> None:
            calls.append(None)
            if len(calls) == passes:
                raise KeyboardInterrupt

        return hook

    layer = model.model.layers[1].mlp if name == "llama" else model.encoder.layer[1].output
    handle = layer.register_forward_hook(interrupt_after(per_input + 1))
    try:
        partial = sharpmax.diagnose(model, inputs, LENGTHS)
    finally:
        handle.remove()
    assert (partial.inputs, partial.interrupted) == (1, True)
    assert partial.records == sharpmax.diagnose(model, inputs[:1], LENGTHS).records

    assert_untouched(model)


def interrupted_at(model: Any, inputs: Any, share: float) -> Diagnosis:
    """A diagnosis that is interrupted when a share of the first input is measured."""

    def stop(done: float, _: int) -> None:
        if done >= share:
            raise KeyboardInterrupt

    return sharpmax.diagnose(model, inputs, on_progress=stop)


def test_an_interrupt_in_the_first_input_keeps_what_is_whole_of_it() -> None:
    llama = shared("llama")
    whole = sharpmax.diagnose(llama, tokens(200))
    layers = interrupted_at(llama, [tokens(200), tokens(200, 1)], 0.5)
    assert (layers.inputs, layers.interrupted, layers.lengths) == (0, True, whole.lengths)
    assert layers.records == tuple(record for record in whole.records if record.layer == 0)
    assert layers.unmeasured == {"model.layers.1.self_attn": "interrupted before this layer"}
    assert "4 heads, an unfinished input (interrupted)" in layers.summary()

    bert, sizes = shared("bert"), {length: tokens(length)[None] for length in LENGTHS}
    lengths = interrupted_at(bert, sizes, 5 / 6)
    assert (lengths.inputs, lengths.interrupted) == (0, True)
    assert (lengths.lengths, lengths.tokens) == (LENGTHS[:2], (8.0, 21.0))
    assert not lengths.unmeasured
    assert lengths.records == sharpmax.diagnose(bert, tokens(21), LENGTHS[:2]).records
    for model in (llama, bert):
        assert_untouched(model)
    # One length says nothing about growing, and neither does no layer.
    with pytest.raises(KeyboardInterrupt):
        interrupted_at(bert, sizes, 0.5)
    assert_untouched(bert)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("some text", LENGTHS), ValueError, "tokenizer: expected one, because texts_or_ids.0. is"),
        (("", LENGTHS, words), ValueError, r"texts_or_ids\[0\]: expected a text that is not empty"),
        ((["a b", " "], [2, 3], words), ValueError, r"texts_or_ids\[1\]: expected a text"),
        (([], LENGTHS), ValueError, "expected at least one input, got none"),
        (([[4, 5], []], [2, 3]), ValueError, r"\[1\]: expected at least one token, got none"),
        ((7, LENGTHS), TypeError, "expected a text, texts, tokens or sequences of tokens, got int"),
        (([0.5, 1.5], LENGTHS), TypeError, r"texts_or_ids\[0\]: expected integers"),
        (([object()], LENGTHS), TypeError, r"texts_or_ids\[0\]: expected a text or tokens"),
        (([[4, 48]], [2, 3]), ValueError, "expected tokens from 0 to 47, got 48"),
        (([[4, -1]], [2, 3]), ValueError, "expected tokens from 0 to 47, got -1"),
        (("a b c", [2, 4], words), ValueError, r"\[0\]: expected at least 4 tokens.* got 3; use"),
        ((tokens(80), [8, 65]), ValueError, "positions of LlamaForCausalLM, got 65 tokens; use"),
        ((tokens(), [8]), ValueError, "lengths: expected at least two"),
        ((tokens(), [8, 8]), ValueError, "lengths: expected at least two"),
        ((tokens(), [1, 8]), ValueError, "lengths: expected at least 2, got 1"),
        ((tokens(), [8, 9.5]), TypeError, "lengths: expected an integer, got 9.5"),
        ((tokens(), 8), TypeError, "lengths: expected integers, got 8"),
        (([4, 5, 6],), ValueError, "expected at least 4 tokens, got 3; use longer inputs"),
    ],
)
def test_bad_input(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    model = shared("llama")
    with pytest.raises(error, match=message):
        sharpmax.diagnose(model, *arguments)
    assert_untouched(model)


def test_bad_options() -> None:
    for name in ("tail", "rows"):
        with pytest.raises(ValueError, match=f"{name}: expected at least 1, got 0"):
            sharpmax.diagnose(shared("llama"), tokens(), LENGTHS, **{name: 0})
        with pytest.raises(TypeError, match=f"{name}: expected an integer, got True"):
            sharpmax.diagnose(shared("llama"), tokens(), LENGTHS, **{name: True})


def test_positions_that_begin_behind_padding() -> None:
    with pytest.raises(ValueError, match="at most the 62 positions of RobertaModel, got 63"):
        sharpmax.diagnose(shared("roberta"), tokens(63), [8, 63])
    assert sharpmax.diagnose(shared("roberta"), tokens(63)).lengths[-1] == 62


def test_models_that_cannot_be_measured() -> None:
    with pytest.raises(CannotSharpenError, match="Linear: expected a model with attention"):
        sharpmax.diagnose(torch.nn.Linear(2, 2), tokens(), LENGTHS)
    mamba = hf.MambaConfig(vocab_size=48, hidden_size=8, num_hidden_layers=1, state_size=2)
    with pytest.raises(
        CannotSharpenError, match=r"expected a model with attention layers, found none"
    ):
        sharpmax.diagnose(hf.MambaModel(mamba), tokens(), LENGTHS)
    with pytest.raises(CannotSharpenError, match="restricts its attention to chosen keys"):
        sharpmax.diagnose(indexed(), tokens(), LENGTHS)
    with pytest.raises(
        NotImplementedError, match=r"got the encoder-decoder .*; pass its get_encoder"
    ):
        sharpmax.diagnose(shared("t5"), tokens(), LENGTHS)
    with pytest.raises(NotImplementedError, match="ViTModel reads pixel_values"):
        sharpmax.diagnose(shared("vit"), tokens(), LENGTHS)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**TINY))
    with (
        sharpmax.sharpen(model, sharpmax.policies.Paper()),
        pytest.raises(CannotSharpenError, match="is already sharpened"),
    ):
        sharpmax.diagnose(model, tokens(vocabulary=32), LENGTHS)


def test_the_encoder_of_a_pair() -> None:
    diagnosis = sharpmax.diagnose(shared("t5").get_encoder(), tokens(), LENGTHS)
    assert {record.kind for record in diagnosis.records} == {"encoder"}
    assert {record.visible for record in diagnosis.records} == set(LENGTHS)


def test_nothing_stays_after_an_error_in_the_model() -> None:
    model = BY_NAME["llama"].build()

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    model.model.layers[1].mlp.register_forward_hook(fail)
    model.train()
    with pytest.raises(RuntimeError, match="out of memory"):
        sharpmax.diagnose(model, tokens(), LENGTHS)
    assert_untouched(model)
    assert all(module.training for module in model.modules())


def test_diagnose_stands_at_the_front() -> None:
    assert sharpmax.diagnose is sharpmax.models.diagnose
    assert "diagnose" in dir(sharpmax)


def sized(counts: dict[int, int], inputs: int = 2) -> dict[int, list[Tensor]]:
    """Inputs of some sizes, each of which has so many tokens."""
    return {
        size: [tokens(length + seed, seed=size + seed) for seed in range(inputs)]
        for size, length in counts.items()
    }


@pytest.mark.parametrize("name", ["llama", "gemma2", "bert"])
def test_inputs_of_sizes_are_passes_of_their_own(name: str) -> None:
    model, given = shared(name), sized({3: 10, 5: 20, 9: 36})
    diagnosis = sharpmax.diagnose(model, given, unit="elements", rows=ROWS)
    assert (diagnosis.lengths, diagnosis.unit) == ((3, 5, 9), "elements")
    assert diagnosis.tokens == (10.5, 20.5, 36.5)
    assert diagnosis.inputs == 2
    records = by_place(diagnosis)
    for size, several in given.items():
        rows: list[float] = []
        for each in several:
            alone = sharpmax.diagnose(model, each, [2, len(each)], rows=ROWS)
            entropy = by_place(alone)[1, 0, len(each)].entropy
            assert entropy is not None
            rows.append(entropy.mean)
        got = records[1, 0, size]
        assert got.entropy is not None
        # As many rows of each, so that the mean is the mean of means.
        assert got.measured == sum(rows_of(len(each), ROWS) for each in several)
        assert got.entropy.mean == pytest.approx(np.mean(rows), rel=1e-3)
    # The slope is against the keys that rows see, not against sizes.
    head = diagnosis.heads[4]
    points = [records[1, 0, size] for size in given]
    expected = np.polyfit(
        [r.log_visible for r in points], [r.entropy.mean for r in points if r.entropy], 1
    )[0]
    assert head.slope == pytest.approx(expected)
    assert "3, 5, 9 elements (10 to 36 tokens)" in diagnosis.summary()
    assert diagnosis.rows_skipped == 0


def test_some_of_the_sizes() -> None:
    given = sized({3: 10, 5: 20, 9: 36})
    assert sharpmax.diagnose(shared("llama"), given, [9, 3]).lengths == (3, 9)
    with pytest.raises(ValueError, match=r"lengths: expected some of 3, 5, 9, .* got 4"):
        sharpmax.diagnose(shared("llama"), given, [3, 4])


def test_an_interrupt_leaves_whole_rounds() -> None:
    def stop(done: int, total: int) -> None:
        assert total == 3
        if done == 2:
            raise KeyboardInterrupt

    given = sized({3: 10, 9: 36}, inputs=3)
    partial = sharpmax.diagnose(shared("llama"), given, on_progress=stop)
    assert (partial.inputs, partial.interrupted, partial.tokens) == (2, True, (10.5, 36.5))
    fewer = {size: several[:2] for size, several in given.items()}
    assert partial.records == sharpmax.diagnose(shared("llama"), fewer).records


def test_bad_sizes() -> None:
    model = shared("llama")
    with pytest.raises(ValueError, match="texts_or_ids: expected at least two"):
        sharpmax.diagnose(model, sized({3: 10}))
    with pytest.raises(TypeError, match="texts_or_ids: expected an integer, got 'few'"):
        sharpmax.diagnose(model, {"few": [tokens()], "many": [tokens()]})
    uneven = {3: [tokens()], 5: [tokens(), tokens()]}
    with pytest.raises(
        ValueError, match=r"the same number of inputs for each size, got \{3: 1, 5: 2\}"
    ):
        sharpmax.diagnose(model, uneven)
    with pytest.raises(ValueError, match=r"\[9\]: expected at most the 64 positions .* got 70 tok"):
        sharpmax.diagnose(model, sized({3: 10, 9: 70}, inputs=1))
    with pytest.raises(ValueError, match="unit: expected 'tokens' unless inputs are given by size"):
        sharpmax.diagnose(model, tokens(), LENGTHS, unit="elements")
