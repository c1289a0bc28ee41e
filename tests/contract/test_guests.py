import os
import sys
from collections.abc import Iterator

import pytest

from tests.contract.crowd import Crowd, sockets_of, wait_until
from tests.contract.gate import MASTER, Gate
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
def crowd(gate: Gate) -> Iterator[Crowd]:
    with Crowd(gate.hub.address, MASTER.public) as made:
        yield made


def member(gate: Gate) -> ZmqSpoke:
    spoke = open_link(gate.address, MASTER.public, WORKER, NAME, WAIT_S)
    enrol(spoke, "pi", gate.token())
    return spoke


def join(gate: Gate) -> None:
    keys, secret = CurveKeys.generate(), gate.token()
    with open_link(gate.address, MASTER.public, keys, peer_name(keys.public), WAIT_S, secret=secret) as link:
        enrol(link, "new", secret)


def is_heard(gate: Gate, spoke: ZmqSpoke) -> None:
    before = len(gate.heard)
    spoke.send(Shutdown(7))
    wait_until(lambda: len(gate.heard) > before)


def own_sockets() -> int:
    return sockets_of(os.getpid())


@pytest.mark.fault("W7", "those who say nothing after the handshake are cut and leave no descriptor")
def test_silent_guests_of_many_addresses_leave_no_descriptor(gate: Gate) -> None:
    with member(gate) as spoke:
        before = own_sockets()
        with Crowd(gate.hub.address, MASTER.public) as crowd:
            silent = [crowd.stranger(ADDRESSES[i % len(ADDRESSES)], probes=False) for i in range(240)]
            wait_until(lambda: any(guest.up for guest in silent))
            is_heard(gate, spoke)
            join(gate)
            wait_until(lambda: all(guest.cut for guest in silent if guest.up))
            is_heard(gate, spoke)
        wait_until(lambda: own_sockets() <= before)


def test_an_empty_frame_ends_a_guest(gate: Gate, crowd: Crowd) -> None:
    guest = crowd.stranger()
    wait_until(lambda: guest.up)
    for _ in range(100):
        guest.send(b"")
    wait_until(lambda: guest.cut)
    assert gate.malformed == 1


def test_no_second_connection_in_place_of_the_first(gate: Gate) -> None:
    before = own_sockets()
    with Crowd(gate.hub.address, MASTER.public) as crowd:
        keys = CurveKeys.generate()
        route = f"{peer_name(keys.public)}/x".encode()
        first = crowd.stranger(keys=keys, route=route)
        wait_until(lambda: first.up)
        second = crowd.stranger(keys=keys, route=route)
        wait_until(lambda: gate.hub.counters.refused)
        first.send(b"no message at all")
        wait_until(lambda: first.cut)
        assert not second.up
        third = crowd.stranger(keys=keys, route=route)
        wait_until(lambda: third.up)
    wait_until(lambda: own_sockets() <= before)


@pytest.mark.parametrize("name", [NAME, "somebody-else"], ids=["second process", "impostor"])
def test_a_connection_in_another_s_name_is_cut(gate: Gate, crowd: Crowd, name: str) -> None:
    with member(gate) as spoke:
        stranger = crowd.stranger(keys=WORKER, route=f"{name}/x".encode())
        wait_until(lambda: stranger.up)
        wait_until(lambda: stranger.cut)
        is_heard(gate, spoke)


@pytest.mark.fault("W7", "a worker with a token is let in although strangers have every place")
def test_a_worker_with_a_token_gets_in_where_strangers_have_all_places(gate: Gate, crowd: Crowd) -> None:
    guests = [crowd.stranger(source) for source in ADDRESSES for _ in range(4)]
    wait_until(lambda: all(guest.up for guest in guests) and len(gate.hub.admission.guests) == len(guests))
    join(gate)
    with (
        open_link(gate.address, MASTER.public, WORKER, NAME, WAIT_S) as link,
        pytest.raises(PeerError, match="too many newcomers without a token"),
    ):
        enrol(link, "pi", "a secret")
    assert len(gate.hub.admission.guests) == len(guests)


@pytest.mark.fault("W7", "a worker with a token is let in although others guess tokens all the time")
def test_guesses_keep_no_worker_with_a_token_out(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []
    judge = TokenStore.judge
    monkeypatch.setattr(TokenStore, "judge", lambda *asked: judged.append(asked[1]) or judge(*asked))
    for _ in range(5):
        keys = CurveKeys.generate()
        with (
            open_link(gate.address, MASTER.public, keys, peer_name(keys.public), WAIT_S) as link,
            pytest.raises(UserError, match="does not know this token"),
        ):
            enrol(link, "guesser", "a secret")
    assert judged == []
    join(gate)
    assert len(judged) == 1
