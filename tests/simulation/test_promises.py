"""Promises of docs/faults.md, each at every moment of an answer, or for as long as it takes on a manual clock."""

from collections import Counter
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from tests.simulation.clients import Client
from tests.simulation.cluster import PACKS, Cluster, Setup
from tests.simulation.stories import Event, begun, play
from tpiedge.errors import TpiedgeError
from tpiedge.launch.offer import MemoryOffer
from tpiedge.launch.slot import NodeSlot
from tpiedge.master.reconciler import RECOVERY_GRACE_S, NotServing
from tpiedge.wire.control import Finished

TRIO: tuple[Event, ...] = (("join", 1), ("join", 2), ("wait", 3))
#: What harms worker 1 or rank 0.
HARMS: tuple[Event, ...] = (
    ("vanish", 1),
    ("crash", 1),
    ("crash", 0),
    ("freeze_machine", 1),
    ("freeze_node", 1),
    ("break_link", 1),
    ("restart_agent", 1),
    ("leave", 1),
    ("revoke", 1),
)
KINDS = ("", "scores", "vector", "grammar")


@pytest.fixture
def trio() -> Iterator[Cluster]:
    cluster = begun(*TRIO)
    yield cluster
    cluster.end()


def ended(cluster: Cluster, client: Client | None, limit_s: float = 60.0) -> Finished | TpiedgeError:
    assert client is not None
    cluster.wait_for(lambda: client.end is not None, limit_s)
    assert client.end is not None
    return client.end


@pytest.mark.fault("P1", "at any moment of any kind of answer: it pauses, goes on and is exact")
@pytest.mark.fault("P1", "embeddings under way are computed anew and are the same")
@pytest.mark.fault("P8", "before the first token, as at any later moment: the answer comes, and is exact")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: f"{harm[0]} {harm[1]}")
def test_answers_survive_any_loss_at_any_moment(harm: Event, kind: str) -> None:
    # Each harm meets each moment with half of the kinds.
    first = 3 * ((HARMS.index(harm) + KINDS.index(kind)) % 2)
    moments: list[Event] = [("turn",), *(("wait", tenths / 10 + 0.1) for tenths in range(first, 30, 6))]
    for moment in moments:
        cluster = play(Setup(workers=2), *TRIO, ("ask", 4, 8, kind), ("ask", 3, 8), moment, harm, ("wait", 5))
        totals = cluster.master.status.totals
        assert totals.failed == 0
        # Nothing is computed in a turn, and a grammar is compiled first.
        assert moment != ("turn",) or totals.resumed == 2 - (kind == "grammar")


@pytest.mark.fault("P3", "of a second: the answer is whole, in the same epoch")
def test_one_second_freeze_keeps_answer_and_epoch(trio: Cluster) -> None:
    epoch = trio.epoch
    client = trio.ask(4, 12)
    trio.wait(1)
    trio.freeze_machine(1)
    trio.wait(1)
    trio.thaw(1)
    assert isinstance(ended(trio, client), Finished)
    assert trio.epoch == epoch


@pytest.mark.fault(
    "P4", "too few for longer than --recovery-grace: the answer ends in an error, and others are refused"
)
def test_answer_fails_when_recovery_grace_ends() -> None:
    cluster = begun(("join", 1), ("wait", 3), setup=Setup(min_workers=1))
    client = cluster.ask(4, 60, "whole")
    cluster.wait(1)
    cluster.vanish(1)
    cluster.wait(RECOVERY_GRACE_S - 5)
    assert cluster.clients == [client], "it waits"
    error = ended(cluster, client)
    assert isinstance(error, NotServing)
    assert "0 of 1 workers here" in str(error)
    with pytest.raises(NotServing):
        cluster.submit()
    cluster.end()


@pytest.mark.fault(
    "P1", "comes and goes all the time: the others answer, exactly; it is taken back once it stays"
)
def test_unstable_worker_is_left_out_until_it_stays(trio: Cluster) -> None:
    for _ in range(20):
        client = trio.ask(4, 4)
        trio.vanish(1)
        trio.wait(2)
        trio.join(1)
        trio.wait(2)
        assert isinstance(ended(trio, client), Finished)
    epoch = trio.epoch
    trio.vanish(1)
    trio.wait(2)
    trio.join(1)
    trio.wait(2)
    assert (trio.epoch, trio.members()) == (epoch, ("master", "w-2")), "the others do not notice any more"
    trio.wait_for(lambda: "w-1" in trio.members(), 3600)


@pytest.mark.fault(
    "P2",
    "again and again: the others answer without it, exactly; it is tried again after a pause, then a longer one",
)
def test_repeatedly_dying_node_is_left_out_longer_each_time(trio: Cluster) -> None:
    without_s = [_without(trio) for _ in range(5)]
    assert without_s[-1] > 30
    assert without_s[-1] > without_s[-2] > without_s[0]


