"""A heartbeat that comes late judges nobody, and the next one does."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tpiedge.launch.timing import OwnStalls

BEAT_S = 0.3


def test_a_late_heartbeat_excuses_whoever_was_not_heard_until_the_next_one() -> None:
    stalls = OwnStalls(BEAT_S)
    assert [stalls.beat(late_s) for late_s in (0.0, 0.1, 2.0, 0.0, BEAT_S)] == [
        False,
        False,
        True,
        False,
        False,
    ]


@given(st.lists(st.floats(0.0, 1e6), max_size=30))
def test_of_two_heartbeats_one_judges_however_late_they_are(late: list[float]) -> None:
    stalls = OwnStalls(BEAT_S)
    excused = [stalls.beat(late_s) for late_s in late]
    assert not any(one and other for one, other in pairwise(excused))
