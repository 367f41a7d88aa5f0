from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import sharpmax
from experiments.max_retrieval import evaluation
from experiments.max_retrieval.evaluation import (
    Streamed,
    Weigh,
    accuracy,
    accuracy_as_trained,
    unlabelled_sets,
)
from experiments.max_retrieval.head import Heads
from experiments.max_retrieval.inference import inference_methods, reference_entropy
from experiments.max_retrieval.profile import Profile
from experiments.max_retrieval.task import Sets, sample
from sharpmax import normalisers, policies


def _steep() -> Heads:
    """A head with large logits, as trained ones have."""
    heads = Heads([3], width=32).requires_grad_(False)
    heads.priority_weight *= 10
    heads.q *= 40
    return heads


def _ways() -> list[Weigh]:
    ways = [
        normalisers.Softmax(),
        normalisers.Softmax(policies.Exponential(1.0)),
        normalisers.Hard(),
    ]
    return [lambda logits, _, way=way: way.weights(logits) for way in ways]


def _plain(heads: Heads, sets: Sets) -> torch.Tensor:
    """All at once, in double precision."""
    heads = copy.deepcopy(heads).double()
    hidden = heads.hidden(
        torch.from_numpy(sets.priorities)[None], torch.from_numpy(sets.classes)[None]
    )
    probes = heads.probes(torch.from_numpy(sets.queries)[None])
    logits = heads.logits(hidden, probes)[0, :, 0]
    weights = torch.stack([weigh(logits, 0) for weigh in _ways()], 1)
    scores = heads.scores((weights @ hidden[0]).flatten(0, 1)[None])[0]
    return scores.reshape(len(logits), len(_ways()), 10)


@pytest.mark.parametrize("n", [5, 300, 5000])
def test_streamed_is_the_head_whatever_the_blocks(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    heads, sets = _steep(), sample(np.random.default_rng(0), 3, n)
    whole = Streamed(heads).scores(_ways(), sets)
    torch.testing.assert_close(whole.double(), _plain(heads, sets), rtol=1e-3, atol=1e-3)
    monkeypatch.setattr(evaluation, "_ITEMS", 128)
    torch.testing.assert_close(Streamed(heads).scores(_ways(), sets), whole, rtol=1e-3, atol=1e-3)


def test_the_profile_is_the_head_in_double_precision() -> None:
    heads, sets = _steep(), sample(np.random.default_rng(0), 3, 4000)
    profile = Profile(heads)
    double = copy.deepcopy(heads).double()
    hidden = double.hidden(
        torch.from_numpy(sets.priorities)[None], torch.from_numpy(sets.classes)[None]
    )
    probes = double.probes(torch.from_numpy(sets.queries)[None])
    logits = double.logits(hidden, probes)[0, :, 0]
    spread = logits.max() - logits.min()
    assert spread > 100
    assert (profile.logits(sets) - logits).abs().max() < 1e-10 * spread
    torch.testing.assert_close(
        profile.scores(_ways(), sets), _plain(heads, sets), rtol=1e-9, atol=1e-9
    )


def test_a_class_blind_profile_gives_every_class_the_same_logit() -> None:
    heads = _steep()
    sets = sample(np.random.default_rng(0), 1, 10)
    same = Sets(np.full((1, 10), 0.7), np.arange(10, dtype=np.uint8)[None], sets.queries)
    plain, blind = Profile(heads).logits(same), Profile(heads, class_blind=True).logits(same)
    assert np.ptp(plain.numpy()) > 0.1
    assert np.ptp(blind.numpy()) < 1e-12 * blind.abs().max()
    torch.testing.assert_close(blind.mean(), plain.mean())


def test_as_trained_is_the_forward_pass() -> None:
    heads = _steep()
    softmax = {"softmax": _ways()[:1]}
    streamed = accuracy(Streamed(heads), softmax, 64, 300)["softmax"]
    assert accuracy_as_trained(heads, 64, 300) == pytest.approx(streamed, abs=0.01)


def test_test_sets_repeat_and_are_neither_those_of_calibration_nor_of_other_sizes() -> None:
    one, again = (list(evaluation.test_sets(600, 30)) for _ in range(2))
    assert [len(few.queries) for few in one] == [13, 13, 4]
    assert all(np.array_equal(a.priorities, b.priorities) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one[0].priorities[0], one[1].priorities[0])
    assert not np.array_equal(unlabelled_sets(600, 13).priorities, one[0].priorities)


def test_several_ways_count_as_right_if_one_is() -> None:
    heads = _steep()
    ways = _ways()
    alone = accuracy(Streamed(heads), {str(i): [way] for i, way in enumerate(ways)}, 32, 200)
    together = accuracy(Streamed(heads), {"any": ways}, 32, 200)["any"]
    assert max(alone.values()) <= together <= sum(alone.values())


def test_methods_at_inference_are_calibrated_to_the_head_and_differ() -> None:
    heads = _steep()
    logits = Streamed(heads).logits(unlabelled_sets(16))
    methods = inference_methods(logits)
    assert list(inference_methods(logits, ["hard", "paper"])) == ["hard", "paper"]
    rows = Streamed(heads).logits(sample(np.random.default_rng(1), 60, 2000))
    reference = reference_entropy(logits)
    plain = sharpmax.entropy(rows)
    # Rows that are all but flat have logits that single precision can hardly tell apart.
    rows = rows[(plain > reference + 0.5) & (plain < 6)][:20]
    plain = sharpmax.entropy(rows)
    assert len(rows) == 20, "these rows have dispersed"

    def entropy(name: str) -> torch.Tensor:
        (weigh,) = methods[name]
        weights = weigh(rows, 2000)
        assert weights.shape == rows.shape
        torch.testing.assert_close(weights.sum(-1), torch.ones(20))
        return -torch.special.xlogy(weights, weights).sum(-1)

    for name in methods:
        if name not in ("softmax", "oracle"):
            assert (entropy(name) <= plain + 1e-4).all(), name
    torch.testing.assert_close(
        entropy("entropy-target"), torch.full((20,), reference), rtol=1e-2, atol=1e-2
    )
    assert (entropy("exponential") < plain - 0.3).all()
    assert (entropy("fitted") < plain - 0.3).all()
    assert len(methods["oracle"]) > 10
    (log_length,) = methods["log-length"]
    expected = sharpmax.softmax(rows, policies.LogLength(train_length=16))
    torch.testing.assert_close(log_length(rows, 2000), expected)
    few = rows.topk(1500).values
    torch.testing.assert_close(log_length(few, 2000).amax(-1), expected.amax(-1), rtol=1e-2, atol=0)
