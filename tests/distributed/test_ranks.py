"""What ranks exchange: shards, DTensors, settings that differ, ranks that end."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import sharpmax
from distributed_calls import (
    POLICY,
    attend_forever,
    attend_on_mesh,
    attend_with,
    cut_and_join,
    messages,
)
from gloo import Pool, RankFailedError
from sharpmax.distributed._layout import even_layout
from sharpmax.policies import Constant, Exponential


@pytest.fixture(scope="module")
def two() -> Iterator[Pool]:
    pool = Pool(2)
    yield pool
    pool.close()


def _tensors(queries: int = 6, keys: int = 10) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 2, queries, 8, generator=generator)
    key, value = torch.randn(2, 1, 2, keys, 8, generator=generator).unbind()
    return query, key, value


# Shards.


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
@pytest.mark.parametrize("length", [0, 1, 5, 16, 17])
def test_a_layout_holds_every_position_once(order: Any, length: int) -> None:
    layout = even_layout(length, 3, order)
    held = torch.cat([layout.positions(rank) for rank in range(3)])
    assert held.sort().values.tolist() == list(range(length))
    assert layout.in_order(held, 0).tolist() == list(range(length))
    assert layout.by_rank(torch.arange(length), 0).tolist() == held.tolist()
    assert max(layout.lengths) - min(layout.lengths) <= (1 if order == "contiguous" else 2)


def test_zigzag_gives_all_ranks_the_same_causal_work() -> None:
    zigzag = even_layout(64, 4, "zigzag")
    contiguous = even_layout(64, 4, "contiguous")
    work = [[int(x.positions(rank).sum()) for rank in range(4)] for x in (zigzag, contiguous)]
    assert len(set(work[0])) == 1
    assert max(work[1]) > 7 * min(work[1])


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
def test_shard_and_unshard(two: Pool, order: str) -> None:
    for same, inverse, gradient in two.call(cut_and_join, (order, 11), (order, 11)):
        assert same
        assert inverse
        assert (gradient == 3.0).all()  # 1 from the first rank and 2 from the second


# DTensors.


@pytest.mark.parametrize("sharded", [False, True])
def test_dtensors(two: Pool, sharded: bool) -> None:
    tensors = _tensors(queries=9, keys=9)  # shards of five and four
    leaves = [x.clone().requires_grad_() for x in tensors]
    exact = sharpmax.attention(*leaves, policy=POLICY, is_causal=True)
    exact.square().sum().backward()
    for whole, gradients in two.call(attend_on_mesh, (tensors, sharded), (tensors, sharded)):
        torch.testing.assert_close(whole, exact.detach(), atol=1e-6, rtol=1e-6)
        for ours, leaf in zip(gradients, leaves, strict=True):
            torch.testing.assert_close(ours, leaf.grad, atol=2e-6, rtol=2e-6)


# Settings that differ.


def _raised(pool: Pool, *options: dict[str, Any], tensors: Any = None) -> dict[int, Any]:
    tensors = [_tensors()] * len(options) if tensors is None else tensors
    with pytest.raises(RankFailedError) as caught:
        pool.call(attend_with, *zip(tensors, options, strict=True))
    assert len(caught.value.raised) == pool.size
    return caught.value.raised


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ({}, {"policy": Constant(2.0)}, "policy"),
        ({}, {"policy": Exponential(1.5)}, "policy"),
        ({}, {"is_causal": True}, "is_causal"),
        ({}, {"window": 4}, "window"),
        ({}, {"query_placement": "sharded"}, "query_placement"),
        ({}, {"sink": torch.zeros(2)}, "sink"),
    ],
)
def test_settings_that_differ_raise_on_every_rank(
    two: Pool, first: dict[str, Any], second: dict[str, Any], named: str
) -> None:
    for kind, text in _raised(two, first, second).values():
        assert kind == "RanksDisagreeError"
        assert f"{named}: " in text
        assert "on rank 0" in text
        assert "on rank 1" in text


def test_shapes_that_differ_raise_on_every_rank(two: Pool) -> None:
    tensors = [_tensors(), _tensors(queries=7)]
    for kind, text in _raised(two, {}, {}, tensors=tensors).values():
        assert kind == "RanksDisagreeError"
        assert "queries: 6 on rank 0, 7 on rank 1" in text


def test_an_error_of_one_rank_is_one_of_all(two: Pool) -> None:
    raised = _raised(two, {}, {"softcap": -1.0})
    assert raised[0][0] == "RanksDisagreeError"
    assert "rank 1: softcap" in raised[0][1]
    assert raised[1][0] == "ValueError"
    # And the group is as good as before.
    output, _ = two.call(attend_with, (_tensors(), {}), (_tensors(), {}))
    assert output.isfinite().all()


def test_lengths_that_zigzag_does_not_give(two: Pool) -> None:
    options = {"order": "zigzag"}
    tensors = [_tensors(keys=3), _tensors(keys=9)]
    for kind, text in _raised(two, options, options, tensors=tensors).values():
        assert kind == "ValueError"
        assert "expected [6, 6] positions" in text


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dropout_p": 0.5}, "dropout_p"),
        ({"normaliser": sharpmax.normalisers.Softmax()}, "normaliser"),
        ({"method": "ring"}, "method"),
        ({"method": "tree", "query_placement": "sharded"}, "method"),
        ({"query_placement": "somewhere"}, "query_placement"),
        ({"key_lengths": [3, 3]}, "key_lengths"),
        ({"key_lengths": 20}, "key_lengths"),
        ({"policy": "sharp"}, "policy"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    two: Pool, options: dict[str, Any], named: str
) -> None:
    texts = [text for _, text in _raised(two, options, options).values()]
    assert any(text.startswith(f"{named}: expected") for text in texts)


def test_a_mask_of_other_columns(two: Pool) -> None:
    options = {"attn_mask": torch.ones(6, 7, dtype=torch.bool), "query_placement": "sharded"}
    for kind, text in _raised(two, options, options).values():
        assert kind == "ValueError"
        assert "attn_mask: expected 20 columns" in text


# Messages.


def test_messages_of_one_call(two: Pool) -> None:
    _, keys, _ = tensors = _tensors()
    same = [(tensors, {})] * 2
    assert two.call(messages, *same)[0] == ["all_gather", *["all_reduce"] * 3]
    known = [(tensors, {"key_lengths": [keys.shape[2]] * 2})] * 2
    assert two.call(messages, *known)[0] == ["all_reduce"] * 3
    ring = [(tensors, {"query_placement": "sharded", "method": "ring"})] * 2
    assert two.call(messages, *ring)[0] == ["all_gather", *["batch_isend_irecv"] * 2]


@pytest.mark.parametrize("method", ["tree", "ring", "all_gather", "ulysses"])
def test_a_killed_rank_ends_the_others_with_a_message(method: str) -> None:
    timeout = 20.0
    pool = Pool(2, timeout=timeout)
    try:
        pool.call(attend_with, *[(_tensors(), {})] * 2)
        pool.start(attend_forever, *[(_tensors(), method)] * 2)
        time.sleep(0.3)
        start = time.monotonic()
        pool.processes[1].kill()
        with pytest.raises(RankFailedError) as caught:
            pool.results([0])
        kind, text = caught.value.raised[0]
        assert time.monotonic() - start < timeout + 5
        assert kind == "RankLostError"
        assert "among 2 ranks failed on rank 0" in text
        assert pool.processes[1].exitcode in (None, -signal.SIGKILL)
    finally:
        pool.close()


def test_without_a_process_group() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        sharpmax.distributed.attention(*_tensors())
