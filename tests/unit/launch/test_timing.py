"""How long a silence may be."""

import pytest

from tpiedge.launch.timing import Timing


def test_links_of_a_room_keep_the_promise_of_two_seconds() -> None:
    assert Timing.over(0.02, 0.01) == Timing()
    assert Timing().timeout_s + Timing().heartbeat_s < 2


@pytest.mark.fault("P10", "slow and lossy links are given more time before a node counts as lost")
def test_a_long_way_and_losses_are_given_time() -> None:
    assert Timing.over(0.4, 0.0).timeout_s == 8 * 0.4
    assert Timing.over(0.0, 0.05).timeout_s == 3 * Timing().timeout_s
    assert Timing.over(0.4, 0.05).timeout_s == 3 * 8 * 0.4
