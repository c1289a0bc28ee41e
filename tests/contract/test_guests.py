"""Guests and silent callers hold no descriptor and no processor of the master's for long, and keep nobody out."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.contract.crowd import Crowd, sockets_of, wait_until
from tests.contract.gate import MASTER, Gate
from tpiedge.errors import PeerError, UserError
from tpiedge.joining.connecting import enrol, open_link
from tpiedge.joining.front_door import guest_policy
from tpiedge.joining.identity import peer_name
from tpiedge.joining.pairing_link import PairingHub, introduction_keys
from tpiedge.transport.framing import CONTROL
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.monitor import LinkState
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke
from tpiedge.wire.control import Shutdown

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="system: elsewhere no connection is watched")

WORKER = CurveKeys.generate()
NAME = peer_name(WORKER.public)
WAIT_S = 20.0
#: Of the loopback network.
ADDRESSES = [f"127.0.0.{number}" for number in range(2, 10)]


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with closing(Gate(tmp_path)) as made:
        yield made


@pytest.fixture
def crowd(gate: Gate) -> Iterator[Crowd]:
    with Crowd(gate.hub.address, MASTER.public) as made:
        yield made


def member(gate: Gate) -> ZmqSpoke:
    """Somebody who joined before."""
    spoke = open_link(gate.address, MASTER.public, WORKER, NAME, WAIT_S)
    enrol(spoke, "pi", gate.token())
    return spoke


def join(gate: Gate) -> None:
    """A new worker with a token."""
    keys, secret = CurveKeys.generate(), gate.token()
    with open_link(gate.address, MASTER.public, keys, peer_name(keys.public), WAIT_S, secret=secret) as link:
        enrol(link, "new", secret)


def is_heard(gate: Gate, spoke: ZmqSpoke) -> None:
    before = len(gate.heard)
    spoke.send(Shutdown(7))
    wait_until(lambda: len(gate.heard) > before)


def own_sockets() -> int:
    return sockets_of(os.getpid())


def test_a_guest_who_says_nothing_is_cut(gate: Gate, crowd: Crowd) -> None:
    """It has not even introduced itself, so that no name leads to its connection."""
    guest = crowd.stranger(probes=False)
    wait_until(lambda: guest.up)
    wait_until(lambda: guest.cut)


def test_who_cannot_be_cut_for_want_of_a_descriptor_is_cut_later(
    monkeypatch: pytest.MonkeyPatch, gate: Gate, crowd: Crowd
) -> None:
    duplicate, tries = os.dup, list[int]()

    def refuse_first(fd: int) -> int:
        tries.append(fd)
        if len(tries) == 1:
            raise OSError(errno.EMFILE, "too many open files")
        return duplicate(fd)

    monkeypatch.setattr("tpiedge.transport.backlog._STRANGER_S", 0.5)
    monkeypatch.setattr(os, "dup", refuse_first)
    guest = crowd.stranger(probes=False)
    wait_until(lambda: guest.up)
    wait_until(lambda: guest.cut)
    assert len(tries) > 1


def test_a_guest_whose_place_another_has_is_cut(gate: Gate, crowd: Crowd) -> None:
    first = crowd.stranger()
    wait_until(lambda: first.up)
    name, *_ = gate.hub.admission.guests
    wait_until(lambda: name in gate.hub.peers)
    gate.hub.admission.dismiss(name)
    wait_until(lambda: first.cut)


def test_silent_guests_of_many_addresses_leave_no_descriptor(gate: Gate) -> None:
    """A member works on, and a newcomer gets in beside them."""
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


def test_pairing_guests_who_say_nothing_are_cut(gate: Gate) -> None:
    with (
        closing(PairingHub("tcp://127.0.0.1:*", MASTER.public, gate.door.admit)) as hub,
        Crowd(hub.address, introduction_keys().public) as crowd,
    ):
        guests = [crowd.stranger(probes=False) for _ in range(4)]
        wait_until(lambda: all(guest.up for guest in guests))
        wait_until(lambda: all(guest.cut for guest in guests))


def test_an_empty_frame_ends_a_guest(gate: Gate, crowd: Crowd) -> None:
    """A connection begins with one; a million of them would each be the beginning of a connection."""
    guest = crowd.stranger()
    wait_until(lambda: guest.up)
    for _ in range(100):
        guest.send(b"")
    wait_until(lambda: guest.cut)
    assert gate.hub.counters.malformed == 1


def test_no_second_connection_in_place_of_the_first(gate: Gate) -> None:
    """libzmq would hand the routing id over, and keep the first descriptor until the hub is closed."""
    before = own_sockets()
    with Crowd(gate.hub.address, MASTER.public) as crowd:
        keys = CurveKeys.generate()
        route = f"{peer_name(keys.public)}/x".encode()
        first = crowd.stranger(keys=keys, route=route)
        wait_until(lambda: first.up)
        second = crowd.stranger(keys=keys, route=route)
        wait_until(lambda: gate.hub.counters.rejected)
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


@contextmanager
def reused(
    monkeypatch: pytest.MonkeyPatch, folder: Path, is_there: Callable[[ZmqHub], object], route: bytes | None
) -> Iterator[ZmqHub]:
    """The first frame of a guest who has hung up is received when its number is that of a member's connection. The
    member is there still afterwards."""
    allowed = {WORKER.public: NAME}
    with (
        ZmqHub(
            "tcp://127.0.0.1:*", MASTER, "master", allowed, plane=CONTROL, guests=guest_policy(folder)
        ) as hub,
        Crowd(hub.address, MASTER.public) as crowd,
        ZmqSpoke(hub.address, MASTER.public, WORKER, NAME, hub_name="master", plane=CONTROL) as spoke,
    ):
        spoke.send(Shutdown(1), timeout_s=WAIT_S)
        assert hub.recv(WAIT_S) is not None
        members = hub._known[hub._routes[NAME]].connection
        monkeypatch.setattr("tpiedge.transport.zeromq.connection_of", lambda *_of: members)
        guest = crowd.stranger(route=route)
        wait_until(lambda: guest.up and hub.recv(0.02) is None and is_there(hub))
        yield hub
        spoke.send(Shutdown(2))
        assert hub.recv(WAIT_S).message == Shutdown(2)
        assert spoke.recv(0.3) is None
        assert spoke.monitor.poll() is LinkState.UP


def test_a_descriptor_that_was_used_again_is_not_taken_for_a_guest_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with reused(monkeypatch, tmp_path, lambda hub: len(hub.peers) == 2, None) as hub:
        hub.disconnect(next(name for name in hub.peers if name != NAME))


def test_a_descriptor_that_was_used_again_is_not_cut_for_an_impostor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with reused(monkeypatch, tmp_path, lambda hub: hub.counters.impostor, b"somebody-else/x"):
        pass


@pytest.mark.fault("W7", "a worker with a token is let in although strangers have every place")
def test_a_worker_with_a_token_gets_in_where_strangers_have_all_places(gate: Gate, crowd: Crowd) -> None:
    """And one without is told why not."""
    guests = [crowd.stranger(source) for source in ADDRESSES for _ in range(4)]
    wait_until(lambda: all(guest.up for guest in guests) and len(gate.hub.peers) == len(guests))
    join(gate)
    with (
        open_link(gate.address, MASTER.public, WORKER, NAME, WAIT_S) as link,
        pytest.raises(PeerError, match="too many newcomers without a token"),
    ):
        enrol(link, "pi", "a secret")
    assert len(gate.hub.admission.guests) == len(guests)


@pytest.mark.fault("W7", "a worker with a token is let in although others guess tokens all the time")
def test_guesses_keep_no_worker_with_a_token_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tpiedge.joining.enrolment._WRONG_IN_ALL", 1)
    with closing(Gate(tmp_path)) as gate:
        for words in ("does not know this token", "too many wrong tokens"):
            keys = CurveKeys.generate()
            with (
                open_link(gate.address, MASTER.public, keys, peer_name(keys.public), WAIT_S) as link,
                pytest.raises((UserError, PeerError), match=words),
            ):
                enrol(link, "guesser", "a secret")
        join(gate)


def test_a_damaged_file_of_tokens_keeps_nobody_else_out(gate: Gate, crowd: Crowd, tmp_path: Path) -> None:
    """It is read when a worker shows a ticket."""
    with member(gate) as spoke:
        guests = [crowd.stranger(source) for source in ADDRESSES for _ in range(4)]
        wait_until(lambda: all(guest.up for guest in guests))
        secret = gate.token()
        (tmp_path / "tokens.json").write_text("{")
        keys = CurveKeys.generate()
        with (
            open_link(
                gate.address, MASTER.public, keys, peer_name(keys.public), WAIT_S, secret=secret
            ) as link,
            pytest.raises(PeerError, match="too many newcomers"),
        ):
            enrol(link, "pi", secret)
        is_heard(gate, spoke)
