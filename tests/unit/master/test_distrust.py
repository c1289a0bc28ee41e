"""When nothing may pass between workers alone."""

from hypothesis import given
from hypothesis import strategies as st

from tpiedge.master.blame import STAR_S, Distrust
from tpiedge.testing.clock import ManualClock

TIMES = st.lists(st.tuples(st.floats(0.0, 2 * STAR_S), st.booleans()), max_size=12)


@given(TIMES)
def test_there_is_a_reason_for_as_long_after_the_last_dispute(steps: list[tuple[float, bool]]) -> None:
    distrust, clock, last = Distrust(), ManualClock(), None
    for wait_s, dispute in steps:
        clock.advance(wait_s)
        if dispute:
            last = clock.now()
            distrust.disputed("node 1 says that node 2 is silent", last)
        due = last is not None and clock.now() < last + STAR_S
        assert bool(distrust.reason(clock.now())) == due


def test_the_reason_is_the_last_dispute_and_fits_into_a_message() -> None:
    distrust = Distrust()
    distrust.disputed("node 1 says that node 2 is silent", 0.0)
    distrust.disputed("node 3 says that node 2 sent junk" + "!" * 5000, 1.0)
    reason = distrust.reason(2.0)
    assert "node 3 says that node 2 sent junk!" in reason
    assert "one worker's word" in reason
    assert len(reason) <= 2000
