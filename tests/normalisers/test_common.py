"""What every normaliser has to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import sharpmax
from sharpmax import normalisers, policies
from sharpmax.normalisers import (
    ASEntmax,
    Differential,
    Discontinuous,
    Entmax,
    Hard,
    Linear,
    Local,
    LogLength,
    Normaliser,
    OffByOne,
    Selective,
    Sigmoid,
    Softmax,
    Sparsemax,
    SSMax,
    StickBreaking,
    TopK,
)

WIDTH = 8
HEADS = 3


@dataclass(frozen=True)
class Case:
    """One normaliser, and what holds of it."""

    name: str
    make: Callable[[int], Normaliser]
    """From the number of heads."""
    ordered: bool = False
    """Whether the order of the keys matters."""
    differentiable: bool = True

    def made(self, heads: int = HEADS) -> Normaliser:
        """With parameters that are not those that it begins with, one set a head."""
        normaliser = self.make(heads)
        generator = torch.Generator().manual_seed(1)
        for parameter in normaliser.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data += 0.3 * noise
        return normaliser


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


CASES = [
    Case("softmax", lambda _: Softmax()),
    Case("paper", lambda _: Softmax(policies.Paper(warn=False))),
    Case("exponential", lambda heads: Softmax(policies.Exponential([0.5] * heads))),
    Case("detached", lambda _: Softmax(policies.Exponential(0.5), detach_temperature=True)),
    Case("ssmax", SSMax),
    Case("logn", lambda _: LogLength(train_length=4)),
    Case("entmax", lambda _: Entmax()),
    Case("entmax 1.3", lambda _: Entmax(alpha=1.3)),
    Case("sparsemax", lambda _: Sparsemax()),
    Case("asentmax", lambda heads: ASEntmax(heads, WIDTH)),
    Case("sigmoid", lambda _: Sigmoid()),
    Case("sigmoid biased", Sigmoid),
    Case("linear", lambda _: Linear()),
    Case("linear gain", Linear),
    Case("linear normalised", lambda _: Linear(normalise=True)),
    Case("stick-breaking", lambda _: StickBreaking(), ordered=True),
    Case("selective", lambda h: Selective(h, WIDTH, generator=seeded()), ordered=True),
    Case("differential", Differential),
    Case("top-k", lambda _: TopK(3)),
    Case("local", lambda _: Local(4), ordered=True),
    Case("off by one", lambda _: OffByOne()),
    Case("hard", lambda _: Hard(), differentiable=False),
    Case("hard straight-through", lambda _: Hard(straight_through=True)),
    Case("discontinuous", lambda h: Discontinuous(h, WIDTH, hidden=16, generator=seeded())),
]


def test_every_normaliser_is_here() -> None:
    public = {getattr(normalisers, name) for name in normalisers.__all__}
    assert public - {Normaliser} == {type(case.make(2)) for case in CASES}
    assert sharpmax.normalisers is normalisers


def inputs(case: Case, queries: int = 5, keys: int = 11, heads: int = HEADS) -> list[Tensor]:
    """A query and a key that fit the case."""
    generator = torch.Generator().manual_seed(2)
    maps = case.make(1).maps
    return [
        torch.randn(2, maps * heads, length, WIDTH, generator=generator)
        for length in (queries, keys)
    ]


def some_visible(queries: int = 5, keys: int = 11) -> Tensor:
    """Each row sees some of the keys; of each of the first three, one, all and none."""
    visible = torch.rand(queries, keys, generator=torch.Generator().manual_seed(3)) < 0.6
    visible[0], visible[1], visible[2] = False, True, False
    visible[0, 4] = True
    return visible


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
class TestEveryNormaliser:
    def test_shape_and_dtype(self, case: Case) -> None:
        query, key = inputs(case)
        weights = case.made()(query, key, scale=0.5)
        assert weights.shape == (2, HEADS, 5, 11)
        assert weights.dtype == torch.float32
        double = case.made()(query.double(), key.double(), scale=0.5)
        assert double.dtype == torch.float64
        torch.testing.assert_close(weights, double.float(), atol=1e-5, rtol=1e-4)

    def test_sums(self, case: Case) -> None:
        query, key = inputs(case)
        normaliser = case.made()
        sums = normaliser(query, key, scale=0.5, visible=some_visible()).sum(-1)
        assert (sums[:, :, 2] == 0).all()
        seen = [0, 1, 3, 4]
        close_to_one = torch.isclose(sums[:, :, seen], torch.ones(()), atol=1e-5)
        assert close_to_one.all() == normaliser.normalised

    def test_what_is_hidden_does_not_exist(self, case: Case) -> None:
        query, key = inputs(case)
        normaliser, visible = case.made(), some_visible()
        weights = normaliser(query, key, scale=0.5, visible=visible)
        assert (weights[:, :, ~visible] == 0).all()
        # A key that no row sees may be anything, or not be there.
        column = visible.clone()
        column[:, 6] = False
        weights = normaliser(query, key, scale=0.5, visible=column)
        key[:, :, 6] = 300.0
        other = normaliser(query, key, scale=0.5, visible=column)
        torch.testing.assert_close(other, weights, atol=1e-6, rtol=1e-5)
        kept = [k for k in range(11) if k != 6]
        alone = normaliser(query, key[:, :, kept], scale=0.5, visible=column[:, kept])
        torch.testing.assert_close(alone, weights[..., kept], atol=1e-6, rtol=1e-5)

    def test_hidden_logits_may_be_anything(self, case: Case) -> None:
        normaliser, visible = case.made(), some_visible()
        logits = torch.randn(2, HEADS * normaliser.maps, 5, 11).abs()
        weights = normaliser.weights(logits, visible)
        for anything in (torch.nan, torch.inf, -torch.inf, 1e30):
            changed = torch.where(visible, logits, anything).requires_grad_()
            ours = normaliser.weights(changed, visible)
            torch.testing.assert_close(ours, weights)
            if case.differentiable:
                ours.square().sum().backward()
                assert torch.isfinite(changed.grad).all()
                assert (changed.grad[..., ~visible] == 0).all()

    def test_minus_infinity_hides(self, case: Case) -> None:
        normaliser, visible = case.made(), some_visible()
        logits = torch.randn(2, HEADS * normaliser.maps, 5, 11).abs()
        hidden = logits.masked_fill(~visible, -torch.inf)
        torch.testing.assert_close(
            normaliser.weights(hidden), normaliser.weights(logits, visible), equal_nan=False
        )

    def test_gradients_are_finite(self, case: Case) -> None:
        query, key = (x.requires_grad_() for x in inputs(case))
        normaliser = case.made()
        weights = normaliser(query, key, scale=0.5, visible=some_visible())
        assert weights.requires_grad == case.differentiable
        if not case.differentiable:
            return
        (weights * torch.randn(weights.shape, generator=seeded())).sum().backward()
        for name, tensor in [("query", query), ("key", key), *normaliser.named_parameters()]:
            assert torch.isfinite(tensor.grad).all(), name
            assert tensor.grad.abs().sum() > 0, name

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_computed_in_single(self, case: Case, dtype: torch.dtype) -> None:
        query, key = (x.to(dtype) for x in inputs(case))
        ours = case.made()(query, key, scale=0.5, visible=some_visible())
        exact = case.made()(query.float(), key.float(), scale=0.5, visible=some_visible())
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, exact.to(dtype))

    def test_order_of_keys(self, case: Case) -> None:
        query, key = inputs(case)
        normaliser, visible = case.made(), some_visible()
        order = torch.randperm(11, generator=torch.Generator().manual_seed(4))
        weights = normaliser(query, key, scale=0.5, visible=visible)[..., order]
        permuted = normaliser(query, key[:, :, order], scale=0.5, visible=visible[:, order])
        assert torch.allclose(permuted, weights, atol=1e-6) != case.ordered

    def test_rows_do_not_mix(self, case: Case) -> None:
        query, key = inputs(case)
        normaliser, visible = case.made(), some_visible()
        weights = normaliser(query, key, scale=0.5, visible=visible)
        row = normaliser(query[:, :, 3:4], key, scale=0.5, visible=visible[3:4])
        torch.testing.assert_close(row, weights[:, :, 3:4], atol=1e-6, rtol=1e-5)

    def test_heads_do_not_mix(self, case: Case) -> None:
        query, key = inputs(case)
        normaliser, visible = case.made(), some_visible()
        weights = normaliser(query, key, scale=0.5, visible=visible)
        for head in range(HEADS):
            alone = case.make(1)
            for one, all_heads in zip(alone.parameters(), normaliser.parameters(), strict=True):
                assert all_heads.shape[0] == HEADS
                one.data = all_heads.data[head : head + 1].clone()
            of_head = slice(head * normaliser.maps, (head + 1) * normaliser.maps)
            ours = alone(query[:, of_head], key[:, of_head], scale=0.5, visible=visible)
            torch.testing.assert_close(ours, weights[:, head : head + 1], atol=1e-6, rtol=1e-5)

    def test_extreme_logits(self, case: Case) -> None:
        query, key = (100.0 * x for x in inputs(case))
        query, key = query.requires_grad_(), key.requires_grad_()
        weights = case.made()(query, key, scale=1.0, visible=some_visible())
        assert torch.isfinite(weights).all()
        if case.differentiable:
            weights.square().sum().backward()
            assert torch.isfinite(query.grad).all()
            assert torch.isfinite(key.grad).all()

    def test_many_keys(self, case: Case) -> None:
        query, key = inputs(case, queries=1, keys=4096, heads=2)
        normaliser = case.made(heads=2)
        with torch.no_grad():
            weights = normaliser(query, key, scale=0.5)
        assert torch.isfinite(weights).all()
        if normaliser.normalised:
            torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 1), atol=1e-4, rtol=0)

    @pytest.mark.parametrize(("queries", "keys"), [(3, 0), (0, 4), (1, 1)])
    def test_small_shapes(self, case: Case, queries: int, keys: int) -> None:
        query, key = inputs(case, queries, keys)
        assert case.made()(query, key, scale=0.5).shape == (2, HEADS, queries, keys)

    def test_any_shape_without_parameters(self, case: Case) -> None:
        normaliser = case.made()
        if list(normaliser.parameters()) or case.name == "exponential" or normaliser.maps > 1:
            return
        logits = torch.rand(2, 7)
        torch.testing.assert_close(normaliser.weights(logits)[1], normaliser.weights(logits[1]))

    def test_state_dict(self, case: Case) -> None:
        query, key = inputs(case)
        normaliser, other = case.made(), case.make(HEADS)
        other.load_state_dict(normaliser.state_dict())
        assert torch.equal(other(query, key, scale=0.5), normaliser(query, key, scale=0.5))
        assert type(normaliser).__name__ in repr(normaliser)

    def test_beginnings_do_not_change(self, case: Case) -> None:
        first, second = case.make(HEADS), case.make(HEADS)
        for one, other in zip(first.parameters(), second.parameters(), strict=True):
            assert torch.equal(one, other)

    def test_bad_visible(self, case: Case) -> None:
        query, key = inputs(case)
        with pytest.raises(TypeError, match=r"visible: expected booleans, got torch.float32"):
            case.made()(query, key, scale=0.5, visible=torch.ones(5, 11))
        with pytest.raises(ValueError, match=r"visible: expected a shape .*, got \(4,\)"):
            case.made()(query, key, scale=0.5, visible=torch.ones(4, dtype=torch.bool))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Softmax("paper"), TypeError, "policy: expected a sharpmax policy or None, got 'p"),
        (lambda: SSMax(0), ValueError, "heads: expected at least 1, got 0"),
        (lambda: SSMax(2, initial=float("nan")), ValueError, "initial: expected a finite number"),
        (lambda: LogLength(1), ValueError, "train_length: expected a finite number above 1, got 1"),
        (lambda: LogLength("16"), TypeError, "train_length: expected a number, got '16'"),
        (lambda: Entmax(1.0), ValueError, "alpha: expected a finite number above 1, got 1.0"),
        (lambda: ASEntmax(2, 2.5), TypeError, "width: expected an integer, got 2.5"),
        (lambda: ASEntmax(2, 4, reach=0), ValueError, "reach: expected a finite number above 0"),
        (lambda: Sigmoid(-1), ValueError, "heads: expected at least 1, got -1"),
        (lambda: Linear(2, normalise=True), ValueError, "heads: expected None with normalise"),
        (lambda: Selective(2, 4, rank=0), ValueError, "rank: expected at least 1, got 0"),
        (
            lambda: Selective(2, 4, generator=[seeded()]),
            ValueError,
            "generator: expected one, or one for each of 2 heads, got 1",
        ),
        (lambda: Differential(True), TypeError, "heads: expected an integer, got True"),
        (lambda: TopK(0), ValueError, "k: expected at least 1, got 0"),
        (lambda: Local(1.5), TypeError, "window: expected an integer, got 1.5"),
        (lambda: Discontinuous(2, 4, hidden=0), ValueError, "hidden: expected at least 1, got 0"),
    ],
)
def test_bad_arguments(make: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_wrong_number_of_heads(case: Case) -> None:
    normaliser = case.make(2)
    query, key = inputs(case)
    if list(normaliser.parameters()):
        with pytest.raises(ValueError, match=r"(logits|query|key): expected \d heads.*, got \("):
            normaliser(query, key, scale=1.0)
