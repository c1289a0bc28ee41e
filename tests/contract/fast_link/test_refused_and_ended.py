"""Messages that are refused, peers that are lost, endpoints that close: as without the native call."""

from typing import Any

import pytest

from tests.contract.fast_link.cluster import WAIT_S, every_way, needs_native
from tpiedge.errors import PeerLost
from tpiedge.transport import backlog
from tpiedge.transport.endpoint import EndpointClosed

pytestmark = needs_native


@every_way
def test_a_peer_revoked_in_mid_run_is_not_heard(
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
def test_closing_ends_the_wait(make: Any, way: str, size: int, rank: int) -> None:
    cluster = make(way, size).meet()
    waiting = cluster.start(rank, 1)
    cluster.endpoints[rank].close()
    with pytest.raises(EndpointClosed):
        waiting.result(WAIT_S)
