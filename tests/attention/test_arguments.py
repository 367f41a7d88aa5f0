"""Wrong arguments are refused by name, before any kernel runs."""

from __future__ import annotations

import pytest
import torch

import sharpmax
from attention_cases import of_tensors
from sharpmax.policies import Exponential, Hard, Identity, Policy

Q = torch.randn(2, 4, 6, 8)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"query": Q[0, 0, 0]}, ValueError, r"query: expected shape \[..., heads.*got \(8,\)"),
        ({"query": [1.0]}, TypeError, "query: expected a torch tensor, got list"),
        ({"query": Q.long()}, TypeError, "query: expected one of .*got torch.int64"),
        ({"key": Q.double()}, TypeError, "key: expected the dtype of query.*float64"),
        ({"key": Q.to("meta")}, ValueError, "key: expected the device of query, cpu, got meta"),
        ({"key": Q[..., :4]}, ValueError, "key: width: expected 8, got 4"),
        ({"key": Q[:1].repeat(3, 1, 1, 1)}, ValueError, "leading axes that broadcast.*3, 4, 6, 8"),
        ({"key": Q[:, :2]}, ValueError, "key: heads .*enable_gqa.*expected 4, got 2"),
        ({"key": Q[:, :3], "enable_gqa": True}, ValueError, "divide the 4 query heads, got 3"),
        ({"value": Q[:, :, :3]}, ValueError, "value: length: expected 6, got 3"),
        ({"value": Q[:, :2]}, ValueError, "value: heads: expected 4, got 2"),
        ({"attn_mask": torch.ones(5).bool()}, ValueError, r"attn_mask: .*broadcasts .*got \(5,\)"),
        ({"attn_mask": torch.ones(6).long()}, TypeError, "attn_mask: expected a boolean or float"),
        ({"attn_mask": "causal"}, TypeError, "attn_mask: expected a boolean .*got str"),
        ({"scale": float("nan")}, ValueError, "scale: expected a finite number, got nan"),
        ({"scale": "1"}, TypeError, "scale: expected a number, got '1'"),
        ({"softcap": 0.0}, ValueError, "softcap: expected a number of at least 1.17"),
        ({"softcap": float("inf")}, ValueError, "softcap: expected a finite number"),
        ({"window": 0}, ValueError, "window: expected at least 1, got 0"),
        ({"window": 1.5}, TypeError, "window: expected an integer"),
        ({"sink": torch.zeros(3)}, ValueError, r"sink: .*shape \(4,\), got \(3,\)"),
        ({"sink": torch.zeros(4, dtype=torch.int64)}, TypeError, "sink: expected a floating"),
        ({"sink_role": "friend"}, ValueError, "sink_role: .*got 'friend'"),
        ({"alignment": "left"}, ValueError, "alignment: .*got 'left'"),
        ({"dropout_p": 1.5}, ValueError, "dropout_p: expected a number from 0 to 1, got 1.5"),
        ({"impl": "cuda"}, ValueError, "impl: expected one of auto, cpu.*got 'cuda'"),
        ({"policy": 2.0}, TypeError, "policy: expected a sharpmax policy or None, got 2.0"),
        ({"policy": Exponential([1.0, 2.0])}, ValueError, "Exponential.reference: .*4 query heads"),
        (
            {"policy": Hard(), "sink": torch.zeros(4), "sink_role": "apart"},
            ValueError,
            "sink_role: expected 'key' with Hard",
        ),
    ],
)
def test_refused(change: dict, error: type[Exception], message: str) -> None:
    arguments = {"query": Q, "key": Q, "value": Q, "policy": Identity()} | change
    with pytest.raises(error, match=message):
        sharpmax.attention(**arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"softcap": 1.0}, "softcap"),
        ({"sink": torch.zeros(4)}, "sink"),
        ({"dropout_p": 0.5}, "dropout_p"),
        ({"policy": Hard()}, "infinite beta"),
        ({"attn_mask": torch.randn(6, 6)}, "attn_mask: a bias"),
    ],
)
def test_composed_says_what_it_cannot_do(options: dict, message: str) -> None:
    arguments = {"policy": Identity()} | options
    with pytest.raises(NotImplementedError, match=f"impl='composed': .*{message}"):
        sharpmax.attention(Q, Q, Q, impl="composed", **arguments)
    sharpmax.attention(Q, Q, Q, **arguments)  # "auto" finds one that can


class Doubling(Policy):
    """A policy that only Python knows."""

    def inverse_temperature(self, statistics, tempered=None):
        return 1.0 + statistics.entropy()


@of_tensors("reference")
def test_a_policy_of_ones_own(impl: str) -> None:
    expected = sharpmax.attention(Q, Q, Q, policy=Doubling(), impl="reference")
    with torch.no_grad():
        for which in (impl, "auto"):
            ours = sharpmax.attention(Q, Q, Q, policy=Doubling(), impl=which)
            torch.testing.assert_close(ours, expected)


@of_tensors("reference")
def test_a_policy_of_ones_own_can_be_detached(impl: str) -> None:
    gradients = {}
    for which in ("reference", impl):
        query = Q.clone().requires_grad_()
        output = sharpmax.attention(
            query, Q, Q, policy=Doubling(), impl=which, detach_temperature=True
        )
        (gradients[which],) = torch.autograd.grad(output.square().sum(), query)
    torch.testing.assert_close(gradients[impl], gradients["reference"], atol=1e-5, rtol=1e-4)


def test_cpu_kernels_refuse_other_devices() -> None:
    meta = Q.to("meta")
    with pytest.raises(NotImplementedError, match="on the CPU, these are on meta"):
        sharpmax.attention(meta, meta, meta, policy=Identity(), impl="cpu")


def test_a_policy_that_fitted_other_heads_before_is_checked_again() -> None:
    policy = Exponential([0.5, 1.0, 1.5, 2.0])
    sharpmax.attention(Q, Q, Q, policy=policy)
    with pytest.raises(ValueError, match=r"Exponential\.reference: .*2 query heads"):
        sharpmax.attention(Q[:, :2], Q[:, :2], Q[:, :2], policy=policy)
