"""Guests of a hub: few, for a short time, and never instead of a member."""

import pytest

from tpiedge.testing.clock import ManualClock
from tpiedge.transport.admission import Admission, GuestPolicy
from tpiedge.transport.keys import CurveKeys

KEYS = [CurveKeys.generate().public for _ in range(6)]


def name_of(key: str) -> str:
    return f"w{KEYS.index(key)}"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def admission(clock: ManualClock) -> Admission:
    return Admission({KEYS[0]: "w0"}, GuestPolicy(name_of, limit=3, each=2, stay_s=20.0, grace_s=3.0), clock)


def test_without_a_policy_strangers_stay_out() -> None:
    admission = Admission({KEYS[0]: "w0"})
    assert [admission.judge(key) for key in KEYS[:2]] == ["w0", None]
    assert admission.counters.rejected == 1


def test_guests_are_told_apart_from_members(admission: Admission) -> None:
    assert [admission.judge(key, "a") for key in KEYS[:2]] == ["w0", "w1"]
    assert admission.guests == ("w1",)
    assert admission.admitted == {"w0", "w1"}
    assert (admission.key_of("w0"), admission.key_of("w1"), admission.key_of("w2")) == (
        KEYS[0],
        KEYS[1],
        None,
    )
    assert (admission.address_of("w1"), admission.address_of("w0")) == ("a", "")
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


def test_time_is_limited_and_not_renewed_by_connecting_again(
    admission: Admission, clock: ManualClock
) -> None:
    admission.judge(KEYS[1])
    clock.advance(15.0)
    admission.judge(KEYS[1])
    assert admission.overstayed() == ()
    clock.advance(5.0)
    assert admission.overstayed() == ("w1",)
    assert admission.admitted == {"w0"}
    assert admission.overstayed() == ()


def test_a_revoked_or_denied_key_is_no_guest_until_admitted(admission: Admission) -> None:
    admission.revoke("w0")
    admission.judge(KEYS[1])
    admission.deny(KEYS[1])
    assert admission.admitted == frozenset()
    assert [admission.judge(key) for key in KEYS[:2]] == [None, None]
    admission.admit(KEYS[0], "w0")
    assert admission.judge(KEYS[0]) == "w0"


def test_a_guest_never_takes_the_name_of_a_member() -> None:
    admission = Admission({KEYS[0]: "same"}, GuestPolicy(lambda _: "same"))
    assert admission.judge(KEYS[1]) is None
    assert admission.key_of("same") == KEYS[0]
