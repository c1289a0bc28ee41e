"""One epoch at the master: from its plan to its end, in every order of events."""

import dataclasses
import logging
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.master.stories import SERVED, assignments_of, request
from tpiedge.errors import OutOfMemory, PeerError, PeerLost, ResourceError
from tpiedge.launch.bootstrap import control_name
from tpiedge.launch.timing import Timing
from tpiedge.master.assignments import Served
from tpiedge.master.blame import Failure
from tpiedge.master.session import Phase, Session
from tpiedge.testing.clock import ManualClock
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.control import (
    AskStats,
    Assign,
    Failed,
    Finished,
    Generate,
    Heartbeat,
    Hello,
    Listening,
    Loading,
    Ready,
    Token,
)
from tpiedge.wire.epochs import Launch, NodeEnded, Prepare, Prepared, Preparing, Release, Spawned
from tpiedge.wire.fields import CollectiveChoice, Compute, WirePrecision
from tpiedge.wire.messages import PROTOCOL, Message

EPOCH = 5
KEYS = [CurveKeys.generate().public for _ in range(3)]


class Run:
    """A session of rank 0 and `workers`, and what went out."""

    def __init__(self, *workers: str, served: Served = SERVED) -> None:
        self.clock = ManualClock()
        self.to_agents: list[tuple[str, Message]] = []
        self.to_nodes: list[tuple[int, Message]] = []
        self.told: list[Message] = []
        self.session = Session(
            EPOCH,
            assignments_of(*workers),
            served,
            Timing(),
            self.clock,
            lambda message, machine: self.to_agents.append((machine, message)),
            lambda message, rank: self.to_nodes.append((rank, message)),
            self.told.append,
        )
        self.workers = workers

    @property
    def failure(self) -> Failure:
        """The session's failure, or a stand-in without a worker if there is none."""
        return self.session.failure or Failure(PeerError("it has not failed"))

    def prepare(self) -> None:
        self.session.prepare()

    def prepared(self) -> None:
        self.session.prepare()
        for number, worker in enumerate(self.workers):
            self.session.heard(worker, Prepared(EPOCH, KEYS[number]))

    def launched(self) -> None:
        self.prepared()
        self.session.launch(KEYS[-1])

    def node(self, rank: int, message: Message) -> None:
        assert self.session.epoch is not None
        self.session.epoch.handle(rank, message)

    def hello(self) -> None:
        for rank in range(len(self.workers) + 1):
            self.node(rank, Hello(0, rank, 1, PROTOCOL, "0", 1, "cpu"))

    def ready(self) -> None:
        self.launched()
        self.hello()
        for rank in range(len(self.workers)):
            self.node(rank, Listening(EPOCH, rank, f"tcp://127.0.0.1:{7071 + rank}"))
        for rank in range(len(self.workers) + 1):
            self.node(rank, Ready(EPOCH, rank, 1, 0.1))


def test_the_phases_of_a_good_epoch() -> None:
    run = Run("w-1", "w-2")
    session = run.session
    run.prepare()
    orders = [(machine, message.rank) for machine, message in run.to_agents if isinstance(message, Prepare)]
    assert orders == [("w-1", 1), ("w-2", 2)]
    session.heard("w-1", Preparing(EPOCH, 1, 2, 3.0))
    assert session.fetching["w-1"].done_bytes == 1
    session.heard("w-1", Prepared(EPOCH, KEYS[0]))
    assert "w-1" not in session.fetching
    assert session.phase is Phase.PREPARING
    session.heard("w-2", Prepared(EPOCH, KEYS[1]))
    assert session.phase is Phase.PREPARED
    assert session.keys == {1: KEYS[0], 2: KEYS[1]}

    session.launch(KEYS[2])
    assert [machine for machine, message in run.to_agents if isinstance(message, Launch)] == ["w-1", "w-2"]
    for rank in range(3):
        run.node(rank, Hello(0, rank, 1, PROTOCOL, "0", 1, "cpu"))
    run.node(0, Listening(EPOCH, 0, "tcp://127.0.0.1:7071"))
    parts = {rank: message for rank, message in run.to_nodes if isinstance(message, Assign)}
    assert {part.peer_keys for part in parts.values()} == {((0, KEYS[2]), (1, KEYS[0]), (2, KEYS[1]))}
    assert [part.pack for part in parts.values()] == [str(SERVED.pack), "", ""]
    assert {(part.collective, part.wire) for part in parts.values()} == {("auto", "f32")}
    for rank in range(3):
        assert session.phase is Phase.LAUNCHED
        run.node(rank, Ready(EPOCH, rank, 1, 0.1))
    assert session.phase is Phase.READY
    run.node(0, Token(EPOCH, "r-1", 0, 5, ()))
    assert isinstance(run.told[-1], Token)

    session.end()
    session.end()
    assert session.phase is Phase.ENDED
    assert session.failure is None


