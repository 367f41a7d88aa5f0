from __future__ import annotations

import numpy as np
import pytest
import torch

from sharpmax import MissingExtraError, _extras
from sharpmax.normalisers import Entmax, Sparsemax, _entmax

LOGITS = 2.0 * torch.randn(6, 30, generator=torch.Generator().manual_seed(0))


def slow_entmax(row: np.ndarray, alpha: float) -> np.ndarray:
    """By bisection, from the definition."""
    below, above = (alpha - 1) * row.max() - 1, (alpha - 1) * row.max()
    for _ in range(200):
        middle = (below + above) / 2
        weights = np.maximum((alpha - 1) * row - middle, 0) ** (1 / (alpha - 1))
        below, above = (middle, above) if weights.sum() > 1 else (below, middle)
    return weights


@pytest.mark.parametrize("alpha", [1.1, 1.3, 1.5, 2.0, 3.0])
def test_is_the_definition(alpha: float) -> None:
    for row, ours in zip(LOGITS, Entmax(alpha).weights(LOGITS), strict=True):
        expected = slow_entmax(row.double().numpy(), alpha)
        np.testing.assert_allclose(ours.numpy(), expected, atol=2e-6)


def test_sparsemax_is_the_projection() -> None:
    ours = Sparsemax().weights(LOGITS).double()
    distance = (ours - LOGITS).norm(dim=-1)
    for _ in range(200):
        other = torch.softmax(torch.randn(LOGITS.shape) + LOGITS, dim=-1)
        assert ((other - LOGITS).norm(dim=-1) >= distance).all()


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_what_is_far_below_has_no_weight_at_any_length(alpha: float) -> None:
    logits = torch.full((100_000,), -1.0 / (alpha - 1.0))
    logits[777] = 0.0
    assert Entmax(alpha).weights(logits)[777] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_gradient(alpha: float) -> None:
    logits = LOGITS[:3, :8].double().requires_grad_()
    visible = torch.arange(8) != 2
    assert torch.autograd.gradcheck(lambda x: Entmax(alpha).weights(x, visible), logits)


def test_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str, *, extra: str, what: str) -> None:
        raise MissingExtraError(module, extra, what)

    assert _entmax.require is _extras.require
    monkeypatch.setattr(_entmax, "require", missing)
    with pytest.raises(
        MissingExtraError, match=r"normalisers.Sparsemax needs entmax.*sharpmax\[entmax\]"
    ):
        Sparsemax()
