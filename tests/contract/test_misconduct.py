"""Rank 0 over a real link finds out who of its peers breaks the protocol, at once and at no cost in memory."""

import time
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from tests.process.imposter.imposter import Node
from tests.process.imposter.violations import VIOLATIONS
from tpiedge.clock import MonotonicClock
from tpiedge.collectives.communicator import Tag
from tpiedge.collectives.group import Group
from tpiedge.collectives.local import DeadlineLiveness
from tpiedge.errors import Misconduct
from tpiedge.transport.framing import TENSOR
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke
from tpiedge.wire.data import StepPlan
from tpiedge.wire.fields import CollectiveName

# Copies of the largest frame: libzmq's and ours.
LARGEST = 3 * TENSOR.frame_limit
SHAPE = (3, 192)


@pytest.mark.parametrize(("size", "collective"), [(2, "mesh"), (2, "star"), (3, "star")])
@pytest.mark.parametrize("violation", VIOLATIONS)
@pytest.mark.fault("W2", "every collective names the node that sent it")
def test_the_faulty_node_is_named_at_once(violation: str, size: int, collective: CollectiveName) -> None:
    act, words = VIOLATIONS[violation]
    keys, faulty = CurveKeys.generate(), size - 1
    orders: dict[int, Any] = {rank: SimpleNamespace(rank=rank, epoch=7) for rank in range(1, size)}
    nodes = {rank: Node(order) for rank, order in orders.items()}
    allowed = {node.keys.public: f"node-{rank}" for rank, node in nodes.items()}
    with ZmqHub("tcp://127.0.0.1:*", keys, "node-0", allowed, plane=TENSOR) as hub:
        liveness = DeadlineLiveness(MonotonicClock(), 60.0)
        root = Group(hub, liveness, epoch=7, rank=0, size=size, linked=True)
        for rank, node in nodes.items():
            node.tensors = ZmqSpoke(
                hub.address, keys.public, node.keys, f"node-{rank}", hub_name="node-0", plane=TENSOR
            )
        try:
            for node in nodes.values():
                node.shape = SHAPE
                node.contribute(step=0)  # connects; too late to count
            root.announce(
                StepPlan(7, 1, (), SHAPE[0], SHAPE[0], collective=collective, bulk_collective=collective)
            )
            for node in nodes.values():
                node.step = 1
            before = psutil.Process().memory_info().rss
            act(nodes[faulty])
            if size == 3:
                nodes[1].contribute()
            started = time.monotonic()
            with pytest.raises(Misconduct, match=words) as caught:
                root.all_reduce(torch.zeros(SHAPE), Tag(1, 0, 0))
            assert caught.value.rank == faulty
            assert time.monotonic() - started < 30.0
            assert psutil.Process().memory_info().rss - before < LARGEST
        finally:
            for node in nodes.values():
                node.close()
