"""Rank 0 that loads, or waits for a request, goes on looking after the others' connections."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tpiedge.errors import PeerLost
from tpiedge.launch.bootstrap import NodeBootstrap
from tpiedge.node.node import Node
from tpiedge.transport.keys import CurveKeys


@pytest.fixture
def leader() -> Iterator[Node]:
    """Its master is never there."""
    keys, master = CurveKeys.generate(), CurveKeys.generate()
    address = "tcp://127.0.0.1:1"
    made = Node(NodeBootstrap(0, address, master.public, keys.public, keys.secret, 1, 1.0, 20.0, 20.0))
    yield made
    made.close()


@pytest.mark.parametrize(("rank", "rests"), [(0, 1), (1, 0)])
def test_rank_0_looks_after_the_others_while_it_loads(leader: Node, rank: int, rests: int) -> None:
    calls: list[None] = []
    communicator: Any = SimpleNamespace(rank=rank, poll=lambda: calls.append(None))
    leader._loading(communicator, 1, 2)
    assert len(calls) == rests


def test_a_peer_that_is_lost_while_nothing_is_to_do_ends_the_wait(leader: Node) -> None:
    def poll() -> None:
        raise PeerLost(1, "the wait for a request", "its connection broke and was made anew")

    engine: Any = SimpleNamespace(communicator=SimpleNamespace(poll=poll), close=lambda: None)
    leader._engine = engine
    with pytest.raises(PeerLost, match="node 1 was lost during the wait for a request"):
        leader._next_command(None)
