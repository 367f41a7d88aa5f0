from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import oracle
import sharpmax
from frameworks import Framework

INF = float("inf")


def logits_of(scale: float = 30.0) -> st.SearchStrategy[np.ndarray]:
    """Rows of finite logits, some of them masked by -inf."""
    elements = st.one_of(st.floats(-scale, scale, width=32), st.just(-INF))
    # Few shapes: every new one is compiled anew by JAX.
    shapes = st.sampled_from([(1,), (7,), (3, 5), (2, 3, 4)])
    return hnp.arrays(np.float32, shapes, elements=elements)


@given(values=logits_of())
def test_entropy_and_logsumexp_match_the_definition(
    framework: Framework, values: np.ndarray
) -> None:
    measured = sharpmax.statistics(framework.array(values))
    rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
    expected = np.array([oracle.entropy(row) for row in rows]).reshape(values.shape[:-1])
    np.testing.assert_allclose(framework.numpy(measured.entropy()), expected, atol=2e-5)
    expected = np.logaddexp.reduce(values.astype(np.float64), axis=-1)
    np.testing.assert_allclose(framework.numpy(measured.logsumexp()), expected, atol=1e-5)
    np.testing.assert_array_equal(framework.numpy(measured.count), (values > -INF).sum(-1))


@given(values=logits_of(), data=st.data())
def test_any_split_in_any_order_merges_to_the_whole(
    framework: Framework, values: np.ndarray, data: st.DataObject
) -> None:
    n = values.shape[-1]
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=3)))
    blocks = np.split(values, cuts, axis=-1)  # with empty ones among them
    order = data.draw(st.permutations(range(len(blocks))))
    merged = sharpmax.merge_all(sharpmax.statistics(framework.array(blocks[k])) for k in order)
    whole = sharpmax.statistics(framework.array(values))
    for name in whole._fields:
        ours, theirs = framework.numpy(getattr(merged, name)), framework.numpy(getattr(whole, name))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5, err_msg=name)


