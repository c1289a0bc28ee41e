"""Connections that are nobody's: few, for a while, and the newest rather than the oldest."""

from hypothesis import given
from hypothesis import strategies as st

from tpiedge.transport.backlog import Strangers
from tpiedge.transport.cutting import TcpConnection

LIMIT, EACH = 5, 3
ONES = [TcpConnection(number, number) for number in range(30)]


def test_of_one_address_the_oldest_goes() -> None:
    strangers = Strangers(LIMIT, EACH)
    gone = [strangers.came(one, "a", 5.0) for one in ONES[:5]]
    assert gone == [None, None, None, ONES[0], ONES[1]]


def test_of_all_the_oldest_of_the_address_with_most_goes() -> None:
    strangers = Strangers(LIMIT, EACH)
    gone = [strangers.came(one, address, 5.0) for one, address in zip(ONES, "bacaca", strict=False)]
    assert gone == [None, None, None, None, None, ONES[1]]


def test_who_is_introduced_takes_no_place_and_is_never_overdue() -> None:
    strangers = Strangers(LIMIT, EACH)
    for one in ONES[:3]:
        strangers.came(one, "a", 5.0)
    strangers.left(ONES[0])
    strangers.left(ONES[0])
    assert strangers.came(ONES[3], "a", 6.0) is None
    assert strangers.overdue(4.9) == ()
    assert strangers.overdue(5.0) == (ONES[1], ONES[2])
    assert strangers.overdue(6.0) == (ONES[3],)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("came"), st.sampled_from(ONES), st.sampled_from("abcd")),
            st.tuples(st.just("left"), st.sampled_from(ONES), st.just("")),
        )
    )
)
def test_no_more_than_may_be_and_the_newcomer_stays(events: list[tuple[str, TcpConnection, str]]) -> None:
    strangers, here = Strangers(LIMIT, EACH), dict[TcpConnection, str]()
    for what, one, address in events:
        here.pop(one, None)
        if what == "left":
            strangers.left(one)
            continue
        gone = strangers.came(one, address, 1.0)
        here[one] = address
        full = len(here) > LIMIT or list(here.values()).count(address) > EACH
        assert (gone is not None) == full
        if gone is not None:
            assert gone != one
            del here[gone]
        assert {other for other in ONES if other in strangers} == here.keys()
    assert set(strangers.overdue(1.0)) == here.keys()
