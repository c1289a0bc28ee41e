import dataclasses
from collections.abc import Callable

import pytest

from tests.fakes.clock import ManualClock
from tests.unit.master.stories import SERVED, assignments_of, request
from tpiedge.errors import PeerError, PeerLost
from tpiedge.launch.bootstrap import Timing
from tpiedge.master.assignments import Assignments, Served
from tpiedge.master.blame import Failure
from tpiedge.master.session import Phase, Session
from tpiedge.planner.network import listens
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire import control
from tpiedge.wire.epochs import Launch, NodeEnded, Prepare, Prepared, Preparing
from tpiedge.wire.fields import Compute, Message, WirePrecision

EPOCH = 5
KEYS = [CurveKeys.generate().public for _ in range(3)]


class Run:
    def __init__(self, *workers: str, served: Served = SERVED) -> None:
        self.clock = ManualClock()
        self.sent: list[tuple[str, Message]] = []
        self.told: list[Message] = []
        self.session = Session(
            EPOCH,
            Assignments(assignments_of(*workers)),
            served,
            Timing(),
            self.clock,
            lambda message, peer: self.sent.append((peer, message)),
            self.told.append,
        )
        self.workers, self.collective = workers, served.collective

    @property
    def failure(self) -> Failure:
        return self.session.failure or Failure(PeerError("it has not failed"))

    def prepared(self) -> None:
        self.session.prepare()
        for number, worker in enumerate(self.workers):
            self.session.handle_report(worker, Prepared(EPOCH, KEYS[number]))

    def launched(self) -> None:
        self.prepared()
        self.session.launch(KEYS[-1])

    def node(self, rank: int, message: Message) -> None:
        assert self.session.epoch is not None
        self.session.epoch.handle(rank, message)

    def hello(self) -> None:
        for rank in range(len(self.workers) + 1):
            self.node(rank, control.Hello(0, rank))

    def started(self) -> None:
        self.launched()
        self.hello()
        size = len(self.workers) + 1
        for rank in range(size):
            if listens(rank, size, self.collective):
                self.node(rank, control.Listening(EPOCH, rank, f"tcp://127.0.0.1:{7071 + rank}"))

    def ready(self) -> None:
        self.started()
        for rank in range(len(self.workers) + 1):
            self.node(rank, control.Ready(EPOCH, rank, 1))


def test_session_without_failures_passes_all_phases() -> None:
    run = Run("w-1", "w-2")
    session = run.session
    run.session.prepare()
    orders = [(machine, message.rank) for machine, message in run.sent if isinstance(message, Prepare)]
    assert orders == [("w-1", 1), ("w-2", 2)]
    session.handle_report("w-1", Preparing(EPOCH, 1, 2, 3.0))
    assert session.fetching["w-1"].done_bytes == 1
    session.handle_report("w-1", Prepared(EPOCH, KEYS[0]))
    assert "w-1" not in session.fetching
    assert session.phase is Phase.PREPARING
    session.handle_report("w-2", Prepared(EPOCH, KEYS[1]))
    assert session.phase is Phase.PREPARED
    assert session.keys == {1: KEYS[0], 2: KEYS[1]}

    session.launch(KEYS[2])
    assert [machine for machine, message in run.sent if isinstance(message, Launch)] == ["w-1", "w-2"]
    for rank in range(3):
        run.node(rank, control.Hello(0, rank))
    run.node(0, control.Listening(EPOCH, 0, "tcp://127.0.0.1:7071"))
    parts = {message.rank: message for _, message in run.sent if isinstance(message, control.Assign)}
    assert {part.peer_keys for part in parts.values()} == {((0, KEYS[2]), (1, KEYS[0]), (2, KEYS[1]))}
    assert {(part.collective, part.wire) for part in parts.values()} == {("auto", "f32")}
    for rank in range(3):
        assert session.phase is Phase.LAUNCHED
        run.node(rank, control.Ready(EPOCH, rank, 1))
    assert session.phase is Phase.READY
    run.node(0, control.Token(EPOCH, "r-1", 0, 5, ()))
    assert isinstance(run.told[-1], control.Token)

    session.end()
    session.end()
    assert session.phase is Phase.ENDED
    assert session.failure is None


def test_mismatched_step_spans_leave_timeline_usable() -> None:
    run = Run("w-1")
    run.ready()
    for rank, step in ((0, 7), (1, 1 << 60), (0, 9)):
        run.node(rank, control.StepSpans(EPOCH, rank, step, 1, ((0, 5),), (), ()))
        assert run.session.timeline is None
    run.node(1, control.StepSpans(EPOCH, 1, 9, 1, ((0, 5),), (), ()))
    found = run.session.timeline
    assert found is not None
    assert (found.epoch, found.spans[0].step) == (EPOCH, 9)
    run.node(1, control.StepSpans(EPOCH, 1, 11, 1, ((0, 5),), (), ()))
    assert run.session.timeline is found