@given(values=logits_of())
def test_merging_is_associative(values: np.ndarray) -> None:
    a, b, c = (sharpmax.statistics(values.astype(np.float64) * k) for k in (1.0, -0.5, 2.0))
    left, right = a.merge(b).merge(c), a.merge(b.merge(c))
    for one, other in zip(left, right, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@given(
    values=hnp.arrays(np.float32, (2, 33), elements=st.floats(-1, 1, width=32)),
    exponent=st.integers(0, 38),
)
def test_entropy_stays_between_0_and_log_count_at_any_magnitude(
    framework: Framework, values: np.ndarray, exponent: int
) -> None:
    with np.errstate(under="ignore"):
        values = (values * np.float32(3.0 * 10.0**exponent)).astype(np.float32)
    measured = sharpmax.statistics(framework.array(values))
    entropy = framework.numpy(measured.entropy())
    assert (entropy >= 0).all()
    assert (entropy <= np.log(values.shape[-1]) + 1e-5).all()


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_axis(framework: Framework, axis: int) -> None:
    values = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    ours = sharpmax.entropy(framework.array(values), axis=axis)
    theirs = sharpmax.entropy(np.moveaxis(values, axis, -1))
    np.testing.assert_allclose(framework.numpy(ours), theirs, atol=1e-6)


def test_where_and_minus_infinity_are_the_same(framework: Framework) -> None:
    generator = np.random.default_rng(1)
    values = generator.normal(size=(6, 9)).astype(np.float32)
    visible = generator.random((6, 9)) < 0.5
    visible[0] = False
    poisoned = np.where(visible, values, np.nan)  # what is invisible may hold anything
    ours = sharpmax.statistics(framework.array(poisoned), where=framework.mask(visible))
    theirs = sharpmax.statistics(framework.array(np.where(visible, values, -INF)))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(framework.numpy(one), framework.numpy(other))


def test_where_broadcasts(framework: Framework) -> None:
    visible = np.array([True, False, True])
    measured = sharpmax.statistics(framework.array(np.zeros((2, 3))), where=framework.mask(visible))
    np.testing.assert_array_equal(framework.numpy(measured.count), [2, 2])


@pytest.mark.parametrize("row", [[-INF, -INF], []])
def test_a_row_with_nothing_in_it(framework: Framework, row: list[float]) -> None:
    measured = sharpmax.statistics(framework.array(np.array([row, row])))
    for values, expected in zip(measured, (-INF, 0, 0, 0), strict=True):
        np.testing.assert_array_equal(framework.numpy(values), [expected] * 2)
    np.testing.assert_array_equal(framework.numpy(measured.entropy()), [0, 0])
    np.testing.assert_array_equal(framework.numpy(measured.logsumexp()), [-INF, -INF])


def test_a_nan_stays_in_its_row(framework: Framework) -> None:
    entropy = sharpmax.entropy(framework.array([[np.nan, 0.0], [0.0, 0.0]]))
    np.testing.assert_allclose(framework.numpy(entropy), [np.nan, np.log(2)], atol=1e-6)


def test_infinite_logits_share_the_row(framework: Framework) -> None:
    values = [[INF, 5.0, INF, -INF], [INF, 0.0, 0.0, 0.0]]
    measured = sharpmax.statistics(framework.array(values))
    np.testing.assert_array_equal(framework.numpy(measured.maximum), [INF, INF])
    np.testing.assert_array_equal(framework.numpy(measured.mass), [2, 1])
    np.testing.assert_array_equal(framework.numpy(measured.moment), [0, 0])
    np.testing.assert_array_equal(framework.numpy(measured.count), [3, 4])
    other = sharpmax.statistics(framework.array([[INF], [3.0]]))
    both = measured.merge(other)
    np.testing.assert_array_equal(framework.numpy(both.mass), [3, 1])
    np.testing.assert_allclose(framework.numpy(both.entropy()), [np.log(3), 0], atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_measured_in_single(framework: Framework, dtype: str) -> None:
    values = framework.array(np.zeros(3000), dtype)
    measured = sharpmax.statistics(values)
    # 1/3000 summed 3000 times would be far off in half precision.
    assert float(measured.entropy()) == pytest.approx(np.log(3000), abs=1e-5)
    assert framework.dtype(measured.mass) == "float32"


def test_kind_and_dtype_are_kept(framework: Framework) -> None:
    for dtype in ("float32", "float64"):
        if framework.name == "jax" and dtype == "float64":
            continue  # JAX has single precision unless it is told otherwise
        for values in sharpmax.statistics(framework.array(np.zeros((2, 3)), dtype))[:3]:
            assert framework.owns(values)
            assert framework.dtype(values) == dtype
    count = sharpmax.statistics(framework.array(np.zeros((2, 3)))).count
    assert framework.dtype(count).startswith("int")


def test_lists_and_integers_are_taken_as_numpy() -> None:
    assert sharpmax.entropy([0, 0, 0, 0]) == pytest.approx(np.log(4))
    assert sharpmax.entropy(torch.zeros(4, dtype=torch.int64)).item() == pytest.approx(np.log(4))


def test_gradient_of_the_entropy_is_that_of_the_definition() -> None:
    values = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda e: tuple(sharpmax.statistics(e)[:3]), values)
    assert torch.autograd.gradcheck(sharpmax.entropy, values)
    jax_gradient = jax.grad(lambda e: sharpmax.entropy(e).sum())(
        jnp.asarray(values.detach().numpy())
    )
    sharpmax.entropy(values).sum().backward()
    np.testing.assert_allclose(jax_gradient, values.grad, atol=1e-6)


@pytest.mark.parametrize("row", [[-INF, -INF, -INF], [INF, 0.0, -INF], [1e30, -1e30, 0.0]])
def test_no_nan_in_gradients(row: list[float]) -> None:
    values = torch.tensor([row, [1.0, 2.0, 3.0]], requires_grad=True)
    (sharpmax.entropy(values).sum() + sharpmax.statistics(values).logsumexp()[1]).backward()
    assert values.grad is not None
    assert torch.isfinite(values.grad).all()
    gradient = jax.grad(lambda e: sharpmax.entropy(e).sum())(jnp.asarray(values.detach().numpy()))
    assert bool(jnp.isfinite(gradient).all())


def test_differences_beyond_the_range_of_the_dtype(framework: Framework) -> None:
    largest = float(np.finfo(np.float32).max)
    rows = np.array([[largest, -largest], [-largest, largest]], dtype=np.float32)
    whole = sharpmax.statistics(framework.array(rows))
    left, right = (sharpmax.statistics(framework.array(rows[:, i : i + 1])) for i in (0, 1))
    for measured in (whole, left.merge(right)):
        np.testing.assert_array_equal(framework.numpy(measured.maximum), [largest, largest])
        np.testing.assert_array_equal(framework.numpy(measured.mass), [1.0, 1.0])
        np.testing.assert_array_equal(framework.numpy(measured.moment), [0.0, 0.0])
        np.testing.assert_array_equal(framework.numpy(measured.entropy()), [0.0, 0.0])


def test_jit_vmap_and_compile() -> None:
    values = np.random.default_rng(2).normal(size=(4, 3, 6)).astype(np.float32)
    expected = sharpmax.entropy(values)
    jitted = jax.jit(sharpmax.statistics)(jnp.asarray(values))
    assert isinstance(jitted, sharpmax.RowStatistics)
    np.testing.assert_allclose(jitted.entropy(), expected, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(sharpmax.entropy)(jnp.asarray(values)), expected, atol=1e-6)
    mapped = torch.func.vmap(sharpmax.entropy)(torch.tensor(values))
    np.testing.assert_allclose(mapped, expected, atol=1e-6)
    compiled = torch.compile(sharpmax.statistics, fullgraph=True, backend="aot_eager")(
        torch.tensor(values)
    )
    np.testing.assert_allclose(compiled.entropy(), expected, atol=1e-6)


def test_a_row_that_does_not_fit_in_memory() -> None:
    # 100 million logits in blocks of a million. A fresh process, so that its peak is its own.
    program = """
import resource, numpy, sharpmax
def blocks():
    generator = numpy.random.default_rng(0)
    for _ in range(100):
        yield sharpmax.statistics(generator.random(1_000_000, dtype=numpy.float32))
first = sharpmax.statistics(numpy.zeros(1_000_000, dtype=numpy.float32))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
whole = sharpmax.merge_all(blocks())
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(whole.count, whole.entropy(), after - before)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    count, entropy, grown_kib = result.stdout.split()
    assert int(count) == 100_000_000
    # Uniform logits in [0, 1]: H = log n - E_p[e] + log E[exp e], with E_p[e] = 1 / (e - 1).
    assert float(entropy) == pytest.approx(
        np.log(1e8) + np.log(np.e - 1) - 1 / (np.e - 1), abs=1e-3
    )
    assert int(grown_kib) < 40_000  # all of them would be 400 MB


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sharpmax.statistics(np.float32(1.0)), ValueError, "logits: expected at least one"),
        (lambda: sharpmax.statistics(np.zeros((2, 3)), axis=2), ValueError, "axis: .*got 2"),
        (
            lambda: sharpmax.statistics(np.zeros(3), where=np.ones(4, bool)),
            ValueError,
            r"where: expected a shape that broadcasts to \(3,\), got \(4,\)",
        ),
        (
            lambda: sharpmax.statistics(torch.zeros(3), where=torch.ones(2, 3, dtype=torch.bool)),
            ValueError,
            "where: expected a shape",
        ),
        (lambda: sharpmax.statistics(np.zeros(3), where=np.ones(3)), TypeError, "where: .*bool"),
        (lambda: sharpmax.statistics(np.zeros(3, complex)), TypeError, "logits: expected real"),
        (
            lambda: sharpmax.statistics(torch.zeros(3), where=jnp.ones(3, bool)),
            TypeError,
            "one framework",
        ),
        (lambda: sharpmax.merge_all([]), ValueError, "blocks: expected at least one"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()
