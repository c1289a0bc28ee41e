import dataclasses

import pytest

from tests.unit.master.stories import SERVED, Story
from tests.unit.master.test_session import EPOCH, Run
from tpiedge.errors import PeerLost
from tpiedge.master.session import Phase
from tpiedge.master.session_manager import STAR_S
from tpiedge.wire.control import Assign, Failed
from tpiedge.wire.epochs import NodeEnded
from tpiedge.wire.fields import CollectiveChoice

SILENT = str(PeerLost(2, "the all-reduce of step 1", "it does not answer"))
JUNK = "node-2 sent a malformed message: too short"
OF_RANK_0 = str(PeerLost(0, "connecting", "its port 7071 for data cannot be reached"))
NOT_FINITE = "the sum of step 1 is not finite in the slice that node 2 added up"


def gave_up(run: Run, rank: int, kind: str, words: str) -> None:
    run.node(rank, Failed(EPOCH, rank, "", kind, words))
    if rank:
        run.session.handle_report(run.workers[rank - 1], NodeEnded(EPOCH, "status 3"))
    elif run.session.epoch is not None:
        run.session.epoch.ended(0, "status 3")
    assert run.session.phase is Phase.ENDED


def started(collective: CollectiveChoice, *, ready: bool) -> Run:
    run = Run("w-1", "w-2", served=dataclasses.replace(SERVED, collective=collective))
    (run.ready if ready else run.started)()
    return run


def test_failure_message_names_the_machines() -> None:
    run = started("auto", ready=True)
    gave_up(run, 1, "PeerLost", SILENT)
    assert str(run.failure.error) == (
        "node 1 (pi) was lost during the work: it gave up, because node 2 (pi) was lost during the all-reduce of step "
        "1: it does not answer"
    )


@pytest.mark.parametrize(
    ("collective", "ready", "rank", "kind", "words", "worker", "fault"),
    [
        # Word against word: neither is left out.
        ("auto", False, 1, "PeerLost", SILENT, None, ""),
        ("auto", False, 1, "Misconduct", JUNK, None, ""),
        ("mesh", True, 1, "PeerLost", SILENT, None, ""),
        ("mesh", True, 1, "Misconduct", JUNK, None, ""),
        ("mesh", True, 1, "ProtocolError", NOT_FINITE, None, ""),
        ("mesh", True, 0, "ProtocolError", NOT_FINITE, None, ""),
        # Who cannot reach rank 0 is left out: the others would never serve if they went on with it.
        ("auto", False, 1, "PeerLost", OF_RANK_0, "w-1", "unfit"),
        # By the star no worker can know of another one.
        ("star", False, 1, "PeerLost", SILENT, "w-1", "unfit"),
        ("star", True, 1, "PeerLost", SILENT, "w-1", "died"),
    ],
)
def test_node_giving_up_over_a_peer_is_blamed_or_disputed(
    collective: CollectiveChoice,
    ready: bool,
    rank: int,
    kind: str,
    words: str,
    worker: str | None,
    fault: str,
) -> None:
    run = started(collective, ready=ready)
    gave_up(run, rank, kind, words)
    assert (words in run.failure.disputed) == (worker is None)
    assert run.failure.worker == worker
    assert not worker or run.failure.fault == fault


def collectives(story: Story) -> set[str]:
    nodes = [node for (_, epoch), node in story.nodes.items() if epoch == story.epoch]
    return {one.collective for node in nodes for one in node.heard if isinstance(one, Assign)}


def test_dispute_switches_to_the_star_for_a_while(trio: Story) -> None:
    story = trio
    assert collectives(story) == {"auto"}
    story.node(1, story.epoch).fail("PeerLost", SILENT)
    story.turn()
    story.agents["w-1"].failed("status 3")
    story.turn()
    story.wait_for(lambda: story.ready and len(story.members()) == 3)
    assert collectives(story) == {"star"}
    assert "two workers contradict each other" in story.master.status.collective_why
    assert "it does not answer" in story.master.status.collective_why
    epoch = story.epoch
    story.clock.advance(STAR_S)
    story.settle()
    assert story.epoch == epoch, "what serves goes on"
    story.agents["w-1"].failed("killed")
    story.turn()
    story.wait_for(lambda: story.ready and story.epoch != epoch and len(story.members()) == 3)
    assert collectives(story) == {"auto"}
    assert story.master.status.collective_why == "measured"
