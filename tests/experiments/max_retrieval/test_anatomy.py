from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.max_retrieval.anatomy import Anatomy, dissect
from experiments.max_retrieval.head import Heads
from experiments.max_retrieval.profile import Profile
from experiments.max_retrieval.task import Sets, sample


def test_slope_and_offsets_are_those_of_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = np.linspace(-0.003, 0.003, 10) ** 3 * 1e5

    def logits(_: Profile, sets: Sets) -> torch.Tensor:
        exact = 250 * (sets.priorities + offsets[sets.classes]) + 7 * sets.queries[:, None]
        return torch.from_numpy(exact)

    monkeypatch.setattr(Profile, "logits", logits)
    found = dissect(Heads([0], width=8))
    assert found.slope == pytest.approx(250)
    assert found.offsets == pytest.approx(offsets - offsets.mean())
    assert found.deviation == pytest.approx(offsets.std())


def test_the_prediction_is_what_drawing_whole_sets_gives() -> None:
    anatomy = Anatomy(1.0, tuple(np.linspace(-1e-3, 1e-3, 10)))
    sets = sample(np.random.default_rng(5), 4000, 500)
    chosen = (sets.priorities + np.asarray(anatomy.offsets)[sets.classes]).argmax(1)
    right = np.take_along_axis(sets.classes, chosen[:, None], 1)[:, 0] == sets.targets
    assert anatomy.predicted_accuracy(500) == pytest.approx(right.mean(), abs=0.03)
    accuracies = [anatomy.predicted_accuracy(n) for n in (16, 256, 4096, 65536)]
    assert accuracies == sorted(accuracies, reverse=True)
    assert accuracies[0] > 0.97
    assert accuracies[-1] < 0.2
