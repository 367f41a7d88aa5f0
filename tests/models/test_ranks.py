"""Two ranks share the inputs of diagnose, calibrate and evaluate; the result is that of one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import model_calls
from gloo import Pool, RankFailedError
from sharpmax.models import Evaluation


@pytest.fixture(scope="module")
def two() -> Iterator[Pool]:
    pool = Pool(2, modules=("model_calls",))
    yield pool
    pool.close()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As the ranks have."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def assert_alike(ours: Any, theirs: Any, where: str = "", tolerance: float = 1e-6) -> None:
    """Assert that counts, names and verdicts are equal, and other numbers to 1e-6."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        for key in ours:
            assert_alike(ours[key], theirs[key], f"{where}.{key}", tolerance)
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs), where
        for n, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_alike(mine, other, f"{where}[{n}]", tolerance)
    elif isinstance(ours, float):
        assert math.isclose(ours, theirs, rel_tol=tolerance, abs_tol=tolerance), where
    else:
        assert ours == theirs, where


# Sharing itself.


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_each_item_is_done_once_and_in_order(two: Pool, count: int) -> None:
    items = [float(n + 1) for n in range(count)]
    expected = [1.0 / x for x in items]
    assert two.call(model_calls.squares, (items,), (items,)) == [expected, expected]
    assert model_calls.squares(items) == expected


def test_an_error_on_one_rank_is_one_of_all(two: Pool) -> None:
    with pytest.raises(RankFailedError) as caught:
        two.call(model_calls.squares, ([1.0, 0.0],), ([1.0, 0.0],))
    assert caught.value.raised[1][0] == "ZeroDivisionError"
    kind, text = caught.value.raised[0]
    assert kind == "RanksDisagreeError"
    assert "another rank cannot go on: rank 1: " in text
    assert two.call(model_calls.squares, ([4.0],), ([4.0],)) == [[0.25], [0.25]]


def test_other_numbers_of_items(two: Pool) -> None:
    with pytest.raises(RankFailedError) as caught:
        two.call(model_calls.squares, ([1.0, 2.0],), ([1.0],))
    for kind, text in caught.value.raised.values():
        assert kind == "RanksDisagreeError"
        assert "items: 2 on rank 0; 1 on rank 1" in text.replace(", ", "; ")


def test_the_first_rank_does_what_is_done_once(two: Pool, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("first", "second")]
    assert two.call(model_calls.once, *[(path,) for path in paths]) == ["from 0", "from 0"]
    assert [path.exists() for path in paths] == [True, False]
    missing = tmp_path / "none" / "file"
    with pytest.raises(RankFailedError) as caught:
        two.call(model_calls.once, (missing,), (missing,))
    kinds = [caught.value.raised[rank][0] for rank in range(2)]
    assert kinds == ["FileNotFoundError", "RanksDisagreeError"]


# The verbs.


