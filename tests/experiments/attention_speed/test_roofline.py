"""The counts of the roofline against those that Triton's interpreter makes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sharpmax
from experiments.attention_speed import roofline
from experiments.attention_speed.__main__ import app
from experiments.attention_speed.work import Work, of_launch
from experiments.common.command import main
from sharpmax._attention.impl.triton.launch import Launch
from sharpmax.policies import Constant, EntropyTarget, Exponential, LogLength, Policy
from triton_interpreter import missing

interpreted = pytest.mark.skipif(missing() is not None, reason=missing() or "")
MILD = Exponential(6.0)
"""It leaves rows so dispersed that no block is skipped."""
Counted = list[tuple[Launch, Work]]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    """Every launch, and what the interpreter did for it."""
    from triton.runtime.interpreter import InterpreterBuilder as Builder

    numbers = {"operations": 0, "exponentials": 0}
    touched: dict[str, set[int]] = {"read": set(), "written": set()}

    def wrap(name: str, count: Any) -> None:
        plain = getattr(Builder, name)

        def counting(self: Any, *arguments: Any) -> Any:
            count(*arguments)
            return plain(self, *arguments)

        monkeypatch.setattr(Builder, name, counting)

    def dot(a: Any, b: Any, *_: Any) -> None:
        numbers["operations"] += 2 * a.data.shape[0] * a.data.shape[1] * b.data.shape[1]

    def exp(a: Any) -> None:
        numbers["exponentials"] += a.data.size

    def touch(kind: str, pointers: Any, mask: Any) -> None:
        size = pointers.get_element_ty().primitive_bitwidth // 8
        addresses = np.unique(pointers.data[np.broadcast_to(mask.data, pointers.data.shape)])
        for k in range(size):
            touched[kind].update((addresses.astype(np.int64) + k).tolist())

    wrap("create_dot", dot)
    wrap("create_exp", exp)
    wrap("create_exp2", exp)
    wrap("create_masked_load", lambda pointers, mask, *_: touch("read", pointers, mask))
    wrap("create_masked_store", lambda pointers, _, mask, *__: touch("written", pointers, mask))
    found: Counted = []
    run = Launch.run

    def recorded(launch: Launch) -> Launch:
        numbers.update(operations=0, exponentials=0)
        touched.update(read=set(), written=set())
        made = run(launch)
        read, written = len(touched["read"]), len(touched["written"])
        found.append((launch, Work(numbers["operations"], numbers["exponentials"], read, written)))
        return made

    monkeypatch.setattr(Launch, "run", recorded)
    yield found
    assert found


def attend(queries: int, keys: int, policy: Policy, **options: Any) -> None:
    dtype, width = options.pop("dtype", torch.float32), options.pop("width", 24)
    gradients = options.pop("gradients", False)
    generator = torch.Generator().manual_seed(0)
    query = 0.1 * torch.randn(2, 4, queries, width, generator=generator).to(dtype)
    key, value = torch.randn(2, 2, 2, keys, width, generator=generator).to(dtype).unbind()
    leaves = [x.detach().requires_grad_(gradients) for x in (query, key, value[..., :20])]
    with torch.set_grad_enabled(gradients):
        output = sharpmax.attention(
            *leaves, policy=policy, enable_gqa=True, impl="triton", **options
        )
    if gradients:
        torch.autograd.grad(output.square().sum(), leaves)


@interpreted
@pytest.mark.parametrize(
    ("case", "kernels"),
    [
        ((70, 100, MILD, {"is_causal": True}), ["measure", "attend", "attend"]),
        ((70, 300, MILD, {"window": 40, "softcap": 3.0}), ["measure"] + 2 * ["attend"]),
        ((40, 40, Constant(2.0), {"is_causal": True}), ["attend", "attend"]),
        ((40, 40, LogLength(2.0), {"is_causal": True}), ["count_visible", "attend", "attend"]),
        ((1, 700, MILD, {"dtype": torch.float16}), ["measure", "attend", "attend"]),
        ((1, 700, MILD, {"dtype": torch.bfloat16}), ["measure", "attend", "attend"]),
        ((1, 200, MILD, {"width": 40}), ["measure", "attend", "attend"]),
        (
            (33, 130, MILD, {"is_causal": True, "gradients": True}),
            ["measure", "attend", "attend", "by_query", "by_key", "by_query", "by_key"],
        ),
    ],
    ids=[
        "causal",
        "window",
        "one pass",
        "length",
        "decode, half",
        "decode, 12 bits",
        "decode",
        "gradients",
    ],
)
def test_counts_are_those_of_the_interpreter(
    case: tuple[Any, ...], kernels: list[str], counted: Counted
) -> None:
    queries, keys, policy, options = case
    attend(queries, keys, policy, **options)
    assert [launch.kernel for launch, _ in counted] == kernels
    for launch, work in counted:
        assert of_launch(launch) == work, (launch.kernel, launch.constants)


@interpreted
def test_an_entropy_target_measures_kept_logits_again(counted: Counted) -> None:
    attend(1, 200, EntropyTarget(5.0), width=40)
    again = [launch for launch, _ in counted if launch.constants.get("SCORES") == "read"]
    assert {launch.kernel for launch in again} == {"measure", "attend"}
    for launch, work in counted:
        assert of_launch(launch) == work, (launch.kernel, launch.constants)


@interpreted
@pytest.mark.parametrize("queries", [1, 40], ids=["decode", "many"])
def test_values_without_weight_are_not_multiplied(queries: int, counted: Counted) -> None:
    # All rows have their weight in the first of five blocks.
    key = torch.zeros(1, 1, 300, 16)
    key[..., :8, 0] = 40.0
    query = torch.zeros(1, 1, queries, 16)
    query[..., 0] = 4.0
    sharpmax.attention(query, key, key, policy=MILD, impl="triton")
    (_, attend, _) = counted
    launch, work = attend
    tile, width = launch.tile, launch.constants["BLOCK_V"]
    skipped = 4 * 2 * tile.rows * tile.keys * width
    assert work.operations == of_launch(launch).operations - skipped
    assert of_launch(launch).read - work.read >= (300 - tile.keys) * 16 * 4


@interpreted
@pytest.mark.parametrize("name", ["prefill", "training", "decode", "prefill, LogLength"])
def test_launches_are_those_of_a_call(name: str, counted: Counted) -> None:
    workload = next(each for each in roofline.WORKLOADS if each.name == name and each.width == 64)
    queries = 1 if name == "decode" else 20
    policy = LogLength(2.0) if "LogLength" in name else MILD
    options = {"is_causal": queries > 1, "gradients": name == "training", "width": 64}
    attend(queries, 200 if name == "decode" else 20, policy, dtype=torch.bfloat16, **options)
    expected = roofline.launches(workload, roofline.DEVICES["A100"])

    def told(launch: Launch) -> tuple[Any, ...]:
        skipped = ("WIDTH", "VALUE_WIDTH", "BLOCK_D", "BLOCK_V", "PRODUCT", "RATIO")
        constants = {k: v for k, v in launch.constants.items() if k not in skipped}
        return launch.kernel, launch.over_keys, constants

    assert [told(launch) for launch, _ in counted] == [told(launch) for launch in expected]


def test_a_mask_is_not_counted() -> None:
    launch = Launch("attend", {}, {"MASKED": "boolean"}, None)
    with pytest.raises(ValueError, match="with a mask"):
        of_launch(launch)


def test_a_launch_takes_as_long_as_its_slowest_resource() -> None:
    device = roofline.Device("sm_80", 100.0, 10.0, 2, 5.0, 1, "")
    assert device.seconds(Work(100, 0, 0, 0)) == 1.0
    assert device.seconds(Work(100, 20, 0, 0)) == 2.0
    assert device.seconds(Work(100, 20, 20, 10)) == 3.0


def test_the_command_writes_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(app, ["roofline", "--output", str(tmp_path)])
    assert exit_.value.code == 0
    assert "FlashAttention-2" in capsys.readouterr().out
    result = json.loads((tmp_path / "roofline.json").read_text(encoding="utf-8"))
    for record in result["records"]:
        assert set(record["devices"]) == {"A100", "H100", "B200", "MI300X"}
        for found in record["devices"].values():
            assert found["launches"]
            assert found["ratio"] == found["seconds"] / found["flash_seconds"]
    rows = {(row[0], row[1]): row for row in roofline.table(result).rows}
    assert rows["prefill", "128"][-1] == "operations ≤ 1.5: met"
    assert rows["decode", "64"][-1] == "bytes ≤ 1.05: met"
