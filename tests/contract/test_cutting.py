import contextlib

import pytest

from tpiedge.errors import PeerError
from tpiedge.transport.endpoint import CONTROL, LinkReset
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke
from tpiedge.wire.epochs import AgentPulse

PULSE = AgentPulse(0)
WAIT_S = 20.0


@pytest.mark.parametrize("revoked", [True, False], ids=["revoked", "still admitted"])
@pytest.mark.parametrize("hangs_up", [True, False], ids=["hangs up", "stays"])
@pytest.mark.parametrize("farewell", [PULSE, None], ids=["farewell", "at once"])
def test_disconnected_peer_is_ignored_until_it_reconnects(monkeypatch, revoked, hangs_up, farewell):
    # Later than all that is looked at: what is said over a new connection counts.
    monkeypatch.setattr("tpiedge.transport.zeromq_endpoint._RECONNECT_MS", 4000)
    keys, own = CurveKeys.generate(), CurveKeys.generate()
    with ZmqHub("tcp://127.0.0.1:*", keys, "hub", {own.public: "peer"}, plane=CONTROL) as hub:
        spoke = ZmqSpoke(hub.address, keys.public, own, "peer", hub_name="hub", plane=CONTROL)
        with spoke:
            spoke.send(PULSE, timeout_s=WAIT_S)
            assert hub.recv(WAIT_S) is not None
            if revoked:
                hub.admission.revoke("peer")
            for _ in range(3):
                spoke.send(PULSE)
            hub.disconnect("peer", farewell)
            for _ in range(3):
                with contextlib.suppress(PeerError):
                    spoke.send(PULSE, timeout_s=0.0)
            if farewell is not None:
                assert spoke.recv(WAIT_S) is not None
            assert hub.recv(0.1) is None  # nothing of all that counts
            if hangs_up:
                spoke.close()
            assert hub.recv(0.5) is None
            if not hangs_up and not revoked:
                assert is_heard_again(spoke, hub)  # on a new connection


def is_heard_again(spoke: ZmqSpoke, hub: ZmqHub) -> bool:
    for _ in range(20):
        spoke.send(PULSE, timeout_s=WAIT_S)
        if hub.recv(0.5) is not None:
            return True
    return False


def test_peer_that_floods_and_closes_blocks_no_other_peer() -> None:
    keys = CurveKeys.generate()
    owns = {f"peer-{number}": CurveKeys.generate() for number in range(2)}
    allowed = {own.public: name for name, own in owns.items()}
    with ZmqHub("tcp://127.0.0.1:*", keys, "hub", allowed, plane=CONTROL) as hub:
        spokes = [
            ZmqSpoke(hub.address, keys.public, own, name, hub_name="hub", plane=CONTROL)
            for name, own in owns.items()
        ]
        try:
            for spoke in spokes:
                spoke.send(PULSE, timeout_s=WAIT_S)
                assert hub.recv(WAIT_S) is not None
            with contextlib.suppress(PeerError):
                while True:
                    spokes[0].send(PULSE, timeout_s=0.2)
            spokes[0].close()
            assert spokes[1].recv(1.0) is None  # for several heartbeats
            spokes[1].send(PULSE)
            heard = set()
            while "peer-1" not in heard:
                with contextlib.suppress(LinkReset):  # for want of an answer peer-0 connected anew
                    heard.add(hub.recv(WAIT_S).sender)
        finally:
            for spoke in spokes:
                spoke.close()
