"""Peers that are late or ahead, and what comes between two sums."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.fast_link.cluster import (
    SHAPE,
    WAIT_S,
    WIRES,
    Cluster,
    Ear,
    assert_total,
    every_way,
    needs_native,
    part,
    rounded,
    total,
)
from tpiedge.transport.endpoint import EndpointClosed
from tpiedge.transport.native_reducer import DONE
from tpiedge.wire.data import CANCEL
from tpiedge.wire.fields import wire_bytes

pytestmark = needs_native


@every_way
@pytest.mark.parametrize("late", [0, 1])
def test_all_reduce_with_a_late_peer_continues_in_python(make: Any, way: str, size: int, late: int) -> None:
    cluster = make(way, size).meet()
    early = [rank for rank in range(size) if rank != late]
    futures = {rank: cluster.start(rank) for rank in early}
    # Ranks that send first have sent; the root of a star has not.
    for rank in early:
        leaf = 1 if way == "star" else size - 1
        assert cluster.outcome(rank) == (0 if way == "star" and rank == 0 else leaf)
    futures[late] = cluster.start(late)
    assert_total([futures[rank].result(WAIT_S) for rank in range(size)])
    for block in range(1, 5):
        assert_total(cluster.reduce(block), block)
    assert DONE in cluster.outcomes(0)


def ahead(cluster: Cluster, ear: Ear, then: Callable[[], None]) -> "Future[torch.Tensor]":
    cluster.extend_timeout(0)
    for rank in (1, 2):
        cluster.send(rank, 0, 0)
    then()
    waiting = cluster.start(0)
    ear.wait(3)
    cluster.send(3, 0, 0)
    return waiting


def received_block(endpoint: Any) -> int:
    received = endpoint.recv(WAIT_S)
    assert received is not None
    return int(received.message.block)


@pytest.mark.parametrize("way", ["star", "mesh"])
def test_frames_received_early_are_delivered_first(make: Any, ear: Ear, way: str) -> None:
    cluster = make(way, 4)
    assert torch.equal(ahead(cluster, ear, lambda: cluster.send(1, 0, 1)).result(WAIT_S), total(4))
    cluster.send(1, 0, 2)
    assert [received_block(cluster.endpoints[0]) for _ in range(2)] == [1, 2]


@pytest.mark.parametrize("way", ["star", "mesh"])
@pytest.mark.parametrize("wire", WIRES)
def test_next_block_part_is_used_in_the_next_call(make, ear, way, wire):
    cluster = make(way, 4, wire)
    before = cluster.endpoints[0].counters.bytes_received
    results = [ahead(cluster, ear, lambda: cluster.send(1, 0, 1)).result(WAIT_S)]
    assert cluster.calls[0].get(timeout=WAIT_S) == (DONE, True)
    frame = 64 + wire_bytes(wire, *SHAPE)
    # Counted once, when it is used.
    assert cluster.endpoints[0].counters.bytes_received - before == 3 * frame
    for rank in (2, 3):
        cluster.send(rank, 0, 1)
    results.append(cluster.start(0, 1).result(WAIT_S))
    assert cluster.calls[0].get(timeout=WAIT_S) == (DONE, False)
    assert cluster.endpoints[0].counters.bytes_received - before == 6 * frame
    for block, result in enumerate(results):
        heard = [rounded(wire, part(rank, block).numpy()) for rank in range(4)]
        expected = rounded(wire, heard[0] + heard[1] + heard[2] + heard[3])
        assert np.array_equal(result.numpy().view(np.uint32), expected.view(np.uint32))


def test_cancel_received_early_takes_effect(make: Any, ear: Ear) -> None:
    cluster = make("mesh", 4).meet()
    ear.forget()
    # Rank 1 hears of ranks 2 and 3 over its hub, and of rank 0 over a spoke.
    cluster.extend_timeout(1)
    for rank in (0, 2):
        cluster.send(rank, 1, 0)
    cluster.send(2, 1, 1)
    cluster.send(0, 1, 1, flags=CANCEL)
    waiting = cluster.start(1)
    ear.wait(3)
    cluster.send(3, 1, 0)
    assert torch.equal(waiting.result(WAIT_S), total(4))
    cluster.send(3, 1, 1)
    assert torch.equal(cluster.start(1, 1).result(WAIT_S), total(4, 1))
    assert cluster.ranks[1].cancelled
    assert cluster.endpoints[1].recv(0.0) is None


def test_closing_endpoint_during_native_call_is_safe(make: Any, ear: Ear) -> None:
    cluster = make("mesh", 4)
    waiting = ahead(cluster, ear, lambda: cluster.send(1, 0, 1))
    cluster.endpoints[0].close()
    # The call may be over or not; what was kept ahead goes with the endpoint.
    assert isinstance(waiting.exception(WAIT_S), EndpointClosed) or torch.equal(waiting.result(0), total(4))
    with pytest.raises(EndpointClosed):
        cluster.endpoints[0].recv(0.0)