def _without(cluster: Cluster) -> float:
    client = cluster.ask(4, 6)
    cluster.wait(1)
    cluster.crash(1)
    assert isinstance(ended(cluster, client), Finished)
    begin = cluster.clock.now()
    cluster.wait_for(lambda: cluster.ready and "w-1" in cluster.members(), 3600)
    return cluster.clock.now() - begin


@pytest.mark.fault(
    "P2", "less memory of the master's own machine: another plan, no loss; the answer is exact"
)
def test_changed_memory_limit_of_the_master_causes_no_loss(trio: Cluster) -> None:
    client = trio.ask(4, 100, "whole")
    trio.wait(1)
    for mib in (100, 1024):
        epoch = trio.epoch
        trio.limit(0, mib)
        trio.wait_for(lambda before=epoch: trio.ready and trio.epoch > before, 60)  # type: ignore[misc]
    assert isinstance(ended(trio, client), Finished)
    assert not [loss for loss in trio.master.status.history.losses if loss]


@pytest.mark.fault(
    "P2", "the master's own node, killed for it: less is planned for it, and the answer goes on, exactly"
)
def test_master_node_out_of_memory_shrinks_its_share(trio: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    client, epoch, own = trio.ask(4, 12), trio.epoch, trio.rank_zero

    def parts() -> list[int]:
        ready = trio.master._sessions.ready
        return [] if ready is None else [len(one.share.along("attention")) for one in ready.assignments]

    assert parts() == [8, 8, 8]
    offer = MemoryOffer(own.memory_bytes)
    slot = NodeSlot(2, offer, lambda: own.usable_bytes, trio.clock, print, pages=own.pages)
    slot._child, slot._planned_bytes = Mock(out_of_memory=True), 700 << 20

    def stop(_grace_s: float) -> None:
        slot.stop()
        own.memory_bytes = slot.memory_bytes

    monkeypatch.setattr(own, "stop", stop)
    trio.crash(0)
    assert isinstance(ended(trio, client), Finished)
    assert parts() == [5, 9, 10]
    assert trio.epoch == epoch + 1


@pytest.mark.fault(
    "P2", "less than the least: it is idle until it has more, and nothing is tried again and again"
)
def test_worker_idles_until_it_has_enough_memory(trio: Cluster) -> None:
    trio.limit(1, 0)
    trio.crash(1)
    trio.wait(5)
    epoch = trio.epoch
    trio.wait(120)
    assert (trio.epoch, trio.members()) == (epoch, ("master", "w-2"))
    trio.limit(1, 1024)
    trio.wait_for(lambda: "w-1" in trio.members(), 120)


@pytest.mark.fault("P6", "it fails alone, while others begin, run and end beside it")
def test_poison_request_fails_alone() -> None:
    cluster = begun(*TRIO, setup=Setup(parallel=4, queue_limit=8))
    others = [cluster.ask(4, 8) for _ in range(3)]
    poison = cluster.ask(4, 8, "poison")
    assert isinstance(ended(cluster, poison, 300), TpiedgeError)
    assert all(isinstance(ended(cluster, other), Finished) for other in others)
    cluster.finish()
    cluster.end()


@pytest.mark.fault("P17", "answers are exact and slower, by the same plan; nobody is lost")
def test_five_times_slower_steps_keep_answer_and_epoch(trio: Cluster) -> None:
    epoch = trio.epoch
    client = trio.ask(4, 12)
    trio.slow_steps(5)
    assert isinstance(ended(trio, client, 120), Finished)
    assert trio.epoch == epoch


@pytest.mark.fault("P18", "it takes part in the middle of an answer, which pauses, goes on and is exact")
@pytest.mark.fault("P18", "the change of plans comes in the middle of answers, which go on")
def test_joining_worker_takes_part_in_running_answers(trio: Cluster) -> None:
    clients = [trio.ask(4, 600, "whole") for _ in range(2)]
    trio.wait(1)
    trio.join(3)
    trio.wait_for(lambda: "w-3" in trio.members(), 150)
    assert trio.clients == clients, "they run"
    assert all(isinstance(ended(trio, client, 300), Finished) for client in clients)
    assert trio.master.status.totals.resumed == 2


def test_endless_answers_of_two_models_have_equal_parts_of_the_time() -> None:
    cluster = begun(*TRIO, ("slow_loading", 9), setup=Setup(workers=2, models=2))
    for model in range(2):
        cluster.ask(3, 5000, "whole", model=model)
    served = Counter[str]()
    for _ in range(2000):
        cluster.wait(0.3)
        served[cluster.master.status.pack if cluster.ready else ""] += 1
    assert served[""] <= 2000 / 8, "a tenth, and heartbeats"
    assert served[PACKS[0]] == pytest.approx(served[PACKS[1]], rel=0.15)
    cluster.end()


def test_worker_failing_to_prepare_causes_no_replanning_loop() -> None:
    """The worker serves with its part while another one joins."""
    play(
        Setup(workers=4, parallel=1),
        ("join", 1),
        ("wait", 20),
        ("trouble", 1, "the disk is full"),
        ("join", 4),
        ("wait", 2),
    )
