"""Any PyTorch module: how its calls are addressed, what they get, and what is undone."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sharpmax
from model_families import BY_NAME, result
from sharpmax._statistics import RowStatistics
from sharpmax.models import CannotSharpenError, record
from sharpmax.models._attachment import ATTRIBUTE
from sharpmax.models._handle import Sharpened
from sharpmax.models._rule import Rule
from sharpmax.models._torch_module.way import TorchModule
from sharpmax.policies import Constant, Exponential
from torch_models import HEADS, WIDTH, Attention, ByHand, Stack, heads_of, made, tokens

SHARP = Constant(3.0)
BY_HAND = "its attention is written out by hand"


class Rows:
    def __init__(self) -> None:
        self.found: list[tuple[int, RowStatistics]] = []

    def record(self, layer: int, statistics: RowStatistics) -> None:
        self.found.append((layer, statistics))


def first(output: Any) -> Tensor:
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def encoder() -> nn.Module:
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True), num_layers=2
    )


def decoder() -> nn.Module:
    return nn.TransformerDecoder(
        nn.TransformerDecoderLayer(WIDTH, HEADS, 32, batch_first=True), num_layers=1
    )


class Patches(nn.Module):
    """A vision transformer: patches, a token of its own, and blocks in a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, WIDTH, 4, 4)
        self.own = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.trunk = Stack(Attention(), Attention())

    def forward(self, image: Tensor) -> Tensor:
        x = self.embed(image).flatten(2).mT
        found: Tensor = self.trunk(torch.cat([self.own.expand(len(x), -1, -1), x], 1))[:, 0]
        return found


ONE_LAYER, SELF = ["blocks.0.attn"], ["layers.0.self_attn", "layers.1.self_attn"]
MODELS: dict[str, tuple[Any, tuple[Tensor, ...], list[str]]] = {
    "decoder only": (lambda: Stack(Attention(causal=True)), (tokens(),), ONE_LAYER),
    "set": (lambda: Stack(Attention()), (tokens(5), tokens(9)), ONE_LAYER),
    "twice": (
        lambda: Stack(Attention(), times=2),
        (tokens(),),
        ["blocks.0.attn", "blocks.0.attn#1"],
    ),
    "vision": (
        Patches,
        (torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)),),
        ["trunk.blocks.0.attn", "trunk.blocks.1.attn"],
    ),
    "multi-head": (
        lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
        (tokens(),) * 3,
        ["MultiheadAttention"],
    ),
    "encoder": (encoder, (tokens(),), SELF),
    "decoder": (
        decoder,
        (tokens(6), tokens(9)),
        ["layers.0.self_attn", "layers.0.multihead_attn"],
    ),
}


@pytest.fixture(params=list(MODELS))
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, tuple[Tensor, ...], list[str]]:
    make, inputs, names = MODELS[request.param]
    return made(make()), inputs, names


