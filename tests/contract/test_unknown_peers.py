import os
import sys
from collections.abc import Iterator

import pytest

from tests.contract.master_hub import MASTER, MasterHub
from tests.contract.raw_peers import RawPeers, sockets_of, wait_until
from tpiedge.errors import PeerError, UserError
from tpiedge.joining.connecting import enrol, open_link
from tpiedge.joining.identity import peer_name
from tpiedge.joining.tokens import TokenStore
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqSpoke
from tpiedge.wire.control import Shutdown

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="system: elsewhere no connection is watched")

WORKER = CurveKeys.generate()
NAME = peer_name(WORKER.public)
WAIT_S = 20.0
#: Of the loopback network.
ADDRESSES = [f"127.0.0.{number}" for number in range(2, 10)]


@pytest.fixture
def peers(master: MasterHub) -> Iterator[RawPeers]:
    with RawPeers(master.hub.address, MASTER.public) as made:
        yield made


def member(master: MasterHub) -> ZmqSpoke:
    spoke = open_link(master.address, MASTER.public, WORKER, NAME, WAIT_S)
    enrol(spoke, "pi", master.token())
    return spoke


def join(master: MasterHub) -> None:
    new, secret = CurveKeys.generate(), master.token()
    with open_link(master.address, MASTER.public, new, peer_name(new.public), WAIT_S, secret=secret) as link:
        enrol(link, "new", secret)


def is_heard(master: MasterHub, spoke: ZmqSpoke) -> None:
    before = len(master.heard)
    spoke.send(Shutdown(7))
    wait_until(lambda: len(master.heard) > before)


def own_sockets() -> int:
    return sockets_of(os.getpid())


@pytest.mark.fault("W7", "those who say nothing after the handshake are cut and leave no descriptor")
def test_silent_peers_of_many_addresses_leave_no_descriptor(master: MasterHub) -> None:
    with member(master) as spoke:
        before = own_sockets()
        with RawPeers(master.hub.address, MASTER.public) as peers:
            silent = [peers.connect(ADDRESSES[i % len(ADDRESSES)], probes=False) for i in range(240)]
            wait_until(lambda: any(peer.up for peer in silent))
            is_heard(master, spoke)
            join(master)
            wait_until(lambda: all(peer.cut for peer in silent if peer.up))
            is_heard(master, spoke)
        wait_until(lambda: own_sockets() <= before)


def test_unknown_peer_sending_an_empty_frame_is_disconnected(master: MasterHub, peers: RawPeers) -> None:
    peer = peers.connect()
    wait_until(lambda: peer.up)
    for _ in range(100):
        peer.send(b"")
    wait_until(lambda: peer.cut)
    assert master.malformed == 1


def test_second_connection_of_an_unknown_peer_is_refused(master: MasterHub) -> None:
    before = own_sockets()
    with RawPeers(master.hub.address, MASTER.public) as peers:
        keys = CurveKeys.generate()
        route = f"{peer_name(keys.public)}/x".encode()
        first = peers.connect(keys=keys, route=route)
        wait_until(lambda: first.up)
        second = peers.connect(keys=keys, route=route)
        wait_until(lambda: master.hub.counters.refused)
        first.send(b"no message at all")
        wait_until(lambda: first.cut)
        assert not second.up
        third = peers.connect(keys=keys, route=route)
        wait_until(lambda: third.up)
    wait_until(lambda: own_sockets() <= before)


@pytest.mark.parametrize("name", [NAME, "somebody-else"], ids=["second process", "impostor"])
def test_connection_under_another_peers_name_is_closed(master: MasterHub, peers: RawPeers, name: str) -> None:
    with member(master) as spoke:
        peer = peers.connect(keys=WORKER, route=f"{name}/x".encode())
        wait_until(lambda: peer.up)
        wait_until(lambda: peer.cut)
        is_heard(master, spoke)


@pytest.mark.fault("W7", "a worker with a token is let in although unknown peers have every place")
def test_worker_with_token_joins_when_all_places_are_taken(master: MasterHub, peers: RawPeers) -> None:
    unknown = [peers.connect(source) for source in ADDRESSES for _ in range(4)]
    wait_until(lambda: all(peer.up for peer in unknown))
    wait_until(lambda: len(master.hub.admission.unknown_peers) == len(unknown))
    join(master)
    with (
        open_link(master.address, MASTER.public, WORKER, NAME, WAIT_S) as link,
        pytest.raises(PeerError, match="too many newcomers without a token"),
    ):
        enrol(link, "pi", "a secret")
    assert len(master.hub.admission.unknown_peers) == len(unknown)


@pytest.mark.fault("W7", "a worker with a token is let in although others guess tokens all the time")
def test_token_guesses_do_not_block_a_worker_with_token(
    master: MasterHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    check = TokenStore.check
    monkeypatch.setattr(TokenStore, "check", lambda *asked: checked.append(asked[1]) or check(*asked))
    for _ in range(5):
        keys = CurveKeys.generate()
        with (
            open_link(master.address, MASTER.public, keys, peer_name(keys.public), WAIT_S) as link,
            pytest.raises(UserError, match="does not know this token"),
        ):
            enrol(link, "guesser", "a secret")
    assert checked == []
    join(master)
    assert len(checked) == 1
