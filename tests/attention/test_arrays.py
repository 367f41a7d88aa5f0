"""NumPy arrays: what the common tests of all implementations do not try."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import sharpmax
from sharpmax._attention import arrays
from sharpmax.normalisers import Softmax
from sharpmax.policies import EntropyTarget, Exponential, Hard, Policy

Array = np.ndarray[Any, Any]

PROGRAM = """
import sys
import numpy as np, sharpmax
from sharpmax.policies import Exponential
x = np.ones((2, 5, 8), np.float32)
output = sharpmax.attention(x, x, x, is_causal=True, policy=Exponential(1.0))
assert np.allclose(output, 1) and output.shape == x.shape
assert sharpmax.attention_statistics(x, x).count.tolist() == [[5] * 5] * 2
assert not {"torch", "jax"} & sys.modules.keys()
"""


def made(*shape: int, seed: int = 0) -> list[Array]:
    return list(np.random.default_rng(seed).standard_normal((3, *shape)))


def test_no_framework_is_imported() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_any_layout_of_memory() -> None:
    query, key, value = made(2, 3, 20, 6)
    expected = sharpmax.attention(query, key, value, policy=Exponential(0.5))
    fields = np.zeros(key.shape, [("pad", "i1"), ("number", "f8")])
    fields["number"] = key
    layouts = {
        "big endian": key.astype(">f8"),
        "unaligned": fields["number"],
        "backwards": np.flip(np.flip(key, (2, 3)).copy(), (2, 3)),
        "columns apart": np.asfortranarray(key),
        "read only": np.broadcast_to(key, (1, *key.shape))[0],
    }
    for name, array in layouts.items():
        ours = sharpmax.attention(query, array, value, policy=Exponential(0.5))
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("shape", [(7, 4), (3, 7, 4), (2, 2, 3, 7, 4), (0, 3, 7, 4)])
def test_leading_axes_are_optional(shape: tuple[int, ...]) -> None:
    query, key, value = made(*shape)
    output, statistics = sharpmax.attention(query, key, value, return_statistics=True)
    assert output.shape == shape
    assert statistics.mass.shape == shape[:-1]
    alone = sharpmax.attention(query, key[..., :1, :], value[..., :1, :])
    np.testing.assert_allclose(alone, np.broadcast_to(value[..., :1, :], shape))


class Halfway(Policy):
    """A rule without a closed form that reads the tempered rows."""

    needs_logits = True

    def inverse_temperature(self, statistics: Any, tempered: Any = None) -> Any:
        entropy, variance = tempered(np.full_like(statistics.mass, 2.0))
        return 1.0 + entropy + variance


def test_a_policy_that_only_python_knows() -> None:
    query, key, value = made(1, 2, 9, 8)
    sink = np.array([0.3, -1.0])
    weights = sharpmax.attention(
        query, key, np.broadcast_to(np.eye(9), (1, 2, 9, 9)), policy=Halfway()
    )
    logits = query @ key.swapaxes(-1, -2) / np.sqrt(8)
    np.testing.assert_allclose(weights, sharpmax.softmax(logits, Halfway()), atol=1e-12)
    # The same rule in closed form and in Python.
    target = EntropyTarget(1.0)
    fused = sharpmax.attention(query, key, value, policy=target, sink=sink)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EntropyTarget, "kernel_form", lambda _: None)
        composed = sharpmax.attention(query, key, value, policy=target, sink=sink)
    np.testing.assert_allclose(fused, composed, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"key": [1.0]}, TypeError, "key: expected a NumPy array, got list"),
        ({"key": np.ma.zeros((1, 2, 5, 4))}, TypeError, "key: .*got MaskedArray"),
        ({"query": np.zeros((5, 4), int)}, TypeError, "query: expected one of float32.*int64"),
        ({"key": np.zeros((1, 2, 5, 4), "f4")}, TypeError, "key: expected the dtype of query"),
        ({"key": np.zeros(4)}, ValueError, r"key: expected shape .*got \(4,\)"),
        (
            {"query": np.zeros((2, 2, 5, 4)), "key": np.zeros((3, 2, 5, 4))},
            ValueError,
            "leading axes",
        ),
        ({"value": np.zeros((1, 2, 3, 4))}, ValueError, "value: length: expected 5, got 3"),
        ({"attn_mask": np.zeros(5, int)}, TypeError, "attn_mask: expected a boolean or floating"),
        ({"attn_mask": np.zeros(4, bool)}, ValueError, "attn_mask: .*broadcasts"),
        ({"sink": np.zeros(3)}, ValueError, r"sink: .*shape \(2,\), got \(3,\)"),
        ({"sink": [0.0, 0.0]}, TypeError, "sink: expected a floating array"),
        ({"policy": 2.0}, TypeError, "policy: expected a sharpmax policy"),
        ({"policy": Exponential([1.0, 2.0, 3.0])}, ValueError, "reference: .*2 query heads"),
        ({"dropout_p": 0.5}, NotImplementedError, "dropout_p: only torch tensors have it"),
        ({"normaliser": Softmax()}, NotImplementedError, "normaliser: only torch tensors have it"),
        ({"impl": "triton"}, NotImplementedError, "impl='triton': only 'cpu' and 'auto' serve"),
        (
            {"policy": Hard(), "sink": np.zeros(2), "sink_role": "apart"},
            ValueError,
            "sink_role: expected 'key' with Hard",
        ),
    ],
)
def test_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    array = np.zeros((1, 2, 5, 4))
    arguments: dict[str, Any] = {"query": array, "key": array, "value": array} | change
    with pytest.raises(error, match=message):
        sharpmax.attention(**arguments)


TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)


@pytest.mark.parametrize("queries", [1, 9, 16, 24])
@pytest.mark.parametrize("policy", [Exponential(2.0), Hard(), None], ids=repr)
def test_few_rows_over_one_key_head_use_all_threads(
    queries: int, policy: Policy | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    def run(task: int, context: int, threads: int, _: int) -> None:
        used.append(threads)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(TASK(task), [context] * threads))

    parallel = PARALLEL(run)
    address = ctypes.cast(parallel, ctypes.c_void_p).value
    options = {"is_causal": True, "alignment": "lower_right", "sink": np.array([0.5], "f4")}
    query, *_ = (x.astype("f4") for x in made(1, 1, queries, 64))
    key, value, _ = (x.astype("f4") for x in made(1, 1, 5000, 64, seed=1))
    arguments = (query, key, value)
    found = []
    for threads in (1, 2, 3):
        framework = arrays._NUMPY._replace(threads=lambda n=threads: n, parallel=address)
        monkeypatch.setattr(arrays, "_NUMPY", framework)
        used.clear()
        twice = [sharpmax.attention(*arguments, policy=policy, **options) for _ in range(2)]
        np.testing.assert_array_equal(*twice)
        found.append(twice[0])
        assert max(used, default=1) == threads
    exact = [torch.from_numpy(x).double() for x in arguments]
    options["sink"] = torch.tensor([0.5])
    expected = sharpmax.attention(*exact, policy=policy, impl="reference", **options).numpy()
    for output in found:
        np.testing.assert_allclose(output, expected, atol=2e-5)