def test_every_call_is_sharpened_and_restored_exactly(case: Any) -> None:
    model, inputs, names = case
    classes = [type(module) for module in model.modules()]
    with torch.no_grad():
        before = first(model(*inputs))
        with sharpmax.sharpen(model, SHARP) as sharpened:
            assert sharpened.status() == []
            sharp = first(model(*inputs))
            assert (sharp - before).abs().max() > 1e-2
            rows = sharpened.status()
            assert [(row.index, row.name) for row in rows] == list(enumerate(names))
            assert {(row.heads, row.policy, row.why_not) for row in rows} == {(HEADS, SHARP, None)}
            assert torch.equal(first(model(*inputs)), sharp)
            with sharpened.disabled():
                assert torch.equal(first(model(*inputs)), before)
            assert torch.equal(first(model(*inputs)), sharp)
        assert torch.equal(first(model(*inputs)), before)
        with sharpmax.sharpen(model, Constant(1.0)):
            # Also where PyTorch's own fused layers are left out.
            torch.testing.assert_close(first(model(*inputs)), before)
    assert {row.why_not for row in sharpened.status()} == {"restored"}
    assert [type(module) for module in model.modules()] == classes
    assert not any(ATTRIBUTE in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("name", ["twice", "encoder", "multi-head"])
def test_a_compiled_model_follows_as_one_graph(name: str) -> None:
    make, inputs, names = MODELS[name]
    model = made(make())
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        before = first(compiled(*inputs))
        with sharpmax.sharpen(compiled, SHARP) as sharpened:
            sharp = first(compiled(*inputs))
            assert [row.name for row in sharpened.status()] == names
            torch.testing.assert_close(first(model(*inputs)), sharp)
        assert torch.equal(first(compiled(*inputs)), before)
    assert (sharp - before).abs().max() > 1e-2


def test_a_compiled_part_of_a_model_follows_without_compiling_again() -> None:
    model: Any = made(Stack(Attention(), Attention()))
    torch.compiler.reset()
    with torch.no_grad(), sharpmax.sharpen(model, {1: SHARP}, example=tokens()) as sharpened:
        expected = model(tokens())
        model.blocks[1].compile(backend="eager", fullgraph=True)
        torch.testing.assert_close(model(tokens()), expected)
        with torch.compiler.set_stance("fail_on_recompile"):
            torch.testing.assert_close(model(tokens()), expected)
        assert [row.name for row in sharpened.status()] == ["blocks.0.attn", "blocks.1.attn"]


def test_rows_are_recorded_under_the_index_of_their_call(case: Any) -> None:
    model, inputs, names = case
    rows = Rows()
    with torch.no_grad():
        before = first(model(*inputs))
        with record(model, rows) as recording:
            torch.testing.assert_close(first(model(*inputs)), before)
        assert [row.why_not for row in recording.status()] == ["restored"] * len(names)
    assert [layer for layer, _ in rows.found] == list(range(len(names)))
    for _, statistics in rows.found:
        entropy: Any = statistics.entropy()
        assert entropy.shape[1] == HEADS
        # A row that sees one key alone has none.
        assert entropy.min() >= 0
        assert 1 < entropy.max() <= torch.log(torch.tensor(17.0))


def test_layers_and_heads_are_chosen_by_name_index_and_kind() -> None:
    model, inputs = made(Stack(Attention(causal=True), Attention(), times=2)), tokens()
    names = ["blocks.0.attn", "blocks.1.attn", "blocks.0.attn#1", "blocks.1.attn#1"]
    with torch.no_grad():
        before = model(inputs)
        policy = {"blocks.0.attn#1": SHARP, 3: Exponential(0.5)}
        with sharpmax.sharpen(model, policy, heads={3: [1], 2: [0, 1]}, example=inputs) as chosen:
            assert [row.name for row in chosen.status()] == names
            assert [row.kind for row in chosen.status()] == ["global", "encoder"] * 2
            found = [row.policy for row in chosen.status()]
            assert found[:3] == [None, None, SHARP]
            assert found[3] is not None
            assert found[3].changes(HEADS).tolist() == [False, True]
            assert not torch.equal(model(inputs), before)
        with sharpmax.sharpen(model, SHARP, layers="global", example=inputs) as chosen:
            assert [row.policy for row in chosen.status()] == [SHARP, None] * 2
    with pytest.raises(ValueError, match=r"example: expected inputs of the model"):
        sharpmax.sharpen(model, SHARP, layers=[0])
    with pytest.raises(ValueError, match=r"expected .* the name of an attention layer \(blocks.0"):
        sharpmax.sharpen(model, {"blocks.7.attn": SHARP}, example=inputs)


@pytest.mark.parametrize("form", [lambda x: x, lambda x: (x,), lambda x: {"x": x}])
def test_an_example_is_what_the_model_is_called_with(form: Any) -> None:
    model, state = made(Stack(Attention())).train(), torch.random.get_rng_state()
    for example in (form(tokens()), lambda each: each(tokens())):
        with sharpmax.sharpen(model, SHARP, example=example) as sharpened:
            assert [row.name for row in sharpened.status()] == ONE_LAYER
    assert model.training
    assert torch.equal(torch.random.get_rng_state(), state)


def test_both_ways_agree_on_a_model_that_both_can_reach() -> None:
    family = BY_NAME["llama"]
    model, inputs = family.build(), family.inputs()
    with torch.no_grad():
        with sharpmax.sharpen(model, {1: Exponential(0.5)}) as own:
            expected = result(model, **inputs)
        way = TorchModule(model)
        way.probe(inputs)
        rules = {1: Rule.make(Exponential(0.5))}
        with Sharpened(way, rules) as other:
            torch.testing.assert_close(result(model, **inputs), expected)
    for mine, theirs in zip(own.status(), other.status(), strict=True):
        assert (mine.index, mine.name, mine.heads) == (theirs.index, theirs.name, theirs.heads)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen, self.hidden = Stack(Attention()), Stack(ByHand())

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.hidden(self.seen(x))
        return found


def test_attention_written_by_hand_is_named() -> None:
    model = made(Mixed())
    with sharpmax.sharpen(model, SHARP) as sharpened:
        with pytest.warns(UserWarning, match=f"Mixed: not reached: hidden.*attn: {BY_HAND}"):
            model(tokens())
        model(tokens())
        seen, hidden = sharpened.status()
        assert (seen.name, seen.why_not) == ("seen.blocks.0.attn", None)
        assert hidden.name == "hidden.blocks.0.attn"
        assert str(hidden.why_not).startswith(BY_HAND)
    with pytest.raises(CannotSharpenError, match=f"blocks.0.attn: {BY_HAND}"):
        sharpmax.sharpen(made(Stack(ByHand())), SHARP, example=tokens())
    with pytest.raises(CannotSharpenError, match=f"hidden.blocks.0.attn: {BY_HAND}"):
        sharpmax.sharpen(model, {"hidden.blocks.0.attn": SHARP}, example=tokens())


class Later(Mixed):
    """A model that leaves a part out unless it is asked for."""

    def forward(self, x: Tensor, whole: bool = False) -> Tensor:
        found: Tensor = super().forward(x) if whole else self.seen(x)
        return found


def test_attention_by_hand_that_runs_in_a_later_pass_is_named_then() -> None:
    for example in (None, tokens()):
        model = made(Later())
        with sharpmax.sharpen(model, SHARP, example=example) as sharpened:
            with warnings.catch_warnings(action="error"):
                model(tokens())
            with pytest.warns(UserWarning, match=f"Later: not reached: hidden.*attn: {BY_HAND}"):
                model(tokens(), whole=True)
            with warnings.catch_warnings(action="error"):
                model(tokens(), whole=True)
            names = [(row.name, row.why_not is None) for row in sharpened.status()]
            assert names == [("seen.blocks.0.attn", True), ("hidden.blocks.0.attn", False)]


class KernelAttention(nn.Module):
    """Attention that no function of PyTorch computes, as a kernel of its own would."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.project(x).cumsum(1)
        return found


@torch.library.custom_op("other_library::flash_attention", mutates_args=())
def kernel(x: Tensor) -> Tensor:
    return x.clone()


class NamedKernel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = kernel(x)
        return found


def test_attention_inside_kernels_is_named() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.script(KernelAttention())
    for attention, said in [
        (KernelAttention(), "blocks.1.attn: no call of attention was seen in it"),
        (NamedKernel(), "blocks.1.attn: its attention is the kernel .*flash_attention"),
        (script, "blocks.1.attn: TorchScript cannot be looked into"),
    ]:
        model = made(Stack(Attention(), attention))
        with sharpmax.sharpen(model, SHARP), pytest.warns(UserWarning, match=said):
            model(tokens())


class Sharp(nn.Module):
    """Attention with a policy of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Attention()

    def forward(self, x: Tensor) -> Tensor:
        query, (key, value) = self.inner.query(x), self.inner.memory(x).chunk(2, -1)
        given = [heads_of(each) for each in (query, key, value)]
        return sharpmax.attention(*given, policy=SHARP).transpose(1, 2).flatten(-2)


def test_attention_of_our_own_keeps_its_policy_and_is_named() -> None:
    model = made(Stack(Attention(), Sharp()))
    said = "blocks.1.attn: it calls sharpmax.attention itself; pass the policy there"
    with sharpmax.sharpen(model, SHARP) as sharpened:
        with pytest.warns(UserWarning, match=said):
            model(tokens())
        assert [row.why_not is None for row in sharpened.status()] == [True, False]


def test_a_model_in_which_nothing_is_seen_is_refused_or_warned_about() -> None:
    model = made(Stack(nn.Identity()))
    with pytest.raises(CannotSharpenError, match="Stack: no call of attention can be reached"):
        sharpmax.sharpen(model, SHARP, example=tokens())
    with (
        sharpmax.sharpen(model, SHARP),
        pytest.warns(UserWarning, match="Stack: not reached: no call of attention was seen"),
    ):
        model(tokens())


def test_copies_are_plain_and_pickling_is_refused() -> None:
    model, inputs = made(Stack(Attention())), tokens()
    with torch.no_grad():
        before = model(inputs)
        with sharpmax.sharpen(model, SHARP):
            sharp = model(inputs)
            twin = copy.deepcopy(model)
            assert [type(each) for each in twin.modules()][:2] == [Stack, nn.ModuleList]
            assert torch.equal(twin(inputs), before)
            twin.blocks[0].attn.query.weight.mul_(0)
            assert torch.equal(model(inputs), sharp)
            with pytest.raises(CannotSharpenError, match=r"cannot be pickled; save its state_dict"):
                pickle.dumps(model)
            with pytest.raises(CannotSharpenError, match=r"call restore\(\) first"):
                torch.save(model, io.BytesIO())
            twin.load_state_dict(model.state_dict())
            with pytest.raises(CannotSharpenError, match=r"Stack is already sharpened"):
                sharpmax.sharpen(model, SHARP)
            with pytest.raises(CannotSharpenError, match=r"Block is already sharpened"):
                record(model.blocks[0], Rows())
        assert torch.equal(twin(inputs), before)


def test_a_part_and_a_method_of_a_model_are_served_too() -> None:
    model: Any = made(Stack(Attention(), Attention()))
    with torch.no_grad():
        plain = model.blocks[1](tokens())
        with sharpmax.sharpen(model, SHARP):
            assert not torch.allclose(model.blocks[1](tokens()), plain)


def test_a_forward_function_that_was_set_on_a_module_is_kept() -> None:
    model: Any = made(Stack(Attention()))
    own = model.blocks[0].forward
    model.blocks[0].forward = lambda *inputs: 2 * own(*inputs)
    changed = model.blocks[0].forward
    with torch.no_grad():
        before = model(tokens())
        with sharpmax.sharpen(model, SHARP) as sharpened:
            assert not torch.allclose(model(tokens()), before)
            assert [row.name for row in sharpened.status()] == ONE_LAYER
        assert torch.equal(model(tokens()), before)
    assert model.blocks[0].forward is changed


def test_threads_do_not_mix() -> None:
    models = [made(Stack(Attention(), times=times)) for times in (1, 2, 3)]
    handles = [sharpmax.sharpen(model, Constant(2.0 + i)) for i, model in enumerate(models)]
    with torch.no_grad():
        expected = [model(tokens()) for model in models]
        found: dict[int, list[Tensor]] = {}

        def work(number: int) -> None:
            with torch.no_grad():
                found[number] = [models[number % 3](tokens()) for _ in range(20)]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number, outputs in found.items():
        assert all(torch.equal(each, expected[number % 3]) for each in outputs)
    assert [len(handle.status()) for handle in handles] == [1, 2, 3]


class Checkpointed(nn.Module):
    def __init__(self, model: nn.Module, times: int) -> None:
        super().__init__()
        self.model, self.times = model, times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = checkpoint(self.model, x, use_reentrant=False)
        return x


def gradients(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(inputs).square().mean().backward()
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


def test_gradients_pass_also_under_checkpointing() -> None:
    inner = made(Stack(Attention()))
    plain = gradients(inner, tokens())
    with sharpmax.sharpen(inner, Exponential(0.5)):
        sharp = gradients(inner, tokens())
    model = Checkpointed(inner, 1)
    with sharpmax.sharpen(model, Exponential(0.5)):
        torch.testing.assert_close(gradients(model, tokens()), sharp)
    assert not torch.allclose(plain[2], sharp[2])
    twice = Checkpointed(inner, 2)
    with sharpmax.sharpen(twice, SHARP):
        assert gradients(twice, tokens())
    with (
        sharpmax.sharpen(twice, {0: SHARP}, example=tokens()),
        pytest.raises(NotImplementedError, match=r"expected the same policy for all calls"),
    ):
        gradients(twice, tokens())


class CheckpointsAFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, reentrant: bool) -> Any:
        inputs = (self.project(x).unsqueeze(1),) * 3
        function = nn.functional.scaled_dot_product_attention
        return checkpoint(function, *inputs, use_reentrant=reentrant)


def test_a_checkpointed_function_that_would_be_recomputed_without_us_is_refused() -> None:
    model = made(CheckpointsAFunction())
    with sharpmax.sharpen(model, SHARP):
        with pytest.raises(NotImplementedError, match=r"expected a checkpointed module, got a fun"):
            model(tokens(), reentrant=True)
        with pytest.raises(torch.utils.checkpoint.CheckpointError, match="different number"):
            model(tokens(), reentrant=False).sum().backward()


def test_inference_mode_and_autocast() -> None:
    model = made(Stack(Attention()))
    with sharpmax.sharpen(model, SHARP):
        with torch.no_grad():
            expected = model(tokens())
        with torch.inference_mode():
            assert torch.equal(model(tokens()), expected)
            with torch.autocast("cpu", torch.bfloat16):
                torch.testing.assert_close(model(tokens()), expected, atol=0.1, rtol=0.1)
