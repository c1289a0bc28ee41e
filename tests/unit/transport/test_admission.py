import os
import socket

import pytest

from tests.fakes.clock import ManualClock
from tpiedge.transport.admission import Admission, UnknownPeerPolicy
from tpiedge.transport.cutting import TcpConnection
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.join import Refused

KEYS = [CurveKeys.generate().public for _ in range(6)]


def name_of(key: str) -> str:
    return f"w{KEYS.index(key)}"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def admission(clock: ManualClock) -> Admission:
    policy = UnknownPeerPolicy(name_of, limit=3, per_address=2, stay_s=20.0, grace_s=3.0)
    return Admission({KEYS[0]: "w0"}, policy, clock)


def test_unknown_peers_are_told_apart_from_members(admission: Admission) -> None:
    assert [admission.authenticate(key, "a") for key in KEYS[:2]] == ["w0", "w1"]
    assert admission.unknown_peers == ("w1",)
    assert admission.admitted == {"w0", "w1"}
    assert (admission.key_of("w0"), admission.key_of("w1"), admission.key_of("w2")) == (
        KEYS[0],
        KEYS[1],
        None,
    )
    admission.admit(KEYS[1], "w1")
    assert admission.unknown_peers == ()
    assert admission.admitted == {"w0", "w1"}


def test_unknown_peers_are_limited_in_total_and_per_address(admission: Admission, clock: ManualClock) -> None:
    assert [admission.authenticate(key, "a") for key in KEYS[1:4]] == ["w1", "w2", None]
    assert [admission.authenticate(KEYS[3], "b"), admission.authenticate(KEYS[4], "c")] == ["w3", None]
    clock.advance(3.0)
    assert admission.authenticate(KEYS[4], "c") == "w4"
    assert "w1" not in admission.admitted


def test_reconnecting_does_not_extend_an_unknown_peers_time(admission, clock):
    admission.authenticate(KEYS[1])
    clock.advance(15.0)
    admission.authenticate(KEYS[1])
    assert admission.expire() == ()
    clock.advance(5.0)
    assert admission.expire() == ("w1",)
    assert admission.admitted == {"w0"}
    assert admission.expire() == ()


def test_an_unknown_peer_has_one_connection(admission: Admission, clock: ManualClock) -> None:
    assert [admission.authenticate(KEYS[1]), admission.authenticate(KEYS[1])] == ["w1", None]
    with socket.socket() as connection:
        admission.introduced("w1", TcpConnection(connection.fileno(), os.fstat(connection.fileno()).st_ino))
        clock.advance(10.0)
        assert admission.authenticate(KEYS[1]) is None
        admission.dismiss("w1")
        assert admission.authenticate(KEYS[1]) is None
    assert admission.authenticate(KEYS[1]) == "w1"
    admission.introduced("w1", None)  # gone by then
    assert admission.authenticate(KEYS[1]) == "w1"


FULL = Refused("limited", "full")


@pytest.fixture
def full(clock: ManualClock) -> Admission:
    policy = UnknownPeerPolicy(name_of, 1, accepts_ticket=lambda ticket, name: name in ticket, refusal=FULL)
    admission = Admission({KEYS[0]: "w0"}, policy, clock)
    assert admission.authenticate(KEYS[1]) == "w1"
    return admission


def test_peer_with_a_ticket_is_admitted_beyond_the_limit(full: Admission) -> None:
    assert full.authenticate(KEYS[2], "a") == "w2"
    assert full.admitted == {"w0", "w1"}
    assert full.key_of("w2") is None
    assert full.refusal("w2", "for w2", None) is None
    assert full.admitted == {"w0", "w1", "w2"}
    assert full.key_of("w2") == KEYS[2]


def test_ticket_replaces_only_a_peer_past_grace_at_handshake(full, clock):
    for key in KEYS[2:4]:
        full.authenticate(key)
    clock.advance(4.0)  # the owner was busy
    assert [full.refusal(name, f"for {name}", None) for name in ("w2", "w3")] == [None, FULL]
    assert full.admitted == {"w0", "w1", "w2"}


def test_a_peer_without_a_ticket_is_refused_once(full: Admission) -> None:
    full.authenticate(KEYS[2])
    assert full.refusal("w2", "for w1", None) is FULL
    assert full.refusal("w2", "for w2", None) is None  # it has had its turn
    assert full.refusal("w1", "for w1", None) is None
    assert full.admitted == {"w0", "w1"}


def test_a_revoked_or_denied_key_is_refused_until_admitted(admission: Admission) -> None:
    admission.revoke("w0")
    admission.authenticate(KEYS[1])
    admission.revoke("w1", KEYS[1])
    assert admission.admitted == frozenset()
    assert [admission.authenticate(key) for key in KEYS[:2]] == [None, None]
    admission.admit(KEYS[0], "w0")
    assert admission.authenticate(KEYS[0]) == "w0"


def test_an_unknown_peer_never_gets_the_name_of_a_member() -> None:
    admission = Admission({KEYS[0]: "same"}, UnknownPeerPolicy(lambda _: "same"))
    assert admission.authenticate(KEYS[1]) is None
    assert admission.key_of("same") == KEYS[0]
