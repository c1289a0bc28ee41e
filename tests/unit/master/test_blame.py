"""A worker blames another one: which of them the next session leaves out, and what else the master does."""

import dataclasses

import pytest

from tests.unit.master.stories import SERVED, Story
from tests.unit.master.test_session import EPOCH, Run
from tpiedge.errors import PeerLost
from tpiedge.master.session import Phase
from tpiedge.master.session_manager import STAR_S
from tpiedge.planner.network import listens
from tpiedge.wire.codec import PROTOCOL
from tpiedge.wire.control import Assign, Failed, Hello, Listening, Ready
from tpiedge.wire.epochs import NodeEnded
from tpiedge.wire.fields import CollectiveChoice

SILENT = str(PeerLost(2, "the all-reduce of step 1", "it does not answer"))
JUNK = "node-2 sent a malformed message: too short"
OF_RANK_0 = str(PeerLost(0, "connecting", "its port 7071 for data cannot be reached"))
NOT_FINITE = "the sum of step 1 is not finite in the slice that node 2 added up"


def gave_up(run: Run, rank: int, kind: str, words: str) -> None:
    """The node says why it ends, and then its process has ended."""
    run.node(rank, Failed(EPOCH, rank, "", kind, words))
    if rank:
        run.session.heard(run.workers[rank - 1], NodeEnded(EPOCH, "", "status 3"))
    elif run.session.epoch is not None:
        run.session.epoch.ended(0, "status 3")
    assert run.session.phase is Phase.ENDED


def started(collective: CollectiveChoice, *workers: str, ready: bool) -> Run:
    run = Run(*workers, served=dataclasses.replace(SERVED, collective=collective))
    run.launched()
    size = len(workers) + 1
    for rank in range(size):
        run.node(rank, Hello(0, rank, 1, PROTOCOL, "0", 1, "cpu"))
        if listens(rank, size, collective):
            run.node(rank, Listening(EPOCH, rank, f"tcp://127.0.0.1:{7071 + rank}"))
    for rank in range(size if ready else 0):
        run.node(rank, Ready(EPOCH, rank, 1, 0.1))
    assert run.session.phase is (Phase.READY if ready else Phase.LAUNCHED)
    return run


def test_the_words_of_a_node_are_told_with_the_names_of_machines() -> None:
    run = started("auto", "w-1", "w-2", ready=True)
    gave_up(run, 1, "PeerLost", SILENT)
    assert str(run.failure.error) == (
        "node 1 (pi) was lost during the work: it gave up, because node 2 (pi) was lost during the all-reduce of step "
        "1: it does not answer"
    )


@pytest.mark.parametrize(
    ("collective", "ready", "rank", "kind", "words", "unfit", "crashed"),
    [
        # Word against word: neither is left out.
        ("auto", False, 1, "PeerLost", SILENT, None, None),
        ("auto", False, 1, "Misconduct", JUNK, None, None),
        ("mesh", True, 1, "PeerLost", SILENT, None, None),
        ("mesh", True, 1, "Misconduct", JUNK, None, None),
        ("mesh", True, 1, "ProtocolError", NOT_FINITE, None, None),
        ("mesh", True, 0, "ProtocolError", NOT_FINITE, None, None),
        # Who cannot reach rank 0 is left out: the others would never serve if they went on with it.
        ("auto", False, 1, "PeerLost", OF_RANK_0, "w-1", None),
        # By the star no worker can know of another one.
        ("star", False, 1, "PeerLost", SILENT, "w-1", "w-1"),
        ("star", True, 1, "PeerLost", SILENT, None, "w-1"),
    ],
)
def test_whose_fault_it_is_that_a_node_gives_up_over_another(
    collective: CollectiveChoice,
    ready: bool,
    rank: int,
    kind: str,
    words: str,
    unfit: str | None,
    crashed: str | None,
) -> None:
    run = started(collective, "w-1", "w-2", ready=ready)
    gave_up(run, rank, kind, words)
    assert (words in run.failure.disputed) == (unfit is crashed is None)
    assert (run.failure.unfit, run.failure.crashed) == (unfit, crashed)


def collectives(story: Story) -> set[str]:
    """What the nodes of the serving epoch were told."""
    nodes = [node for (_, epoch), node in story.nodes.items() if epoch == story.epoch]
    assert nodes
    return {one.collective for node in nodes for one in node.heard if isinstance(one, Assign)}


def dispute(story: Story) -> None:
    """The node of rank 1 gives up over that of rank 2."""
    story.node(1, story.epoch).fail("PeerLost", SILENT)
    machine = story.members()[1]
    story.turn()
    story.agents[machine].failed("status 3")
    story.turn()
    story.wait_for(lambda: story.ready)


def test_after_a_dispute_everything_passes_rank_0_for_a_while(story: Story) -> None:
    story.join("w-1")
    story.join("w-2")
    story.settle()
    assert (len(story.members()), collectives(story)) == (3, {"auto"})
    dispute(story)
    story.wait_for(lambda: len(story.members()) == 3)
    assert story.ready
    assert collectives(story) == {"star"}
    assert "one worker's word stands against another's" in story.master.status.collective_why
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