@pytest.mark.parametrize("count", [1, 3])
def test_diagnose(two: Pool, count: int) -> None:
    given = model_calls.tokens(count, 64), {"lengths": [16, 32, 64], "examples": 2}
    one, told, passes = model_calls.diagnose(*given)
    both = two.call(model_calls.diagnose, given, given)
    for ours, _, _ in both:
        assert_alike(ours, one)
    assert passes == count
    assert [each[2] for each in both] == [count - count // 2, count // 2]
    assert told[-1] == both[0][1][-1] == 1.0
    assert both[1][1] == [], "only the first rank shows progress"


def test_diagnose_inputs_by_size(two: Pool) -> None:
    given = {n: model_calls.tokens(2, n, seed=n).tolist() for n in (12, 24)}, {"unit": "elements"}
    one = model_calls.diagnose(*given)[0]
    for ours, _, _ in two.call(model_calls.diagnose, given, given):
        assert_alike(ours, one)


@pytest.mark.parametrize("count", [1, 3])
def test_diagnose_any_module(two: Pool, count: int) -> None:
    one = model_calls.diagnose_module(count)
    for ours in two.call(model_calls.diagnose_module, (count,), (count,)):
        assert_alike(ours, one)


@pytest.mark.parametrize("family", ["constant+gain", "entropy"])
def test_calibrate(two: Pool, family: str) -> None:
    given = 0, {"family": family}
    one, passes, stages = model_calls.calibrate(*given)
    assert one["layers"], "something is fitted and kept"
    both = two.call(model_calls.calibrate, given, given)
    for ours, theirs, _ in both:
        assert_alike(ours, one)
        assert 0.4 * passes < theirs < 0.65 * passes
    assert [each[2] for each in both] == [stages, 0]


def test_calibrate_any_module(two: Pool) -> None:
    one = model_calls.calibrate_module()
    for ours in two.call(model_calls.calibrate_module, (), ()):
        assert_alike(ours, one)


def test_an_objective_that_fails_on_one_rank(two: Pool) -> None:
    with pytest.raises(RankFailedError) as caught:
        two.call(model_calls.broken_on, (1,), (1,))
    assert caught.value.raised[1][0] == "ArithmeticError"
    assert "rank 1: no such number" in caught.value.raised[0][1]


def test_other_data_on_one_rank(two: Pool) -> None:
    with pytest.raises(RankFailedError) as caught:
        two.call(model_calls.calibrate, (0, {}), (1, {}))
    for kind, text in caught.value.raised.values():
        assert kind == "RanksDisagreeError"
        assert "data: " in text
    inputs = [(model_calls.tokens(2, 64, seed), {"lengths": [16, 32]}) for seed in range(2)]
    with pytest.raises(RankFailedError) as caught:
        two.call(model_calls.diagnose, *inputs)
    assert {kind for kind, _ in caught.value.raised.values()} == {"RanksDisagreeError"}


def test_evaluate(two: Pool, tmp_path: Path) -> None:
    one, passes, steps = model_calls.evaluate(tmp_path / "one" / "evaluation.json", {})
    paths = [tmp_path / name / "evaluation.json" for name in ("first", "second")]
    both = two.call(model_calls.evaluate, *[(path, {}) for path in paths])
    for ours, theirs, _ in both:
        assert_alike(ours, one)
        assert theirs < passes
    assert sum(each[1] for each in both) == passes, "no question is asked twice"
    assert both[1][2] == 0, "only the first rank shows progress"
    assert 0 < both[0][2] < steps
    assert not paths[1].parent.exists(), "only the first rank writes"
    assert_alike(Evaluation.load(paths[0]).to_dict(), one)


def test_resume_an_evaluation(two: Pool, tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    one = model_calls.evaluate(path, {"tasks": ["passkey"]})[0]
    given = path, {"tasks": ["passkey", "text"], "resume": True}
    both = two.call(model_calls.evaluate, given, given)
    assert_alike(both[0][0], both[1][0])
    assert_alike(both[0][0]["results"][: len(one["results"])], one["results"])
    with pytest.raises(RankFailedError) as caught:
        two.call(model_calls.evaluate, (path, {}), (path, {}))
    assert caught.value.raised[0][0] == "FileExistsError"
    assert "another rank cannot go on: rank 0" in caught.value.raised[1][1]


def test_evaluate_any_module(two: Pool) -> None:
    one = model_calls.evaluate_module()
    for ours in two.call(model_calls.evaluate_module, (), ()):
        assert_alike(ours, one)


def test_one_rank_alone(two: Pool) -> None:
    inputs = model_calls.tokens(2, 32)
    one = model_calls.diagnose(inputs, {"lengths": [16, 32]})[0]
    nothing, ours = two.call(model_calls.diagnose_alone, (inputs,), (inputs,))
    assert nothing is None
    assert_alike(ours, one)


# Models that are spread over ranks.

KINDS = ["tensor parallel", "fully_shard", "fsdp of transformers"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    model_calls.llama().save_pretrained(path)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_heads_get_their_own_parameters(two: Pool, folder: Path, kind: str) -> None:
    plain, sharp, gradient, status = model_calls.sharpened(folder, "whole")
    found = two.call(model_calls.sharpened, (folder, kind), (folder, kind))
    for ours, theirs, _, rows in found:
        torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(theirs, sharp, atol=1e-5, rtol=1e-5)
        assert rows == status
    assert not torch.allclose(plain, sharp, atol=0.1)
    # With tensor parallelism each rank has the gradients of its own heads.
    gradients = [each[2] for each in found]
    if kind == "tensor parallel":
        assert [each.ne(0).tolist() for each in gradients] == [
            [True] * 2 + [False] * 2,
            [False] * 2 + [True] * 2,
        ]
        gradients = [sum(gradients)]
    for ours in gradients:
        torch.testing.assert_close(ours, gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_verbs_on_a_model_that_is_spread(two: Pool, folder: Path, kind: str) -> None:
    given = folder, kind
    one = model_calls.verbs(model_calls.load(folder, "whole"))
    for ours in two.call(model_calls.verbs_on_ranks, given, given):
        assert ours["fold"].startswith(("CannotFoldError", "NotImplementedError"))
        if kind == "tensor parallel":
            for verb in ("diagnose", "calibrate"):
                assert ours[verb].startswith("NotImplementedError: model: expected all heads")
            assert_alike(ours["evaluate"], one["evaluate"], tolerance=1e-5)
        else:
            for verb in ("diagnose", "calibrate", "evaluate"):
                assert_alike(ours[verb], one[verb])


@pytest.mark.parametrize("by_torch", [False, True])
def test_context_parallelism(two: Pool, folder: Path, by_torch: bool) -> None:
    """As the guide says; also within PyTorch's own context, which transformers' Trainer uses."""
    expected, gradient = model_calls.read_whole(folder)
    parts = two.call(model_calls.read_in_parts, *[(folder, by_torch)] * 2)
    for logits, positions, ours, refusal in parts:
        torch.testing.assert_close(logits, expected[:, positions], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(ours, gradient, atol=1e-5, rtol=1e-4)
        assert refusal.startswith("context_parallel: sharpened attention would see") == by_torch
    held = torch.cat([positions for _, positions, _, _ in parts])
    assert held.sort().values.tolist() == list(range(expected.shape[1]))