@pytest.mark.parametrize(
    ("wanted", "found", "level"),
    [
        ("auto", ("mesh", "two-shot", "measured"), "INFO"),
        ("mesh", ("mesh", "mesh", ""), "INFO"),
        ("mesh", ("star", "star", "nodes 1 and 2 cannot reach each other"), "WARNING"),
    ],
)
def test_what_rank_0_has_chosen_is_kept_and_told(
    wanted: CollectiveChoice, found: tuple[str, str, str], level: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run("w-1", "w-2", served=dataclasses.replace(SERVED, collective=wanted, wire="bf16"))
    run.launched()
    run.hello()
    parts = [message for _, message in run.to_nodes if isinstance(message, Assign)]
    assert {(part.collective, part.wire) for part in parts} == {(wanted, "bf16")}
    run.node(1, Ready(EPOCH, 1, 1, 0.1, "ring", "ring", "a worker has no say"))
    assert run.session.routing is None
    with caplog.at_level(logging.INFO):
        run.node(0, Ready(EPOCH, 0, 1, 0.1, *found))
    assert run.session.routing is not None
    assert run.session.routing.collective == found[0]
    (record,) = [one for one in caplog.records if "all-reduces" in one.message]
    assert record.levelname == level
    assert (found[2] or "as wanted") in record.message


@pytest.mark.parametrize(
    ("compute", "wire", "shows"),
    [
        ("int8", "f32", ""),
        ("int8", "bf16", "parts that travel as bf16"),
        ("f32", "f32", "f32 arithmetic"),
    ],
)
def test_whether_answers_depend_on_the_split_is_known(
    compute: Compute, wire: WirePrecision, shows: str
) -> None:
    run = Run("w-1", served=dataclasses.replace(SERVED, compute=compute, wire=wire))
    run.launched()
    run.hello()
    assert run.session.split_shows == shows


def test_what_machines_compute_apart_is_known() -> None:
    served = dataclasses.replace(SERVED, compute="int8", apart="a head kept in bf16")
    assert Run("w-1", served=served).session.split_shows == "a head kept in bf16"


def test_a_master_alone_is_prepared_at_once() -> None:
    run = Run()
    run.prepare()
    assert run.session.phase is Phase.PREPARED
    assert run.to_agents == []


def test_messages_of_other_epochs_and_machines_are_dropped() -> None:
    run = Run("w-1")
    run.prepare()
    run.session.heard("w-1", Prepared(EPOCH - 1, KEYS[0]))
    run.session.heard("w-1", NodeEnded(EPOCH + 1, "", "x"))
    run.session.heard("w-9", NodeEnded(EPOCH, "", "x"))
    run.session.lose("w-9", "x")
    assert run.session.phase is Phase.PREPARING


@pytest.mark.parametrize(
    ("event", "unfit", "words"),
    [
        (lambda session: session.heard("w-1", NodeEnded(EPOCH, "DiskFull", "disk full")), "w-1", "disk full"),
        (lambda session: session.lose("w-1", "silent"), None, "silent"),
        (lambda session: session.heard("w-1", Prepared(EPOCH, "")), "w-1", "key"),
    ],
)
@pytest.mark.parametrize("others_ready", [False, True])
def test_what_ends_a_preparation(
    event: Callable[[Session], None], unfit: str | None, words: str, others_ready: bool
) -> None:
    run = Run("w-1", "w-2")
    run.prepare()
    if others_ready:
        run.session.heard("w-2", Prepared(EPOCH, KEYS[1]))
    event(run.session)
    assert run.session.phase is Phase.ENDED
    assert run.failure.unfit == unfit
    assert isinstance(run.failure.error, PeerLost)
    assert words in str(run.failure.error)


def test_a_prepared_worker_can_still_fail() -> None:
    run = Run("w-1")
    run.prepared()
    run.session.heard("w-1", NodeEnded(EPOCH, "", "the store was deleted"))
    assert run.failure.unfit == "w-1"


def test_a_key_is_final() -> None:
    """A second one, when the first is known to the hub, would shut the node out."""
    run = Run("w-1")
    run.launched()
    run.session.heard("w-1", Prepared(EPOCH, KEYS[1]))
    run.session.heard("w-1", Preparing(EPOCH, 1, 2, 3.0))
    assert run.session.keys == {1: KEYS[0]}
    assert run.session.fetching == {}
    assert run.session.phase is Phase.LAUNCHED


def test_a_preparation_without_news_ends() -> None:
    run = Run("w-1", "w-2")
    run.prepare()
    run.session.heard("w-2", Prepared(EPOCH, KEYS[1]))
    run.clock.advance(299.0)
    run.session.heard("w-1", Preparing(EPOCH, 1, 2, 3.0))
    run.clock.advance(299.0)
    run.session.heard("w-1", Preparing(EPOCH, 1, 2, 3.0))
    run.session.tick()
    assert run.session.phase is Phase.PREPARING
    run.clock.advance(2.0)
    run.session.tick()
    assert run.session.phase is Phase.ENDED
    assert run.failure.unfit == "w-1"


def test_a_node_that_lives_but_never_gets_ready_is_lost_in_the_end() -> None:
    run = Run("w-1")
    run.launched()
    for rank in range(2):
        run.node(rank, Hello(0, rank, 1, PROTOCOL, "0", 1, "cpu"))
    run.node(0, Listening(EPOCH, 0, "tcp://127.0.0.1:7071"))
    run.node(0, Ready(EPOCH, 0, 1, 0.1))
    for done in (1, 2, 2):
        assert run.session.phase is Phase.LAUNCHED
        run.clock.advance(150.0)
        run.node(1, Loading(EPOCH, 1, done, 9))
        run.session.tick()
    assert run.session.phase is Phase.LAUNCHED, "300 s are not over"
    run.clock.advance(200.0)
    run.session.tick()
    assert run.session.phase is Phase.ENDED
    assert "no progress in loading" in str(run.failure.error)
    assert run.failure.unfit == "w-1"


def test_a_node_that_fails_while_it_loads_is_unfit_and_a_lost_machine_is_none() -> None:
    run = Run("w-1")
    run.launched()
    run.node(1, Failed(EPOCH, 1, "", "OutOfMemory", "no memory"))
    assert (run.failure.unfit, type(run.failure.error)) == ("w-1", OutOfMemory)
    assert str(run.failure.error) == "on node 1 (pi): no memory"
    other = Run("w-1")
    other.launched()
    other.session.lose("w-1", "cut off")
    assert (other.session.phase, other.failure.unfit) == (Phase.ENDED, None)


@pytest.mark.parametrize(
    ("event", "crashed", "died"),
    [
        (lambda run: run.session.heard("w-2", NodeEnded(EPOCH, "", "killed")), "w-2", True),
        (lambda run: run.node(2, Failed(EPOCH, 2, "", "OutOfMemory", "no memory")), "w-2", True),
        (lambda run: run.node(2, Failed(EPOCH, 2, "", "DiskFull", "no room")), "w-2", True),
        (lambda run: run.session.epoch.broke_protocol(2, "malformed"), "w-2", True),
        (lambda run: run.session.epoch.lose(2, "its connection broke"), "w-2", False),
        (lambda run: run.session.lose("w-2", "silent"), None, False),
        (lambda run: run.session.epoch.ended(0, "killed"), None, True),
    ],
)
def test_whose_node_failed_by_itself_and_whether_it_died(
    event: Callable[[Run], None], crashed: str | None, died: bool
) -> None:
    run = Run("w-1", "w-2")
    run.ready()
    event(run)
    run.session.heard("w-1", NodeEnded(EPOCH, "", "later"))
    assert run.session.phase is Phase.ENDED
    assert (run.failure.crashed, run.failure.died) == (crashed, died)


def test_a_node_that_is_only_silent_did_not_die() -> None:
    run = Run("w-1")
    run.ready()
    run.clock.advance(60.0)
    run.session.epoch.tick()
    assert (run.session.phase, run.failure.died) == (Phase.ENDED, False)


@pytest.mark.parametrize(("stands_s", "died"), [(1.0, False), (Timing().stall_s, True)])
def test_a_node_that_hangs_counts_as_one_that_died(stands_s: float, died: bool) -> None:
    """Rank 0, which waits for it, gives up."""
    run = Run("w-1")
    run.ready()
    run.session.ask(request())
    run.clock.advance(stands_s)
    cause = str(PeerLost(1, "the all-reduce of step 1", "it does not get on"))
    run.node(0, Failed(EPOCH, 0, "", "PeerLost", cause))
    run.session.epoch.ended(0, "status 3")
    assert (run.failure.crashed, run.failure.died) == ("w-1", died)


def test_a_node_that_gave_up_over_another_did_not_fail_by_itself() -> None:
    run = Run("w-1")
    run.ready()
    run.node(1, Failed(EPOCH, 1, "", "PeerLost", "node 0 was lost during allreduce"))
    run.session.heard("w-1", NodeEnded(EPOCH, "", "status 3"))
    assert run.session.phase is Phase.ENDED
    assert run.failure.crashed is None


def test_losses_name_the_machine_that_the_user_knows() -> None:
    run = Run("w-1")
    run.prepare()
    run.session.lose("w-1", "silent")
    assert str(run.failure.error) == "node 1 (pi) was lost during its preparation: silent"
    served = Run("w-1")
    served.ready()
    served.session.heard("w-1", NodeEnded(EPOCH, "", "killed"))
    assert str(served.failure.error) == "node 1 (pi) was lost during the work: killed"
    assert isinstance(served.failure.error, PeerLost)
    assert served.failure.error.host == "pi"


def test_numbers_that_go_back_and_forth_are_no_progress() -> None:
    fetching, loading = Run("w-1"), Run("w-1")
    fetching.prepare()
    loading.launched()
    loading.hello()
    for second in range(400):
        for run in (fetching, loading):
            run.clock.advance(1.0)
        fetching.session.heard("w-1", Preparing(EPOCH, 1 + second % 2, 10, 1.0))
        loading.node(1, Loading(EPOCH, 1, 1 + second % 2, 10))
        fetching.session.tick()
        loading.session.tick()
    assert "no progress for 300 s" in str(fetching.failure.error)
    assert "no progress in loading for 300 s" in str(loading.failure.error)


def test_a_session_is_proven_by_an_answer_or_by_time() -> None:
    by_time, by_answer, by_refusal, failed = (Run(), Run(), Run(), Run())
    for run in (by_time, by_answer, by_refusal, failed):
        run.prepare()
        assert not run.session.proven
        run.ready()
        assert not run.session.proven
    by_time.clock.advance(29.0)
    assert not by_time.session.proven
    by_time.clock.advance(1.0)
    assert by_time.session.proven
    for run in (by_answer, by_refusal, failed):
        run.session.ask(request())
    by_answer.node(0, Finished(EPOCH, "r-0", "stop", 1, 1, 0, 1))
    assert not by_answer.session.proven, "nobody asked for that"
    by_answer.node(0, Finished(EPOCH, "r-1", "stop", 1, 1, 0, 1))
    assert by_answer.session.proven
    by_refusal.node(0, Failed(EPOCH, 0, "r-1", "UserError", "too long"))
    assert by_refusal.session.proven
    failed.node(0, Failed(EPOCH, 0, "r-1", "OutOfMemory", "no memory"))
    assert not failed.session.proven
    by_answer.session.epoch.ended(0, "killed")  # type: ignore[union-attr]
    assert not by_answer.session.proven


def test_rank_0_is_asked_what_it_does_before_it_is_lost() -> None:
    run = Run()
    run.ready()
    run.session.tick()
    run.session.ask(request())
    assert run.to_nodes[-1] == (0, Generate(EPOCH, request()))
    run.clock.advance(14.0)
    run.session.tick()
    assert AskStats(EPOCH) not in [message for _, message in run.to_nodes]
    run.clock.advance(30.0)
    run.session.tick()
    assert run.to_nodes[-1] == (0, AskStats(EPOCH))
    run.clock.advance(30.0)
    run.session.tick()
    assert str(run.failure.error) == (
        "node 0 (the master) was lost during the work: alive but without progress in a request for 74 s"
    )


def test_what_cannot_be_started_ends_a_session() -> None:
    run = Run("w-1")
    run.prepared()
    run.session.fail(Failure(ResourceError("no process is left")))
    run.session.lose("w-1", "later")
    assert run.session.phase is Phase.ENDED
    assert str(run.failure.error) == "no process is left"


def test_the_first_failure_stays() -> None:
    run = Run("w-1")
    run.ready()
    run.session.heard("w-1", NodeEnded(EPOCH, "", "first"))
    run.session.lose("w-1", "second")
    assert "first" in str(run.failure.error)
    assert run.failure.unfit is None, "it had served"


def test_an_ended_session_stays_ended() -> None:
    run = Run("w-1")
    run.launched()
    run.session.end()
    for rank in range(2):
        run.node(rank, Hello(0, rank, 1, PROTOCOL, "0", 1, "cpu"))
        run.node(rank, Ready(EPOCH, rank, 1, 0.1))
    assert run.session.phase is Phase.ENDED


def test_names_of_nodes_tell_the_epoch() -> None:
    assert control_name(1, 2) == "node-1.2"
    assert control_name(1, 2) != control_name(1, 3)


WORKERS = ("w-1", "w-2")


class Sessions(RuleBasedStateMachine):
    """Whatever comes in whatever order: nothing raises, an end is final and has a reason, READY means all are."""

    def __init__(self) -> None:
        super().__init__()
        self.run = Run(*WORKERS)
        self.run.prepare()
        self.session = self.run.session
        self.ended_by_us = False
        self.was: list[Phase] = [self.session.phase]

    @rule(
        worker=st.sampled_from([*WORKERS, "w-9"]),
        epoch=st.sampled_from([EPOCH, EPOCH, EPOCH, EPOCH + 1]),
        kind=st.sampled_from(["preparing", "prepared", "spawned", "ended", "lose"]),
        key=st.sampled_from([*KEYS, ""]),
    )
    def agent(self, worker: str, epoch: int, kind: str, key: str) -> None:
        match kind:
            case "preparing":
                self.session.heard(worker, Preparing(epoch, 1, 2, 3.0))
            case "prepared":
                self.session.heard(worker, Prepared(epoch, key))
            case "spawned":
                self.session.heard(worker, Spawned(epoch, 1, 2))
            case "ended":
                self.session.heard(worker, NodeEnded(epoch, "", "x" * 4096))
            case "lose":
                self.session.lose(worker, "cut off")

    @rule()
    def good_keys(self) -> None:
        for number, worker in enumerate(WORKERS):
            self.session.heard(worker, Prepared(EPOCH, KEYS[number]))

    @rule()
    def launch(self) -> None:
        if self.session.phase is Phase.PREPARED:
            self.session.launch(KEYS[2])

    @rule(
        rank=st.integers(0, 2),
        kind=st.sampled_from(["hello", "listening", "ready", "beat", "failed", "token"]),
    )
    def node(self, rank: int, kind: str) -> None:
        if self.session.epoch is None:
            return
        made: dict[str, Message] = {
            "hello": Hello(0, rank, 1, PROTOCOL, "0", 1, "cpu"),
            "listening": Listening(EPOCH, rank, f"tcp://127.0.0.1:{7071 + rank}"),
            "ready": Ready(EPOCH, rank, 1, 0.1),
            "beat": Heartbeat(EPOCH, rank, 1, 1, 1),
            "failed": Failed(EPOCH, rank, "", "OutOfMemory", "x"),
            "token": Token(EPOCH, "r", 0, 1, ()),
        }
        self.session.epoch.handle(rank, made[kind])

    @rule()
    def everybody_is_ready(self) -> None:
        if self.session.phase is Phase.LAUNCHED:
            for rank in range(3):
                self.node(rank, "ready")

    @rule(seconds=st.floats(0.0, 400.0))
    def tick(self, seconds: float) -> None:
        self.run.clock.advance(seconds)
        self.session.tick()
        if self.session.epoch is not None:
            self.session.epoch.tick()

    @rule()
    def end(self) -> None:
        self.ended_by_us = True
        self.session.end()
        released = {machine for machine, message in self.run.to_agents if isinstance(message, Release)}
        assert released == set(WORKERS)

    @invariant()
    def laws(self) -> None:
        phase = self.session.phase
        order = list(Phase)
        assert order.index(phase) >= order.index(self.was[-1]), "phases do not go back"
        self.was.append(phase)
        if phase is Phase.ENDED:
            assert self.ended_by_us or self.session.failure is not None
        if phase is Phase.READY:
            assert self.session.epoch is not None
            assert self.session.epoch.all_ready
        if phase is not Phase.ENDED:
            assert self.session.failure is None
        if self.run.failure.unfit is not None:
            assert self.run.failure.unfit in WORKERS


@pytest.mark.fault("P21", "an epoch serves, or ends once with its first cause")
class TestSessions(Sessions.TestCase):
    """Random orders."""
