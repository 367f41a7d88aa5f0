from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers as hf

import sharpmax
from attention_cases import of_tensors
from sharpmax.nn import LearnedPolicy, SharpAttention
from sharpmax.policies import Constant, EntropyTarget, Exponential, LogLength, Policy, Polynomial


def made() -> tuple[torch.Tensor, ...]:
    return torch.randn(3, 2, 4, 12, 8, generator=torch.Generator().manual_seed(0)).unbind()


def test_parameters_are_registered() -> None:
    policy = LearnedPolicy(Exponential(1.0, [0.5, 0.6]), learn=["reference", "strength"])
    assert {name: tuple(x.shape) for name, x in policy.named_parameters()} == {
        "reference": (),
        "strength": (2,),
    }
    assert list(policy.state_dict()) == ["reference", "strength"]
    other = LearnedPolicy(Exponential(2.0, [0.0, 0.0]), learn=["reference", "strength"])
    other.load_state_dict(policy.state_dict())
    assert other.freeze() == policy.freeze()
    assert policy.to("meta").strength.device.type == "meta"
    assert policy.double().reference.dtype == torch.float64


@of_tensors()
@pytest.mark.parametrize(
    ("policy", "learn"),
    [
        (Exponential(0.5, 0.3), ["reference", "strength"]),
        (Constant(1.5), ["beta"]),
        (LogLength(2.0), ["scale"]),
        (EntropyTarget(1.0), ["target"]),
        (Polynomial((0.5, 1.0)), ["coefficients"]),
    ],
    ids=repr,
)
def test_equals_the_policy_and_gets_gradients(policy: Policy, learn: list[str], impl: str) -> None:
    learned = LearnedPolicy(policy, learn)
    output = sharpmax.attention(*made(), policy=learned, impl=impl)
    torch.testing.assert_close(
        output, sharpmax.attention(*made(), policy=policy, impl=impl), atol=1e-4, rtol=1e-3
    )
    for _ in range(2):  # no graph is kept from one call to the next
        output = sharpmax.attention(*made(), policy=learned, impl=impl)
        output.square().sum().backward()
    for parameter in learned.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 0
    logits = torch.randn(3, 20)
    torch.testing.assert_close(
        sharpmax.softmax(logits, learned), sharpmax.softmax(logits, policy), atol=1e-4, rtol=1e-3
    )


def test_learns_the_temperature_that_made_the_data() -> None:
    query, key, value = made()
    wanted = sharpmax.attention(query, key, value, policy=Constant([1.0, 2.0, 3.0, 4.0]))
    policy = LearnedPolicy(Constant(1.0), learn=["beta"], heads=4)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        (sharpmax.attention(query, key, value, policy=policy) - wanted).square().sum().backward()
        optimizer.step()
    frozen = policy.freeze()
    assert isinstance(frozen, Constant)
    np.testing.assert_allclose(frozen.beta, [1.0, 2.0, 3.0, 4.0], atol=0.02)
    assert Policy.from_json(policy.to_json()) == frozen


def test_parameters_stay_within_bounds_and_come_back() -> None:
    policy = LearnedPolicy(Exponential(0.5, strength=0.0), learn=["strength"])
    with torch.no_grad():
        policy.strength -= 0.1
    assert policy.freeze() == Exponential(0.5, strength=0.0)
    query, key, _ = made()
    beta = policy.current().of_statistics(sharpmax.attention_statistics(query, key))
    assert (beta == 1).all()
    (gradient,) = torch.autograd.grad(beta.sum(), policy.strength)
    assert gradient > 0
    policy.project_()
    assert policy.strength == 0
    constant = LearnedPolicy(Constant(1.0), learn=["beta"])
    with torch.no_grad():
        constant.beta.fill_(-3.0)
    frozen = constant.freeze()
    assert isinstance(frozen, Constant)
    assert 0 < frozen.beta < 1e-5


def test_inside_a_module() -> None:
    torch.manual_seed(0)
    policy = LearnedPolicy(Exponential(0.5, 0.2), learn=["strength"], heads=4)
    layer = SharpAttention(16, 4, policy=policy, batch_first=True)
    assert "policy.strength" in layer.state_dict()
    x = torch.randn(2, 6, 16)
    layer(x, x, x, need_weights=False)[0].square().sum().backward()
    assert policy.strength.grad is not None
    assert (policy.strength.grad != 0).all()
    twin = copy.deepcopy(layer)
    assert twin.policy is not policy
    torch.testing.assert_close(twin(x, x, x)[0], layer(x, x, x)[0])
    layer.policy = policy.freeze()
    assert "policy.strength" not in layer.state_dict()
    torch.testing.assert_close(twin(x, x, x)[0], layer(x, x, x)[0])


def test_in_a_sharpened_model() -> None:
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    model = hf.LlamaForCausalLM(config).eval()
    policy = LearnedPolicy(Exponential(0.5, 0.5), learn=["strength"], heads=4)
    tokens = torch.randint(64, (1, 20))
    with sharpmax.sharpen(model, policy, heads=[1, 2]):
        for _ in range(2):
            model(tokens).logits.square().sum().backward()
        learned = model(tokens).logits
    assert policy.strength.grad is not None
    assert (policy.strength.grad != 0).tolist() == [False, True, True, False]
    with sharpmax.sharpen(model, policy.freeze(), heads=[1, 2]):
        torch.testing.assert_close(model(tokens).logits, learned)


def test_compiled() -> None:
    torch.compiler.reset()
    policy = LearnedPolicy(Exponential(0.5, 0.2), learn=["reference", "strength"])

    def function(query, key, value):
        return sharpmax.attention(query, key, value, policy=policy)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")(*made())
    torch.testing.assert_close(compiled, function(*made()))
    parameters = list(policy.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(compiled.square().sum(), parameters),
        torch.autograd.grad(function(*made()).square().sum(), parameters),
    )


@pytest.mark.parametrize(
    ("policy", "learn", "error", "message"),
    [
        (Exponential(1.0), ["slope"], ValueError, r"learn: expected names among .*got \['slope'\]"),
        (Exponential(1.0), "strength", ValueError, "learn: expected names .*got 'strength'"),
        (Exponential(1.0), [], ValueError, r"learn: expected names .*got \[\]"),
        ("Exponential", ["strength"], TypeError, "policy: expected a policy to start from"),
    ],
)
def test_refused(policy, learn, error, message) -> None:
    with pytest.raises(error, match=message):
        LearnedPolicy(policy, learn)
    with pytest.raises(ValueError, match=r"Constant.beta: .* 4 query heads, got 3"):
        LearnedPolicy(Constant([1.0, 2.0, 3.0]), ["beta"], heads=4)
