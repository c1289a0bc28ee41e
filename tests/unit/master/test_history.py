"""What is counted of plans."""

from dataclasses import replace

import pytest

from tpiedge.errors import PeerError
from tpiedge.master.blame import Failure
from tpiedge.master.history import LOSS_CAUSES, History, LossCause, PlanHistory

FAILURE = Failure(PeerError("gone"))


def losses(history: History) -> dict[str, int]:
    return {cause: count for cause, count in zip(LOSS_CAUSES, history.so_far.losses, strict=True) if count}


def test_nothing_has_happened() -> None:
    assert History().so_far == PlanHistory()


def test_a_loss_and_the_way_back() -> None:
    """The first plan after it fails, too: requests were answered again with the second one."""
    history = History()
    history.begun(replaces=False)
    history.serves(1.0)
    history.serves(2.0)
    history.lost(replace(FAILURE, machine_lost=True), breached=False, now=10.0)
    history.begun(replaces=False)
    history.lost(FAILURE, breached=False, now=11.0)
    history.failed()
    history.begun(replaces=False)
    history.serves(14.0)
    history.begun(replaces=True)
    history.serves(20.0)
    found = history.so_far
    assert (found.begun, found.failed) == ((1, 2, 1), 2)
    assert losses(history) == {"machine": 1}
    assert (sum(found.recoveries.counts), found.recoveries.total) == (1, 4.0)


@pytest.mark.parametrize(
    ("failure", "breached", "cause"),
    [
        (None, False, "other"),
        (FAILURE, False, "other"),
        (replace(FAILURE, crashed="ann"), False, "node"),
        (replace(FAILURE, crashed="ann"), True, "protocol"),
        (replace(FAILURE, machine_lost=True, intended=True), False, "stopped"),
        (replace(FAILURE, machine_lost=True), False, "machine"),
        (replace(FAILURE, crashed="ann", disputed="silent"), False, "dispute"),
    ],
)
def test_causes(failure: Failure | None, breached: bool, cause: LossCause) -> None:
    history = History()
    history.begun(replaces=False)
    history.serves(0.0)
    history.lost(failure, breached=breached, now=1.0)
    assert losses(history) == {cause: 1}
