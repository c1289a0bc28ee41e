"""All ranks sum in one native call: with the bits of Python's way, its bytes and its errors."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.fast_link.cluster import (
    SHAPE,
    SIZES,
    WAIT_S,
    WIRES,
    assert_total,
    every_way,
    needs_native,
    part,
    rounded,
    total,
)
from tpiedge.collectives import fast as fast_path
from tpiedge.collectives.codec import CODECS
from tpiedge.errors import ProtocolError
from tpiedge.transport.native_reducer import DONE
from tpiedge.wire.data import Reduced
from tpiedge.wire.tensors import TensorHeader

pytestmark = needs_native


@pytest.mark.parametrize("wire", WIRES)
@every_way
def test_the_steady_state_is_one_call_with_the_bits_of_python(
    make: Any, way: str, size: int, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize("switch", ["1", "0"])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("size", SIZES)
def test_every_collective_rounds_the_parts_and_the_sum(
    make: Any, size: int, wire: str, switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPIEDGE_FAST_LINK", switch)
    cluster = make("mesh", size, wire)
    for step, way in enumerate(("star", "mesh", "two-shot"), 2):
        cluster.plan(way, step)
        for block in range(4):
            expected = rounded(wire, part(0, block).numpy())
            for rank in range(1, size):
                expected = expected + rounded(wire, part(rank, block).numpy())
            for result in cluster.reduce(block, step):
                assert np.array_equal(result.numpy(), rounded(wire, expected)), way
    assert (DONE in cluster.outcomes(0)) == (switch == "1")


@every_way
@pytest.mark.parametrize("wire", WIRES)
def test_the_bytes_are_counted_as_in_python(
    make: Any, way: str, size: int, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for switch in ("1", "0"):
        monkeypatch.setenv("TPIEDGE_FAST_LINK", switch)
        cluster = make(way, size, wire)
        for block in range(5):
            cluster.reduce(block)
        counts.append([(one.bytes_sent, one.bytes_received) for one in cluster.endpoints])
        assert (cluster.outcomes(0) == []) == (switch == "0")
    assert counts[0] == counts[1]


@every_way
def test_what_a_hub_has_received_is_counted_per_connection(make: Any, way: str, size: int) -> None:
    """Otherwise it would end connections of which it believes that nobody receives what comes."""
    cluster = make(way, size).meet()
    hub = cluster.ends(0)[0]
    before = [peer.flow.taken for peer in hub._known.values()]
    for block in range(10):
        cluster.reduce(block)
    frame = 64 + TensorHeader("f32", SHAPE).nbytes
    after = [peer.flow.taken for peer in hub._known.values()]
    assert [now - then for now, then in zip(after, before, strict=True)] == [10 * (frame + 42)] * (size - 1)


@every_way
def test_shapes_in_turn(make: Any, way: str, size: int) -> None:
    cluster = make(way, size)
    shapes = [(1, 33), (2, 33), (4, 7)]
    for block in range(24):
        shape = shapes[block % 3]
        for result in cluster.reduce(block, shape=shape):
            assert torch.equal(result, total(size, block, shape))
    # A peer that is ahead costs the others a call: its message is of another shape.
    assert DONE in cluster.outcomes(0)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_star_and_mesh_in_turn(make: Any, size: int) -> None:
    cluster = make("mesh", size)
    small, large = (1, 33), (3, 33)
    for step in range(2, 8):
        ways = ("star", "mesh") if step % 2 else ("mesh", "star")
        cluster.plan(ways[0], step, bulk_collective=ways[1], small_bytes=4 * 33)
        for block in range(4):
            shape = large if block % 2 else small
            for result in cluster.reduce(block, step, shape):
                assert torch.equal(result, total(size, block, shape))
    assert [one.counts for one in cluster.ranks] == [{"star": 12, "mesh": 12}] * size
    assert DONE in cluster.outcomes(0)


@every_way
@pytest.mark.parametrize("silent", [0, 1])
def test_a_rank_without_a_share_and_then_with_one(make: Any, way: str, size: int, silent: int) -> None:
    cluster = make(way, size)
    for block in range(6):
        futures = [cluster.start(rank, block, rank != silent or block % 2 == 1) for rank in range(size)]
        results = [future.result(WAIT_S) for future in futures]
        parts = [part(rank, block) for rank in range(size) if rank != silent or block % 2 == 1]
        expected = parts[0] if len(parts) == 1 else sum(parts[1:], parts[0])
        assert all(torch.equal(result, expected) for result in results)


@every_way
def test_who_never_has_a_share_does_not_make_the_others_leave_off_for_ever(
    make: Any, way: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_path, "_MOST_LEFT_OFF", 3)
    monkeypatch.setattr(fast_path, "_PAUSE", 8)
    silent = size - 1
    cluster = make(way, size)
    expected = part(0)
    for rank in range(1, silent):
        expected = expected + part(rank)
    for _ in range(3 + 8 + 1 + 8):
        futures = [cluster.start(rank, contributes=rank != silent) for rank in range(size)]
        assert all(torch.equal(future.result(WAIT_S), expected) for future in futures)
    assert len(cluster.outcomes(0)) == 3 + 1
    # With a share it is one call again.
    cluster.patient(0)
    assert_total(cluster.reduce())
    assert cluster.outcomes(0) == [DONE]


@every_way
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 3.0e38])
def test_a_sum_that_is_not_finite_is_blamed_as_in_python(
    make: Any, way: str, size: int, wire: str, value: float
) -> None:
    cluster = make(way, size, wire)
    for rank in range(1, size):
        cluster.send(rank, 0, 0, given=torch.full(SHAPE, value if rank == size - 1 else 1.0))
    own = torch.full(SHAPE, 3.0e38)
    cause = "overflows f32" if value > 0 else f"node {size - 1} contributed a value that is not finite"
    with pytest.raises(ProtocolError, match=cause):
        cluster.start(0, own=own).result(WAIT_S)
    assert cluster.outcomes(0) == [0 if way == "star" else size - 1]


@pytest.mark.parametrize("wire", WIRES)
def test_the_rest_of_a_star_is_served_in_python(make: Any, wire: str) -> None:
    """The root's call has sent the sum to some, and could not to the rest."""
    cluster = make("star", 3, wire).meet()
    fast = cluster.ranks[0]._fast
    ((kind, prepared),) = fast._prepared.items()
    sevens = np.random.default_rng(7).standard_normal(SHAPE).astype(np.float32)

    def serve_one(_place: bytes, _tensor: int) -> int:
        prepared.scratch[:] = sevens.tobytes()
        return 1

    fast._prepared[kind] = dataclasses.replace(prepared, reduce=serve_one)
    result = cluster.start(0, 4).result(WAIT_S)
    answer = cluster.endpoints[2].recv(WAIT_S)
    codec: Any = CODECS[wire]  # type: ignore[index]
    assert answer is not None
    assert answer.message == Reduced(1, 1, 4, 0, 0, codec.header(sevens))
    assert bytes(answer.tensors[0]) == bytes(codec.encode(sevens))
    assert np.array_equal(result.numpy(), codec.decode(bytes(answer.tensors[0]), SHAPE))
    assert cluster.endpoints[1].recv(0.05) is None
