"""How much of what has come over a connection counts as waiting."""

from tpiedge.transport.backlog import Arrived, Flow


def test_what_comes_is_waiting_until_it_is_received() -> None:
    flow = Flow()
    assert flow.waiting(Arrived(1000, 1)) == (1000, 1)
    assert flow.waiting(Arrived(1_000_000, 50)) == (1_000_000, 50)
    flow.taken += 999_000
    assert flow.waiting(Arrived(1_000_000, 50)) == (1000, 0)


def test_one_message_that_is_received_does_not_make_up_for_the_rest() -> None:
    flow = Flow()
    for count in range(1, 11):
        flow.taken += 100
        assert flow.waiting(Arrived(count * 1_000_000, count)).byte_count == count * 999_900


def test_what_came_over_the_connection_before_gives_no_credit() -> None:
    flow = Flow()
    flow.taken += 5_000_000
    assert flow.waiting(Arrived(1000, 1)).byte_count == 0
    assert flow.waiting(Arrived(2_001_000, 2)).byte_count == 2_000_000
