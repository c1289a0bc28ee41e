"""All ranks sum in one native call: with the bits of Python's way, its bytes and its errors."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.fast_link.cluster import SHAPE, WAIT_S, WIRES, assert_total, every_way, needs_native
from tpiedge.collectives.codec import decode_array, encode_array, header_of
from tpiedge.transport.native_reducer import DONE
from tpiedge.wire.data import Reduced
from tpiedge.wire.fields import TensorHeader

pytestmark = needs_native


@pytest.mark.parametrize("wire", WIRES)
@every_way
def test_the_steady_state_is_one_call_with_the_bits_of_python(make, way, size, wire, monkeypatch):
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
def test_what_a_hub_has_received_is_counted_per_connection(make: Any, way: str, size: int) -> None:
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
def test_the_rest_of_a_star_is_served_in_python(make: Any, wire: Any) -> None:
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
    assert answer.message == Reduced(1, 1, 4, 0, 0, header_of(wire, sevens.shape))
    assert bytes(answer.tensor) == bytes(encode_array(wire, sevens))
    assert np.array_equal(result.numpy(), decode_array(wire, bytes(answer.tensor), SHAPE))
    assert cluster.endpoints[1].recv(0.05) is None
