"""All ranks sum in one native call: with the bits of Python's way, its bytes and its errors."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.fast_link.cluster import (
    SHAPE,
    WAIT_S,
    WIRES,
    Cluster,
    assert_total,
    every_way,
    needs_native,
)
from tpiedge.collectives.codec import decode_array, encode_array, header_of
from tpiedge.collectives.summation import LARGEST
from tpiedge.errors import PeerLost
from tpiedge.transport import backlog
from tpiedge.transport.endpoint import EndpointClosed
from tpiedge.transport.native_reducer import DONE
from tpiedge.wire.data import Reduced
from tpiedge.wire.fields import TensorHeader

pytestmark = needs_native


@pytest.mark.parametrize("wire", WIRES)
@every_way
def test_native_all_reduce_matches_python_bits_in_one_call(make, way, size, wire, monkeypatch):
    results = []
    for switch in ("1", "0"):
        monkeypatch.setenv("TPIEDGE_FAST_LINK", switch)
        cluster = make(way, size, wire)
        results.append([cluster.reduce(block) for block in range(30)])
        for rank in range(size):
            outcomes = cluster.outcomes(rank)
            assert outcomes.count(DONE) > 10 if switch == "1" else not outcomes
    for block, (fast, slow) in enumerate(zip(*results, strict=True)):
        for result in (*fast, *slow):
            assert torch.equal(result.view(torch.int32), fast[0].view(torch.int32))
        if wire == "f32":
            assert_total(fast, block)


@every_way
def test_bytes_received_by_native_code_are_counted_per_connection(make: Any, way: str, size: int) -> None:
    """Otherwise the hub would end connections as if their messages waited."""
    cluster = make(way, size).meet()
    hub = cluster.ends(0)[0]
    before = [peer.flow.taken for peer in hub._known.values()]
    for block in range(10):
        cluster.reduce(block)
    frame = 64 + TensorHeader("f32", SHAPE).nbytes
    after = [peer.flow.taken for peer in hub._known.values()]
    assert [now - then for now, then in zip(after, before, strict=True)] == [10 * (frame + 42)] * (size - 1)


@pytest.mark.parametrize("wire", WIRES)
def test_python_sends_the_sum_native_code_could_not_send(make: Any, wire: Any) -> None:
    """The root's call has sent the sum to some, and could not to the rest."""
    cluster = make("star", 3, wire).meet()
    fast = cluster.ranks[0]._fast
    prepared: Any = fast._prepared("star", wire, SHAPE)
    sevens = np.random.default_rng(7).standard_normal(SHAPE).astype(np.float32)

    def serve_one(_place: bytes, _tensor: int) -> int:
        prepared.scratch[:] = sevens.tobytes()
        return 1

    serving = dataclasses.replace(prepared, reduce=serve_one)
    fast._prepared = lambda *_: serving
    result = cluster.start(0, 4).result(WAIT_S)
    answer = cluster.endpoints[2].recv(WAIT_S)
    assert answer is not None
    assert answer.tensor is not None
    assert answer.message == Reduced(1, 1, 4, 0, 0, 0, header_of(wire, sevens.shape))
    assert bytes(answer.tensor) == bytes(encode_array(wire, sevens))
    assert np.array_equal(result.numpy(), decode_array(wire, bytes(answer.tensor), SHAPE))
    assert cluster.endpoints[1].recv(0.05) is None


@every_way
def test_messages_of_peer_revoked_mid_run_are_refused(
    make: Any, way: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "_FAREWELL_S", WAIT_S)  # it would connect again, and be refused once more
    cluster = make(way, size, "f32", 1.0).meet()
    waiting = cluster.start(0, 3)
    hub = cluster.ends(0)[0]
    hub.admission.revoke("node-1")
    for rank in range(1, size):
        cluster.send(rank, 0, 3)
    with pytest.raises(PeerLost, match="node 1"):
        waiting.result(WAIT_S)
    assert hub.counters.refused == 1


@every_way
@pytest.mark.parametrize("rank", [0, 1])
def test_closing_endpoint_ends_all_reduce_wait(make: Any, way: str, size: int, rank: int) -> None:
    cluster = make(way, size).meet()
    waiting = cluster.start(rank, 1)
    cluster.endpoints[rank].close()
    with pytest.raises(EndpointClosed):
        waiting.result(WAIT_S)


def whole(rank: int, block: int = 0, wide: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * block + rank)
    largest = LARGEST if wide else (2**31 - 1) // 5
    made = torch.randint(-largest, largest + 1, SHAPE, generator=generator)
    return made if wide else made.to(torch.int32)


def total(given: list[torch.Tensor]) -> torch.Tensor:
    wide = any(one.dtype == torch.int64 for one in given)
    summed = torch.stack([one.to(torch.int64) for one in given]).sum(0)
    return summed if wide else summed.to(torch.int32)


def reduce(cluster: Cluster, given: list[torch.Tensor], block: int) -> None:
    expected = total(given)
    futures = [cluster.start(rank, block, own=one.clone()) for rank, one in enumerate(given)]
    for future in futures:
        result = future.result(WAIT_S)
        assert result.dtype == expected.dtype
        assert torch.equal(result, expected)


@every_way
def test_integer_all_reduce_is_one_native_call(make: Any, way: str, size: int) -> None:
    cluster = make(way, size)
    for block in range(30):
        reduce(cluster, [whole(rank, block) for rank in range(size)], block)
    for rank in range(size):
        assert cluster.outcomes(rank).count(DONE) > 10


@pytest.mark.parametrize(("way", "left_off"), [("star", 0), ("mesh", 3)])
def test_int64_part_arriving_mid_call_is_summed(make: Any, way: str, left_off: int) -> None:
    """Rank 1's narrow part is in the sum already, and rank 3's comes once rank 0 goes on in Python."""
    cluster = make(way, 4).meet()
    cluster.extend_timeout(0)
    given = [whole(rank, 5, rank == 2) for rank in range(4)]
    for rank in (1, 2):
        cluster.send(rank, 0, 5, given=given[rank])
    waiting = cluster.start(0, 5, own=given[0].clone())
    assert cluster.outcome(0) == left_off
    cluster.send(3, 0, 5, given=given[3])
    assert torch.equal(waiting.result(WAIT_S), total(given))
