"""The shapes of collectives say who sends to whom."""

from typing import get_args

import pytest

from tpiedge.planner.network import phases
from tpiedge.wire.fields import CollectiveName


@pytest.mark.parametrize("collective", get_args(CollectiveName))
@pytest.mark.parametrize("size", range(2, 9))
def test_every_node_hears_of_every_other_and_no_message_is_for_its_sender(collective, size):
    """Slices apart: what a message carries includes all that its sender has heard by then."""
    heard = {rank: {rank} for rank in range(size)}
    for phase in phases(collective, size):
        before = {rank: set(known) for rank, known in heard.items()}
        for hop in phase:
            assert hop.source != hop.target
            heard[hop.target] |= before[hop.source]
    assert all(known == set(range(size)) for known in heard.values())
