"""The model of the cost sends what the code sends."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.distributed_cost.measure import measure, network_of
from experiments.distributed_cost.model import (
    METHODS,
    Network,
    Shape,
    Transfer,
    backward_transfers,
    seconds,
    transfers,
)
from experiments.distributed_cost.tables import all_tables, gloo_rows, tables

SHAPE = Shape(2, 4, 2, 8, 12, 16, 4)


def test_the_model_has_the_messages_of_the_code() -> None:
    found = measure(2, {"one": SHAPE}, repeats=1)
    assert [each["method"] for each in found["calls"]] == list(METHODS)
    for each in found["calls"]:
        expected = transfers(each["method"], SHAPE, 2)
        assert each["kinds"] == [part.kind for part in expected], each["method"]
        assert each["sizes"] == [part.size for part in expected], each["method"]
        assert each["seconds"] > 0
        behind = backward_transfers(each["method"], SHAPE, 2)
        assert each["backward"]["kinds"] == [part.kind for part in behind], each["method"]
        assert each["backward"]["sizes"] == [part.size for part in behind], each["method"]
    data = {"gloo": [found], "shapes": {"one": SHAPE.plain()}, "repeats": 1}
    assert len(gloo_rows(data)) == len(METHODS)
    assert all(table.rows for table in all_tables(data).values())


def test_latency_and_bandwidth() -> None:
    exact = Network(1e-5, 1e9)
    shifts = [[size, exact.latency + size / exact.bandwidth] for size in (1000, 1_000_000)]
    found = network_of(shifts)
    assert found.latency == pytest.approx(exact.latency)
    assert found.bandwidth == pytest.approx(exact.bandwidth)


@pytest.mark.parametrize(
    ("kind", "steps", "sent"),
    [
        ("all_reduce", 6, 150.0),
        ("all_gather", 3, 300.0),
        ("all_to_all", 3, 75.0),
        ("shift", 1, 100),
    ],
)
def test_steps_and_bytes_of_collectives(kind: str, steps: int, sent: float) -> None:
    transfer = Transfer(kind, 100)
    assert transfer.steps(4) == steps
    assert transfer.sent(4) == sent
    assert transfer.seconds(4, Network(1.0, 100.0)) == pytest.approx(steps + sent / 100)


def test_a_tree_does_not_depend_on_the_keys_and_a_ring_does() -> None:
    network = Network(0.0, 1e9)
    longer = Shape(**{**SHAPE.plain(), "keys": 2 * SHAPE.keys})
    assert seconds("tree", longer, 4, network) == seconds("tree", SHAPE, 4, network)
    ring = [seconds("ring", shape, 4, network, settings=False) for shape in (SHAPE, longer)]
    assert ring[1] == pytest.approx(2 * ring[0])


def test_published_results_make_tables() -> None:
    results = Path(__file__).parents[3] / "experiments/distributed_cost/results"
    assert set(tables(results)) == {"distributed-bytes", "distributed-model", "distributed-gloo"}
