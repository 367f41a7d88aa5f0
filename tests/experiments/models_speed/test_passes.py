from __future__ import annotations

import torch

from experiments.models_speed.passes import decoding, passes, small_model, twin
from sharpmax import sharpen
from sharpmax.policies import Exponential

TOKENS = torch.arange(96)


def test_the_same_small_model_each_time() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, second = small_model(96), small_model(96)
    assert torch.equal(torch.get_rng_state(), state)
    for mine, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_twins_share_weights_and_nothing_else() -> None:
    model = small_model(96)
    other = twin(model)
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        assert mine is its
    with torch.no_grad(), sharpen(other, Exponential(0.5)):
        sharpened, plain = other(TOKENS[None]).logits, model(TOKENS[None]).logits
    assert not torch.allclose(sharpened, plain)
    assert model.config._attn_implementation == "sdpa"


def test_each_pass() -> None:
    model = small_model(96)
    model.set_attn_implementation("eager")
    calls = passes(model, TOKENS)
    plain, shown = calls["forward"](), calls["output_attentions"]()
    assert plain.attentions is None
    assert [tuple(weights.shape) for weights in shown.attentions] == [(1, 4, 96, 96)] * 2
    assert torch.equal(plain.last_hidden_state, shown.last_hidden_state)
    assert calls["diagnose"]().lengths == (48, 96)


def test_decoding_begins_at_the_same_place_each_time() -> None:
    model = small_model(100)
    lengths = []
    decode = decoding(model, TOKENS, 4)
    hook = model.model.layers[0].self_attn.register_forward_hook(
        lambda *call: lengths.append(call[2][0].shape[1]),
    )
    positions: list[int] = []

    def look(_: object, __: object, options: dict[str, torch.Tensor]) -> None:
        positions.append(int(options["position_ids"]))

    other = model.model.layers[0].register_forward_pre_hook(look, with_kwargs=True)
    decode()
    decode()
    hook.remove()
    other.remove()
    assert lengths == [1] * 8
    assert positions == [96, 97, 98, 99] * 2
