import os
import socket

import pytest

from tests.fakes.clock import ManualClock
from tpiedge.transport.admission import Admission, GuestPolicy
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
    return Admission({KEYS[0]: "w0"}, GuestPolicy(name_of, limit=3, each=2, stay_s=20.0, grace_s=3.0), clock)


def test_guests_are_told_apart_from_members(admission: Admission) -> None:
    assert [admission.judge(key, "a") for key in KEYS[:2]] == ["w0", "w1"]
    assert admission.guests == ("w1",)
    assert admission.admitted == {"w0", "w1"}
    assert (admission.key_of("w0"), admission.key_of("w1"), admission.key_of("w2")) == (
        KEYS[0],
        KEYS[1],
        None,
    )
    admission.admit(KEYS[1], "w1")
    assert admission.guests == ()
    assert admission.admitted == {"w0", "w1"}


def test_places_are_limited_altogether_and_per_address(admission: Admission, clock: ManualClock) -> None:
    assert [admission.judge(KEYS[1], "a"), admission.judge(KEYS[2], "a"), admission.judge(KEYS[3], "a")] == [
        "w1",
        "w2",
        None,
    ]
    assert [admission.judge(KEYS[3], "b"), admission.judge(KEYS[4], "c")] == ["w3", None]
    clock.advance(3.0)
    assert admission.judge(KEYS[4], "c") == "w4"
    assert "w1" not in admission.admitted


def test_time_is_limited_and_not_renewed_by_connecting_again(admission, clock):
    admission.judge(KEYS[1])
    clock.advance(15.0)
    admission.judge(KEYS[1])
    assert admission.overstayed() == ()
    clock.advance(5.0)
    assert admission.overstayed() == ("w1",)
    assert admission.admitted == {"w0"}
    assert admission.overstayed() == ()


def test_a_guest_has_one_connection(admission: Admission, clock: ManualClock) -> None:
    assert [admission.judge(KEYS[1]), admission.judge(KEYS[1])] == ["w1", None]
    with socket.socket() as connection:
        admission.introduced("w1", TcpConnection(connection.fileno(), os.fstat(connection.fileno()).st_ino))
        clock.advance(10.0)
        assert admission.judge(KEYS[1]) is None
        admission.dismiss("w1")
        assert admission.judge(KEYS[1]) is None
    assert admission.judge(KEYS[1]) == "w1"
    admission.introduced("w1", None)  # gone by then
    assert admission.judge(KEYS[1]) == "w1"


FULL = Refused("limited", "full")


@pytest.fixture
def crowded(clock: ManualClock) -> Admission:
    policy = GuestPolicy(name_of, limit=1, takes=lambda ticket, name: ticket == f"for {name}", crowded=FULL)
    admission = Admission({KEYS[0]: "w0"}, policy, clock)
    assert admission.judge(KEYS[1]) == "w1"
    return admission


def test_with_a_ticket_there_is_a_place(crowded: Admission) -> None:
    assert crowded.judge(KEYS[2], "a") == "w2"
    assert crowded.admitted == {"w0", "w1"}
    assert crowded.key_of("w2") is None
    assert crowded.refusal("w2", "for w2", None) is None
    assert crowded.admitted == {"w0", "w1", "w2"}
    assert crowded.key_of("w2") == KEYS[2]


def test_a_ticket_replaces_only_a_guest_that_had_its_time_at_the_handshake(crowded, clock):
    for key in KEYS[2:4]:
        crowded.judge(key)
    clock.advance(4.0)  # the owner was busy
    assert [crowded.refusal(name, f"for {name}", None) for name in ("w2", "w3")] == [None, FULL]
    assert crowded.admitted == {"w0", "w1", "w2"}


def test_without_a_ticket_the_crowd_is_told_once(crowded: Admission) -> None:
    crowded.judge(KEYS[2])
    assert crowded.refusal("w2", "for w1", None) is FULL
    assert crowded.refusal("w2", "for w2", None) is None  # it has had its turn
    assert crowded.refusal("w1", "for w1", None) is None
    assert crowded.admitted == {"w0", "w1"}


def test_a_revoked_or_denied_key_is_no_guest_until_admitted(admission: Admission) -> None:
    admission.revoke("w0")
    admission.judge(KEYS[1])
    admission.revoke("w1", KEYS[1])
    assert admission.admitted == frozenset()
    assert [admission.judge(key) for key in KEYS[:2]] == [None, None]
    admission.admit(KEYS[0], "w0")
    assert admission.judge(KEYS[0]) == "w0"


def test_a_guest_never_takes_the_name_of_a_member() -> None:
    admission = Admission({KEYS[0]: "same"}, GuestPolicy(lambda _: "same"))
    assert admission.judge(KEYS[1]) is None
    assert admission.key_of("same") == KEYS[0]
