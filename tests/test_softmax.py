from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import oracle
import sharpmax
from frameworks import Framework
from sharpmax.policies import Constant, Exponential, Hard

INF = float("inf")


@given(
    values=hnp.arrays(
        np.float32,
        st.sampled_from([(1, 1), (3, 7)]),
        elements=st.one_of(st.floats(-30, 30, width=32), st.just(-INF)),
    ),
    theta=st.floats(0.05, 20.0),
)
def test_matches_the_definition(framework: Framework, values: np.ndarray, theta: float) -> None:
    ours = framework.numpy(sharpmax.softmax(framework.array(values), Constant(1 / theta)))
    expected = [oracle.weights(row.astype(np.float64), 1 / theta) for row in values]
    np.testing.assert_allclose(ours, expected, atol=3e-5)


def test_without_a_policy_it_is_softmax() -> None:
    values = torch.randn(4, 7)
    torch.testing.assert_close(sharpmax.softmax(values), values.softmax(-1))
    torch.testing.assert_close(sharpmax.softmax(values, axis=0), values.softmax(0))


def test_keeps_kind_and_dtype(framework: Framework) -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        if (framework.name, dtype) == ("jax", "float64"):
            continue  # JAX has single precision unless it is told otherwise
        weights = sharpmax.softmax(framework.array(np.zeros((2, 4)), dtype), Exponential(0.5))
        assert framework.owns(weights)
        assert framework.dtype(weights) == dtype
        np.testing.assert_array_equal(framework.numpy(weights), np.full((2, 4), 0.25))


def test_special_rows(framework: Framework) -> None:
    values = [[-INF] * 4, [INF, 1.0, INF, -INF], [np.nan, 1.0, 2.0, -INF], [1e30, 0.0, 1e30, -1e30]]
    for policy in (None, Exponential(0.1), Hard()):
        weights = framework.numpy(sharpmax.softmax(framework.array(values), policy))
        np.testing.assert_array_equal(weights[0], 0)
        np.testing.assert_array_equal(weights[1], [0.5, 0, 0.5, 0])
        assert np.isnan(weights[2, :3]).all()
        np.testing.assert_array_equal(weights[3], [0.5, 0, 0.5, 0])


def test_a_temperature_far_from_1_keeps_far_logits_apart(framework: Framework) -> None:
    # At beta = 1e-4 a gap of 1e5 still is a factor of exp(-10), although exp(-1e5) is 0.
    weights = framework.numpy(sharpmax.softmax(framework.array([0.0, -1e5]), Constant(0.0001)))
    np.testing.assert_allclose(weights[1] / weights[0], np.exp(-10.0), rtol=1e-4)


def test_inverse_temperature_of_an_empty_row_is_1(framework: Framework) -> None:
    for policy in (Hard(), Constant(4.0), Exponential(0.0)):
        beta = sharpmax.inverse_temperature(framework.array([[-INF, -INF], [0.0, 1.0]]), policy)
        assert framework.numpy(beta)[0] == 1
        assert framework.numpy(beta)[1] > 1


def test_where_must_be_of_the_logits_shape() -> None:
    with pytest.raises(ValueError, match="where"):
        sharpmax.softmax(np.zeros(3), where=np.ones((2, 3), bool))