@pytest.mark.parametrize(
    ("compute", "wire", "shows"),
    [("int8", "f32", ""), ("int8", "bf16", "parts that travel as bf16"), ("f32", "f32", "f32 arithmetic")],
)
def test_split_dependence_follows_compute_and_wire(compute: Compute, wire: WirePrecision, shows: str) -> None:
    assert dataclasses.replace(SERVED, compute=compute, wire=wire).split_shows == shows


@pytest.mark.parametrize(
    ("event", "unfit", "words"),
    [
        (lambda session: session.handle_report("w-1", NodeEnded(EPOCH, "disk full")), "w-1", "disk full"),
        (lambda session: session.drop_machine("w-1", "silent"), None, "silent"),
        (lambda session: session.handle_report("w-1", Prepared(EPOCH, "")), "w-1", "key"),
    ],
)
@pytest.mark.parametrize("others_ready", [False, True])
def test_failed_preparation_ends_the_session(
    event: Callable[[Session], None], unfit: str | None, words: str, others_ready: bool
) -> None:
    run = Run("w-1", "w-2")
    run.session.prepare()
    if others_ready:
        run.session.handle_report("w-2", Prepared(EPOCH, KEYS[1]))
    event(run.session)
    assert run.session.phase is Phase.ENDED
    assert (run.failure.worker, run.failure.fault) == (unfit, "unfit" if unfit else "")
    assert isinstance(run.failure.error, PeerLost)
    assert words in str(run.failure.error)


@pytest.mark.parametrize(
    ("event", "crashed", "died"),
    [
        (lambda run: run.session.handle_report("w-2", NodeEnded(EPOCH, "killed")), "w-2", True),
        (lambda run: run.node(2, control.Failed(EPOCH, 2, "", "OutOfMemory", "no memory")), "w-2", True),
        (lambda run: run.node(2, control.Failed(EPOCH, 2, "", "DiskFull", "no room")), "w-2", True),
        (lambda run: run.session.epoch.broke_protocol(2, "malformed"), "w-2", True),
        (lambda run: run.session.epoch.mark_lost(2, "its connection broke"), "w-2", False),
        (lambda run: run.session.drop_machine("w-2", "silent"), None, False),
        (lambda run: run.session.epoch.ended(0, "killed"), None, True),
    ],
)
def test_failure_names_worker_and_whether_its_node_died(
    event: Callable[[Run], None], crashed: str | None, died: bool
) -> None:
    run = Run("w-1", "w-2")
    run.ready()
    event(run)
    run.session.handle_report("w-1", NodeEnded(EPOCH, "later"))
    assert run.session.phase is Phase.ENDED
    assert (run.failure.worker, run.failure.died) == (crashed, died)


@pytest.mark.parametrize(("stands_s", "died"), [(1.0, False), (Timing().stall_s, True)])
def test_hanging_node_counts_as_dead(stands_s: float, died: bool) -> None:
    """Rank 0, which waits for it, gives up."""
    run = Run("w-1")
    run.ready()
    run.session.generate(request())
    run.clock.advance(stands_s)
    cause = str(PeerLost(1, "the all-reduce of step 1", "it does not get on"))
    run.node(0, control.Failed(EPOCH, 0, "", "PeerLost", cause))
    run.session.epoch.ended(0, "status 3")
    assert (run.failure.worker, run.failure.died) == ("w-1", died)


def test_alternating_progress_numbers_end_in_timeout() -> None:
    fetching, loading = Run("w-1"), Run("w-1")
    fetching.session.prepare()
    loading.launched()
    loading.hello()
    for second in range(400):
        for run in (fetching, loading):
            run.clock.advance(1.0)
        fetching.session.handle_report("w-1", Preparing(EPOCH, 1 + second % 2, 10, 1.0))
        loading.node(1, control.Loading(EPOCH, 1, 1 + second % 2, 10))
        fetching.session.tick()
        loading.session.tick()
    assert "no progress for 300 s" in str(fetching.failure.error)
    assert "no progress in loading for 300 s" in str(loading.failure.error)


def test_a_session_is_proven_by_an_answer_or_by_time() -> None:
    by_time, by_answer, by_refusal, failed = (Run(), Run(), Run(), Run())
    for run in (by_time, by_answer, by_refusal, failed):
        run.session.prepare()
        assert not run.session.proven
        run.ready()
        assert not run.session.proven
    by_time.clock.advance(29.0)
    assert not by_time.session.proven
    by_time.clock.advance(1.0)
    assert by_time.session.proven
    for run in (by_answer, by_refusal, failed):
        run.session.generate(request())
    by_answer.node(0, control.Finished(EPOCH, "r-0", "stop", 1, 1, 0, 1))
    assert not by_answer.session.proven, "nobody asked for that"
    by_answer.node(0, control.Finished(EPOCH, "r-1", "stop", 1, 1, 0, 1))
    assert by_answer.session.proven
    by_refusal.node(0, control.Failed(EPOCH, 0, "r-1", "UserError", "too long"))
    assert by_refusal.session.proven
    failed.node(0, control.Failed(EPOCH, 0, "r-1", "OutOfMemory", "no memory"))
    assert not failed.session.proven
    by_answer.session.epoch.ended(0, "killed")  # type: ignore[union-attr]
    assert not by_answer.session.proven
