import threading
from typing import Any

import pytest

from tests.contract.ranks import HUB, WAIT_S, Ranks, part
from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.collectives.summation import F32Array
from tpiedge.transport.native_library import transport_library


def two_blocks(one: Communicator) -> list[bool]:
    seen = []
    for block in range(2):
        one.all_reduce(part(one.rank), Tag(1, block, 0))
        seen.append(one.cancelled)
    return seen


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("way", [HUB, "star", "mesh"])
def test_while_rank_0_waits_for_a_late_peer(network, monkeypatch, way, size):
    ranks = Ranks(network, way, size).begun()
    ranks.reduce(9)  # all links are made
    root, asked = ranks.groups[0], threading.Event()
    plain, sent = root._fast.reduce, []

    def interrupted(*arguments: Any) -> tuple[int, F32Array | None]:
        outcome = plain(*arguments)
        root.request_cancel(1)
        sent.append(outcome[0])
        asked.set()
        return outcome

    monkeypatch.setattr(root._fast, "reduce", interrupted)

    def work(one: Communicator) -> list[bool]:
        assert one.rank != size - 1 or asked.wait(WAIT_S)
        return two_blocks(one)

    assert ranks.run(work) == [[sent[0] == 0, True]] * size
    native = network.kind == "zeromq" and transport_library() is not None
    assert sent == [size - 1 if native and way == "mesh" else 0]
