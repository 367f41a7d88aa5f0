"""The figures of a monitor, its cost to training, and its steps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM

import sharpmax
from sharpmax.models import CannotSharpenError, Monitor


def _model(seed: int = 0, **options: Any) -> Any:
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.5, **options,
    )  # fmt: skip
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


def _tokens(steps: int, length: int = 12) -> Tensor:
    return torch.randint(32, (steps, 2, length), generator=torch.Generator().manual_seed(1))


def _train(model: Any, tokens: Tensor, monitor: Monitor | None = None) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for batch in tokens if monitor is None else monitor.over(tokens):
        loss = model(batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if monitor is not None:
            monitor.loss(loss)
    return losses


def test_figures_are_those_of_the_weights() -> None:
    model, tokens = _model(), _tokens(1)[0]
    monitor = sharpmax.monitor(model)
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0  # left padding: these rows see no key or are not masked as rows
    with monitor.step():
        model(tokens, attention_mask=mask)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(tokens, attention_mask=mask, output_attentions=True).attentions
    for each in monitor.readings[0].heads:
        table = weights[each.layer][:, each.head]
        rows = torch.cat([table[0, 3:], table[1]])
        count = torch.cat([torch.arange(1, 10), torch.arange(1, 13)]).float()
        first = torch.cat([torch.zeros(9), table[1, :, 0]])  # padding hides the first key
        entropy = torch.special.entr(rows).sum(-1).mean()
        assert each.entropy == pytest.approx(float(entropy), abs=1e-5)
        normalised = float(entropy / count.log().mean())
        assert each.normalised_entropy == pytest.approx(normalised, abs=1e-5)
        assert each.sink_mass == pytest.approx(float(first.sum() / 21), abs=1e-5)


def test_the_largest_logit_is_that_of_all_rows_of_all_passes() -> None:
    query, key = torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)

    class Attention(nn.Module):
        def forward(self, factor: float) -> Tensor:
            return functional.scaled_dot_product_attention(factor * query, key, key, is_causal=True)

    model = Attention()
    monitor = sharpmax.monitor(model)
    with monitor.step():
        model(1.0)
        model(3.0)
    logits = (3.0 * query @ key.mT / math.sqrt(8)).masked_fill(
        torch.ones(9, 9).triu(1).bool(), -torch.inf
    )
    found = [each.largest_logit for each in monitor.readings[0].heads]
    assert found == pytest.approx(logits.amax((0, 2, 3)).tolist(), rel=1e-5)


def test_a_learned_sink_counts() -> None:
    config = GptOssConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, head_dim=4,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=2, num_experts_per_tok=1,
    )  # fmt: skip
    model: Any = GptOssForCausalLM(config)
    monitor = sharpmax.monitor(model, 1)
    with torch.no_grad():
        for logit in (30.0, -30.0):
            model.model.layers[0].self_attn.sinks.fill_(logit)
            with monitor.step():
                model(_tokens(1)[0])
    sunk, free = monitor.readings
    assert min(each.sink_mass for each in sunk.heads) > 0.999
    assert max(each.sink_mass for each in free.heads) < 0.9


def test_training_is_the_same_with_a_monitor() -> None:
    tokens = _tokens(5)
    plain, watched = _model(), _model()
    monitor = sharpmax.monitor(watched, every=2)
    assert _train(plain, tokens) == _train(watched, tokens, monitor)
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, other)
    assert [reading.step for reading in monitor.readings] == [0, 2, 4]
    assert watched.config._attn_implementation == plain.config._attn_implementation


def test_checkpointing_and_accumulation_change_no_figure() -> None:
    tokens = _tokens(1)[0]
    plain, checkpointed, accumulated = _model(), _model(), _model()
    checkpointed.gradient_checkpointing_enable()
    checkpointed.train()
    found = []
    for model, batches in ((plain, [tokens]), (checkpointed, [tokens]), (accumulated, tokens)):
        monitor = sharpmax.monitor(model)
        with monitor.step():
            for batch in batches:
                batch = batch.reshape(-1, tokens.shape[-1])
                model(batch, labels=batch).loss.backward()
        found.append([list(vars(head).values())[3:] for head in monitor.readings[0].heads])
    assert torch.allclose(torch.tensor(found[0]), torch.tensor(found[1]), atol=1e-6)
    assert torch.allclose(torch.tensor(found[0]), torch.tensor(found[2]), atol=1e-6)


def test_an_interrupted_step_leaves_the_model_as_it_was() -> None:
    model = _model()
    monitor = sharpmax.monitor(model, every=1)
    with pytest.raises(KeyboardInterrupt), monitor.step():
        raise KeyboardInterrupt
    for _ in monitor.over(_tokens(3)):
        break
    sharpmax.sharpen(model, sharpmax.policies.Constant(1.1)).restore()  # nothing is attached
    assert monitor.readings == []


def test_the_loss_is_the_mean_since_the_last_reading() -> None:
    model = _model()
    monitor = sharpmax.monitor(model, every=2)
    losses = _train(model, _tokens(4), monitor)
    first, second = monitor.readings
    assert first.loss == pytest.approx(losses[0])
    assert second.loss == pytest.approx((losses[1] + losses[2]) / 2)


def test_what_cannot_be_watched_is_refused() -> None:
    with pytest.raises(ValueError, match="every: expected a number of steps, 1 or more, got 0"):
        sharpmax.monitor(_model(), every=0)
    with pytest.raises(TypeError, match="writer: expected a SummaryWriter"):
        sharpmax.monitor(_model(), writer=3)
    with pytest.raises(CannotSharpenError):
        sharpmax.monitor(nn.Linear(2, 2))
    model = _model()
    monitor = sharpmax.monitor(model)
    sharpened = sharpmax.sharpen(model, sharpmax.policies.Constant(1.1))
    with pytest.raises(CannotSharpenError, match="already sharpened"), monitor.step():
        pass
    sharpened.restore()
