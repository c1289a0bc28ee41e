"""A local cluster's start, where the control thread has put all events before the caller takes the first."""

import queue
from pathlib import Path

import pytest

from tpiedge.errors import PeerLost
from tpiedge.local import cluster as module
from tpiedge.local.cluster import ClusterSpec, LocalCluster
from tpiedge.master.epoch import EpochEvent
from tpiedge.pack.share import NodeShare, Share
from tpiedge.wire.control import Loading, Ready

SPEC = ClusterSpec(
    Path("p"),
    tuple(NodeShare(Share(rank, rank + 1), Share(rank, rank + 1)) for rank in range(4)),
    "f32",
    1,
    8,
)
CHOSEN = Ready(1, 0, 10, 0.1, "mesh", "two-shot", "measured")


class AheadController:
    """Has heard every node, and passed on what it heard."""

    all_ready = True
    running = True
    said: tuple[EpochEvent, ...] = ()

    def __init__(self, *_wiring: object) -> None:
        self.events: queue.Queue[EpochEvent] = queue.Queue()

    def start(self) -> None:
        for event in self.said:
            self.events.put(event)

    def close(self) -> None:
        self.running = False


class IdleChild:
    pid = 1

    def exit_cause(self) -> str | None:
        return "ended"

    def stop(self, deadline: float) -> None:
        return


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> type[AheadController]:
    monkeypatch.setattr(module, "Controller", AheadController)
    monkeypatch.setattr(LocalCluster, "_spawn", lambda self, rank: IdleChild())
    return AheadController


def others_ready() -> list[EpochEvent]:
    return [Ready(1, rank, 10, 0.1) for rank in (1, 2, 3)]


@pytest.mark.parametrize("last", [False, True])
def test_what_rank_0_chose_is_known_once_the_nodes_have_started(
    ahead: type[AheadController], monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    said = [*others_ready(), CHOSEN] if last else [CHOSEN, *others_ready()]
    monkeypatch.setattr(ahead, "said", (Loading(1, 2, 5, 10), *said))
    shown: list[tuple[int, int]] = []
    with LocalCluster(SPEC, [10] * 4, lambda done, total: shown.append((done, total))) as cluster:
        assert cluster.routing == CHOSEN
    assert shown[0] == (5, 40)
    assert shown[-1] == (40, 40)


def test_a_loss_among_the_words_of_those_who_are_ready_ends_the_start(
    ahead: type[AheadController], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "said", (*others_ready(), PeerLost(3, "the start", "killed"), CHOSEN))
    with pytest.raises(PeerLost, match="killed"):
        LocalCluster(SPEC).start()
