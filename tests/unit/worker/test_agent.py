import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from tests.fakes.clock import ManualClock
from tests.fakes.inprocess import InProcessHub
from tests.unit.wire.golden import SHARE
from tpiedge.errors import Cancelled, DiskFull, OutOfMemory, PeerError, PeerLost, ResourceError, TpiedgeError
from tpiedge.host.private_file import PAGES
from tpiedge.kv.page_folder import KEPT, PARKED, PageFolder
from tpiedge.launch import slot
from tpiedge.launch.bootstrap import NOT_MEASURED, NodeBootstrap, NodeReport
from tpiedge.launch.offer import Measurements, MemoryOffer
from tpiedge.sanitise import sanitised_line
from tpiedge.transport.endpoint import CONTROL
from tpiedge.wire import epochs
from tpiedge.wire.fields import Message
from tpiedge.wire.join import Refused
from tpiedge.worker.agent import Agent, AgentSettings, MasterMoved
from tpiedge.worker.masters import PathState
from tpiedge.worker.wording import SMALL_MTU

WAIT_S = 10.0
M = TypeVar("M")
REPORT = NodeReport("avx2", epochs.Capacity(1e9, 2e9))


class FakeProcess:
    def __init__(self) -> None:
        self.pid = 4242
        self.cause: str | None = None
        self.log = ""
        self.out_of_memory = False
        self.stopped = False
        self.lingers = 0  # how often the agent may do something while it ends

    def exit_cause(self) -> str | None:
        return self.cause

    def log_tail(self) -> str:
        return "" if self.stopped else self.log

    def stop(self, deadline: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.stopped = True
        for _ in range(self.lingers):
            meanwhile()


class FakeNode(FakeProcess):
    def __init__(self, bootstrap: NodeBootstrap) -> None:
        super().__init__()
        self.bootstrap = bootstrap


class FakeForkServer(FakeProcess):
    made: list["FakeForkServer"] = []  # noqa: RUF012 (emptied by the fixture)
    nodes: list[FakeNode] = []  # noqa: RUF012 (emptied by the fixture)
    stillborn = 0
    refused = False
    ended = threading.Event()

    def __init__(self, threads: int, *, measure: bool = False) -> None:
        super().__init__()
        if FakeForkServer.refused:
            raise ResourceError("cannot start a process (Resource temporarily unavailable)")
        self.measure = measure
        self.made.append(self)
        self.cause = None if len(self.made) > self.stillborn else "stillborn"

    def report(self, deadline: float) -> NodeReport:
        return REPORT if self.measure else NodeReport("avx2", NOT_MEASURED)

    def start_node(self, bootstrap: NodeBootstrap) -> FakeNode:
        assert self.cause is None
        self.nodes.append(FakeNode(bootstrap))
        return self.nodes[-1]

    def stop(self, deadline: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        super().stop(deadline, meanwhile)
        self.ended.set()


class FakeShards:
    def __init__(self, epoch: int) -> None:
        self.path = Path(f"/shards/{epoch}")
        self.closed = False

    def close(self) -> None:
        self.closed = True


class FakeFetch:
    def __init__(self) -> None:
        self.shards: dict[int, FakeShards] = {}
        self.verified: list[bool] = []
        self.most = 0
        self.started: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.errors: dict[int, BaseException] = {}
        self.deaf: set[int] = set()
        self._let: dict[int, threading.Event] = {}
        self._running = 0

    def let(self, epoch: int) -> None:
        self._event(epoch).set()

    def _event(self, epoch: int) -> threading.Event:
        return self._let.setdefault(epoch, threading.Event())

    def __call__(
        self,
        order: epochs.Prepare,
        report: Callable[[int, int, float], None],
        cancelled: threading.Event,
        *,
        verify: bool,
    ) -> FakeShards:
        self._running += 1
        self.most = max(self.most, self._running)
        self.verified.append(verify)
        self.started.put(order.epoch)
        try:
            report(1, 2, 3.0)
            while not self._event(order.epoch).wait(0.002):
                if cancelled.is_set() and order.epoch not in self.deaf:
                    raise Cancelled("fetching was cancelled")
            if order.epoch in self.errors:
                raise self.errors[order.epoch]
            return self.shards.setdefault(order.epoch, FakeShards(order.epoch))
        finally:
            self._running -= 1


class FakePrefetch:
    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[epochs.Prefetch] = queue.SimpleQueue()
        self.let = threading.Event()
        self.cancelled = threading.Event()
        self.error: TpiedgeError | None = None

    def prefetch(self, order: epochs.Prefetch, cancelled: threading.Event) -> None:
        self.asked.put(order)
        while not self.let.wait(0.002):
            if cancelled.is_set():
                self.cancelled.set()
                raise Cancelled("fetching was cancelled")
        if self.error is not None:
            raise self.error

    def held_bytes(self, pack: str) -> int:
        assert pack == "p1"
        return 77


class Worker:
    def __init__(self, folder: Path, known: bool = True) -> None:
        self.clock = ManualClock()
        self.hub = InProcessHub("master", CONTROL)
        self.fetch = FakeFetch()
        self.prefetch = FakePrefetch()
        self.said: queue.SimpleQueue[str] = queue.SimpleQueue()
        #: Results of the path probes.
        self.paths: queue.SimpleQueue[PathState] = queue.SimpleQueue()
        self.usable = 1 << 30  # bytes of memory that the machine may use
        self.measurements = Measurements(folder, 2)
        if known:
            self.measurements.keep(REPORT)
        self.spoke = self.hub.spoke("w-1")
        settings = AgentSettings(
            "tcp://master:7070", "m" * 40, "pi", 1 << 40, 1e8, PageFolder(folder / PAGES, 7, 8)
        )
        ahead = self.prefetch
        self.pages = folder / PAGES
        memory = MemoryOffer(self.usable)
        usable, said = (lambda: self.usable), self.said.put
        self.slot = slot.NodeSlot(2, memory, usable, self.clock, said, pages=settings.pages)
        weights: Any = SimpleNamespace(fetch=self.fetch, prefetch=ahead.prefetch, held_bytes=ahead.held_bytes)
        say, kept = self.said.put, self.measurements
        self.agent = Agent(settings, self.spoke, weights, self.clock, say, kept, self._probe, self.slot)
        self.error: TpiedgeError | None = None
        self.thread = threading.Thread(target=self._run, name="agent")

    def _probe(self) -> PathState:
        try:
            return self.paths.get_nowait()
        except queue.Empty:
            return "unknown"

    def _run(self) -> None:
        try:
            self.agent.run()
        except TpiedgeError as error:
            self.error = error

    def start(self) -> epochs.Offer:
        self.thread.start()
        return self.expect(epochs.Offer)

    def expect(self, kind: type[M]) -> M:
        while True:
            envelope = self.hub.recv(WAIT_S)
            assert envelope is not None, f"no {kind.__name__} came"
            if isinstance(envelope.message, kind):
                return envelope.message

    def say(self, message: Message) -> None:
        self.hub.send(message, to="w-1")

    def sync(self) -> None:
        self.say(epochs.Probe(0, 9, 0))
        self.expect(epochs.Echo)

    def says_in_silence(self) -> str:
        for _ in range(20):
            if not self.said.empty():
                break
            self.clock.advance(0.31)
            self.expect(epochs.AgentPulse)
        return self.said.get(timeout=WAIT_S)

    def prepared(self, epoch: int) -> epochs.Prepared:
        self.say(order(epoch))
        self.fetch.let(epoch)
        return self.expect(epochs.Prepared)

    def launched(self, epoch: int) -> FakeNode:
        self.prepared(epoch)
        self.say(epochs.Launch(epoch))
        self.expect(epochs.Spawned)
        (promoted,) = [one for one in FakeForkServer.nodes if one.bootstrap.epoch == epoch]
        return promoted

    def close(self) -> None:
        self.agent.stop()
        if self.thread.ident is not None:
            self.thread.join(WAIT_S)
        assert not self.thread.is_alive()
        self.hub.close()


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Worker]]:
    monkeypatch.setattr(slot, "ForkServer", FakeForkServer)
    FakeForkServer.made.clear()
    FakeForkServer.nodes.clear()
    FakeForkServer.ended.clear()
    made: list[Worker] = []

    def create(known: bool = True) -> Worker:
        made.append(Worker(tmp_path, known))
        return made[-1]

    yield create
    for worker in made:
        worker.close()
        assert all(shards.closed for shards in worker.fetch.shards.values()), "left in use"
    assert all(
        one.stopped or one.cause == "stillborn" for one in (*FakeForkServer.made, *FakeForkServer.nodes)
    )


@pytest.fixture
def worker(make: Callable[..., Worker]) -> Worker:
    found = make()
    found.start()
    return found


def order(epoch: int) -> epochs.Prepare:
    return epochs.Prepare(epoch, 1, 2, "pack-1", SHARE, 0, 0.3, 1.5, 60.0)


def test_stored_measurements_are_offered_at_once(make: Callable[..., Worker]) -> None:
    worker = make()
    found = worker.start()
    assert (found.host, found.threads, found.memory_bytes) == ("pi", 2, 1 << 30)
    assert (found.keep_bytes, found.park_bytes) == (7, 8)
    assert found.capacity == REPORT.capacity
    assert [server.measure for server in FakeForkServer.made] == [False]
    worker.say(epochs.AskOffer(0))
    assert worker.expect(epochs.Offer) == found, "the same agent has the same nonce"


def test_unknown_capacity_is_measured_and_stored(make: Callable[..., Worker]) -> None:
    worker = make(known=False)
    assert worker.start().capacity == REPORT.capacity
    assert [server.measure for server in FakeForkServer.made] == [True]
    assert worker.measurements.recall() is not None


SPARE = "this machine is a spare until another machine leaves"
CLEAR = "to use it at once, type on the master's computer: tpiedge nodes clear pi"


@pytest.mark.parametrize(
    ("spare", "line"),
    [
        (epochs.Spare(0, "slower", "2 s with it"), f"{SPARE} or a larger model is served: 2 s with it"),
        (epochs.Spare(0, "too many", "a\n\x07b"), f"{SPARE}: a \\x07b"),
        (
            epochs.Spare(0, "shares", "2 had come"),
            f"{SPARE}: 2 had come; the master's --shares may give it a part",
        ),
        (
            epochs.Spare(0, "excluded", "it was lost"),
            "this machine is left out for now: it was lost; to use it at once, type on "
            "the master's computer: tpiedge nodes clear pi",
        ),
        (epochs.Spare(0, "no plan", "1 of 2"), "this machine waits until the master can use it: 1 of 2"),
        (epochs.Spare(0, "no room", "full"), "this machine cannot be used now: full"),
        (epochs.Spare(0, "fetching", "slow"), "this machine joins once its weights are here: slow"),
    ],
)
def test_spare_worker_prints_the_reason(worker: Worker, spare: epochs.Spare, line: str) -> None:
    worker.say(spare)
    assert worker.said.get(timeout=WAIT_S) == line


@pytest.mark.parametrize(
    ("cause", "line"),
    [
        ("its process was killed by SIGKILL", "its process was killed by SIGKILL"),
        ("it ran out of memory (killed by the system's OOM killer)",) * 2,
        ("its process ended with status 3", "its process ended with status 3"),
        (
            f"its process ended with status 3 ({PeerLost(0, 'the plan', 'its link failed: it (1) cannot be reached')})",
            "the master was lost: its link failed: it (1) cannot be reached",
        ),
        (
            f"its process ended with status 3 ({PeerLost(2, 'allreduce of step 4', 'killed by SIGKILL')})",
            "another machine was lost: killed by SIGKILL",
        ),
        ("its process ended with status 4 (layer 3 is\n\x07 damaged)", "layer 3 is \\x07 damaged"),
    ],
)
def test_end_of_node_is_printed_in_plain_words(worker: Worker, cause: str, line: str) -> None:
    """The master gets the whole cause."""
    worker.launched(5).cause = cause
    worker.clock.advance(0.31)
    assert worker.expect(epochs.NodeEnded).cause == sanitised_line(cause)
    said = [worker.said.get(timeout=WAIT_S) for _ in range(2)]
    assert said == ["now computing as one of 2 machines", f"computing stopped: {line}"]
    worker.launched(6)
    assert worker.said.get(timeout=WAIT_S) == "now computing as one of 2 machines", "it is news again"


def test_too_small_worker_ends_with_memory_advice(worker: Worker) -> None:
    worker.say(epochs.Spare(0, "too small", "it offers 1 MB,\nstart it again with --memory 2MB or more"))
    worker.thread.join(WAIT_S)
    assert isinstance(worker.error, OutOfMemory)
    assert str(worker.error) == (
        "this machine cannot be used: it offers 1 MB, start it again with --memory 2MB or more"
    )
    worker.expect(epochs.Leaving)


def test_worker_role_is_printed_only_on_change(worker: Worker) -> None:
    slow = epochs.Spare(0, "slower", "2 s with it")
    worker.say(slow)
    worker.say(epochs.Spare(0, "slower", "3 s with it"))
    worker.launched(5)
    worker.launched(6)  # the same part again: a machine beside it was lost and is back
    worker.say(epochs.Release(6))
    worker.say(slow)
    worker.sync()
    said = [worker.said.get(timeout=WAIT_S) for _ in range(worker.said.qsize())]
    assert said == [
        f"{SPARE} or a larger model is served: 2 s with it",
        "now computing as one of 2 machines",
        f"{SPARE} or a larger model is served: 2 s with it",
    ]


def test_agent_handles_epoch_from_prepare_to_release(worker: Worker) -> None:
    worker.say(order(5))
    assert worker.expect(epochs.Preparing) == epochs.Preparing(5, 1, 2, 3.0)
    worker.fetch.let(5)
    prepared = worker.expect(epochs.Prepared)
    worker.say(epochs.Launch(5))
    spawned = worker.expect(epochs.Spawned)
    assert (spawned.epoch, spawned.rank, spawned.pid) == (5, 1, 4242)
    (node,) = FakeForkServer.nodes
    bootstrap = node.bootstrap
    assert bootstrap.keys.public == prepared.public_key
    assert (bootstrap.epoch, bootstrap.rank, bootstrap.pack) == (5, 1, "/shards/5")
    assert (bootstrap.keep_bytes, bootstrap.park_bytes) == (7, 8)
    worker.clock.advance(0.31)
    assert worker.expect(epochs.AgentPulse).epoch == 5

    worker.say(epochs.Release(5))
    assert "released" in worker.expect(epochs.NodeEnded).cause
    assert node.stopped
    assert worker.fetch.shards[5].closed
    worker.sync()


def test_agent_sends_pulses_while_node_is_ending(worker: Worker) -> None:
    worker.launched(5).lingers = 3
    worker.say(epochs.Release(5))
    assert [worker.expect(epochs.AgentPulse).epoch for _ in range(3)] == [5, 5, 5]
    assert "released" in worker.expect(epochs.NodeEnded).cause
    worker.sync()


@pytest.mark.parametrize("prepared", [None, 4])
def test_launch_without_prepare_is_answered_with_node_ended(worker: Worker, prepared: int | None) -> None:
    if prepared is not None:
        worker.prepared(prepared)
    worker.say(epochs.Launch(5))
    ended = worker.expect(epochs.NodeEnded)
    assert ended.epoch == 5
    assert "not prepared" in ended.cause


@pytest.mark.parametrize("error", [DiskFull("the disk is full"), ValueError("a defect")])
def test_failed_fetch_is_reported(worker: Worker, error: Exception) -> None:
    worker.fetch.errors[5] = error
    worker.fetch.let(5)
    worker.say(order(5))
    ended = worker.expect(epochs.NodeEnded)
    assert ended.epoch == 5
    assert str(error) in ended.cause
    worker.prepared(6)


def test_agent_recovers_after_thread_start_failure(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", no_thread)
        worker.say(order(5))
        ended = worker.expect(epochs.NodeEnded)
        assert ended.epoch == 5
        assert "cannot start a thread" in ended.cause
        worker.say(PREFETCH)
        worker.say(epochs.MasterPulse(5, at_rest=True))
        assert worker.expect(epochs.Prefetched).why == ended.cause
    worker.prepared(6)
    worker.say(epochs.Release(6))
    worker.clock.advance(61.0)
    worker.prefetch.let.set()
    worker.say(epochs.MasterPulse(5, at_rest=True))
    assert worker.expect(epochs.Prefetched).complete


def test_new_prepare_waits_for_cancelled_fetch(worker: Worker) -> None:
    """Two at a time would meet at the master as one worker with two connections."""
    worker.fetch.deaf.add(5)
    worker.say(order(5))
    worker.fetch.started.get(timeout=WAIT_S)
    worker.say(order(6))
    worker.fetch.let(6)
    worker.sync()
    assert worker.fetch.started.empty(), "the first one has not noticed yet"
    worker.fetch.let(5)
    assert worker.expect(epochs.Prepared).epoch == 6
    assert worker.fetch.most == 1
    assert worker.fetch.shards[5].closed
    assert not worker.fetch.shards[6].closed


@pytest.mark.parametrize("when", ["before fetching", "after fetching"])
@pytest.mark.fault("P14", "a worker whose system starts no process says so, and stays")
def test_process_start_failure_ends_the_epoch(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    if when == "after fetching":
        worker.prepared(5)
    for server in FakeForkServer.made:
        server.cause = "it ended"
    monkeypatch.setattr(FakeForkServer, "refused", True)
    worker.say(order(5) if when == "before fetching" else epochs.Launch(5))
    ended = worker.expect(epochs.NodeEnded)
    assert ended.epoch == 5
    assert "cannot start a process" in ended.cause
    monkeypatch.setattr(FakeForkServer, "refused", False)
    worker.launched(6)


def test_lowered_memory_limit_is_offered_unasked(worker: Worker) -> None:
    worker.usable = 1 << 29
    worker.clock.advance(2.01)
    assert worker.expect(epochs.Offer).memory_bytes == 1 << 29
    assert worker.said.get(timeout=WAIT_S) == (
        "this machine has less memory for tpiedge now: it offers 536.9 MB (before: 1.1 GB)"
    )


@pytest.mark.parametrize("seen_by", ["the agent", "the master"])
def test_new_offer_precedes_out_of_memory_node_end(worker: Worker, seen_by: str) -> None:
    node = worker.launched(5)
    node.out_of_memory, node.cause, node.lingers = True, "it ran out of memory", 2
    if seen_by == "the agent":
        worker.clock.advance(0.31)
    else:
        worker.say(epochs.Release(5))
    told = []
    while not told or not isinstance(told[-1], epochs.NodeEnded):
        envelope = worker.hub.recv(WAIT_S)
        assert envelope is not None
        told.append(envelope.message)
    assert [one.memory_bytes for one in told if isinstance(one, epochs.Offer)] == [3 << 28]
    kinds = [type(one).__name__ for one in told[-4:]]
    assert kinds == ["Offer", "AgentPulse", "AgentPulse", "NodeEnded"]


@pytest.mark.parametrize("words", ["IntegrityError: layer 3 is damaged", "ReadFault: cannot read 8 bytes"])
@pytest.mark.parametrize("first", ["the node", "the release"])
def test_damaged_shards_are_verified_before_next_epoch(worker: Worker, first: str, words: str) -> None:
    """The node reports the damage to the master, whose Release may come before the process has ended."""
    child = worker.launched(5)
    child.log = words
    if first == "the node":
        child.cause = f"its process ended with status 4 ({words})"
        worker.clock.advance(0.31)
    else:
        worker.say(epochs.Release(5))
    worker.expect(epochs.NodeEnded)
    worker.launched(6)
    worker.prepared(7)
    assert worker.fetch.verified == [False, True, False]


PREFETCH = epochs.Prefetch(0, 3, "p1", (SHARE,))


def test_prefetch_runs_only_while_cluster_is_at_rest(worker: Worker) -> None:
    prefetch = worker.prefetch
    worker.launched(5)
    worker.say(PREFETCH)
    worker.say(epochs.MasterPulse(5, at_rest=False))
    worker.sync()
    assert prefetch.asked.empty(), "a request runs"
    worker.say(epochs.MasterPulse(5, at_rest=True))
    assert prefetch.asked.get(timeout=WAIT_S) == PREFETCH
    worker.say(epochs.MasterPulse(5, at_rest=False))
    assert prefetch.cancelled.wait(WAIT_S), "another one begins"
    prefetch.let.set()
    worker.say(epochs.MasterPulse(5, at_rest=True))
    assert worker.expect(epochs.Prefetched) == epochs.Prefetched(0, 3, 77, True, "")
    assert prefetch.asked.get(timeout=WAIT_S) == PREFETCH
    worker.sync()
    assert prefetch.asked.empty(), "it is there"


def test_prepare_cancels_and_delays_prefetch(worker: Worker) -> None:
    prefetch = worker.prefetch
    worker.say(PREFETCH)
    worker.say(epochs.MasterPulse(5, at_rest=True))
    prefetch.asked.get(timeout=WAIT_S)
    worker.say(order(6))
    assert prefetch.cancelled.wait(WAIT_S)
    worker.sync()
    assert prefetch.asked.empty()
    worker.fetch.let(6)
    worker.expect(epochs.Prepared)
    worker.say(epochs.Release(6))
    assert prefetch.asked.get(timeout=WAIT_S) == PREFETCH


def test_failed_prefetch_is_reported_once_and_retried(worker: Worker) -> None:
    prefetch = worker.prefetch
    prefetch.error = DiskFull("no room\nfor it")
    prefetch.let.set()
    worker.say(PREFETCH)
    worker.say(epochs.MasterPulse(5, at_rest=True))
    assert worker.expect(epochs.Prefetched) == epochs.Prefetched(0, 3, 77, False, "no room for it")
    prefetch.asked.get(timeout=WAIT_S)
    worker.clock.advance(30.0)
    worker.say(epochs.MasterPulse(5, at_rest=True))
    worker.sync()
    assert prefetch.asked.empty(), "it waits a minute"
    worker.clock.advance(31.0)
    worker.say(epochs.MasterPulse(5, at_rest=True))
    prefetch.asked.get(timeout=WAIT_S)
    told: list[epochs.Prefetched] = []
    for attempt in range(1000):
        worker.clock.advance(61.0)
        worker.say(epochs.MasterPulse(5, at_rest=True))
        envelope = worker.hub.recv(0.01)
        if envelope is not None and isinstance(envelope.message, epochs.Prefetched):
            told.append(envelope.message)
        if not prefetch.asked.empty() and attempt > 3:  # so it has seen that the second one failed, too
            prefetch.error = None
        if told and told[-1].complete:
            break
    assert [one.complete for one in told] == [True], "the same failure was not told again"


def test_fork_server_is_reused_until_it_ends(worker: Worker) -> None:
    worker.launched(5)
    worker.launched(6)
    assert len(FakeForkServer.made) == 1
    FakeForkServer.made[0].cause = "it ended"
    worker.launched(7)
    assert len(FakeForkServer.made) == 2


def test_preparing_continues_while_master_is_silent(worker: Worker) -> None:
    worker.say(order(5))
    worker.fetch.started.get(timeout=WAIT_S)
    assert worker.says_in_silence() == "the master is silent; waiting for it"
    worker.fetch.let(5)
    assert worker.expect(epochs.Prepared).epoch == 5
    worker.say(epochs.MasterPulse(0, at_rest=False))
    assert worker.said.get(timeout=WAIT_S) == "the master is back"


def test_stalled_worker_does_not_blame_the_master(worker: Worker) -> None:
    worker.expect(epochs.AgentPulse)
    worker.clock.advance(5.0)
    worker.expect(epochs.AgentPulse)
    worker.say(epochs.MasterPulse(0, at_rest=False))
    worker.sync()
    worker.clock.advance(0.31)
    worker.expect(epochs.AgentPulse)
    assert worker.said.empty()


def test_silent_master_is_probed_until_found_elsewhere(worker: Worker) -> None:
    for seen in ("unknown", "moved"):
        worker.paths.put(seen)
    assert worker.says_in_silence() == "the master is silent; waiting for it"
    while worker.thread.is_alive():
        worker.clock.advance(2.0)
        worker.thread.join(0.01)
    assert isinstance(worker.error, MasterMoved)
    worker.expect(epochs.Leaving)


def test_master_still_heard_is_not_taken_as_moved(worker: Worker) -> None:
    worker.paths.put("moved")
    worker.launched(5)
    worker.say(epochs.Release(5))
    worker.expect(epochs.NodeEnded)
    while not worker.paths.empty() or not worker.agent._probing.idle:
        worker.sync()
    worker.sync()
    assert worker.thread.is_alive()


@pytest.mark.fault("P11", "a worker says so once, until they pass")
def test_small_mtu_is_printed_once_until_it_is_gone(worker: Worker) -> None:
    lines = []
    for epoch, seen in enumerate(("small MTU", "small MTU", "unknown", "small MTU"), 5):
        worker.launched(epoch)
        worker.paths.put(seen)
        worker.say(epochs.Release(epoch))
        worker.expect(epochs.NodeEnded)
        while not worker.paths.empty() or not worker.agent._probing.idle:
            worker.sync()
        worker.sync()
        lines.append([worker.said.get() for _ in range(worker.said.qsize())].count(SMALL_MTU))
    assert lines == [1, 0, 0, 1]


def test_revoked_worker_ends_with_peer_error(worker: Worker) -> None:
    worker.launched(5)
    worker.say(Refused("revoked", "the master has revoked the key of this worker"))
    worker.thread.join(WAIT_S)
    assert type(worker.error) is PeerError
    assert "revoked" in str(worker.error)


def test_parked_pages_are_deleted_only_by_a_member(make: Callable[..., Worker]) -> None:
    worker = make()
    (worker.pages / PARKED).mkdir(parents=True)
    left = worker.pages / PARKED / f"{'7' * 32}-1"
    left.touch()
    worker.slot.close()  # as where the master does not let it in
    assert left.exists()
    worker.start()
    assert not left.exists()
    left.touch()
    worker.close()
    assert not left.exists()


def test_page_files_are_counted_and_cleared_by_order(worker: Worker) -> None:
    kept = worker.pages / KEPT
    kept.mkdir(parents=True)
    for name in ("0" * 32, "1" * 32):
        (kept / f"{name}-1").write_bytes(bytes(4096))
    for number, clear, pages in ((1, False, 2), (2, True, 2), (3, False, 0)):
        worker.say(epochs.AskPages(0, number, clear))
        found = worker.expect(epochs.PageFiles)
        assert found == epochs.PageFiles(0, number, pages, pages * 4096, 0, 0, "")
    kept.rmdir()
    kept.touch()
    worker.say(epochs.AskPages(0, 4, False))
    assert "cannot count the page files" in worker.expect(epochs.PageFiles).why


def test_orders_about_page_files_are_answered_in_turn(worker: Worker) -> None:
    for number in range(4):
        worker.say(epochs.AskPages(0, number, number % 2 == 1))
    assert [worker.expect(epochs.PageFiles).number for _ in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("state", ["idle", "fetching", "prepared", "running"])
def test_stop_ends_the_agent_in_every_state(worker: Worker, state: str) -> None:
    if state == "fetching":
        worker.say(order(5))
        worker.fetch.started.get(timeout=WAIT_S)
    elif state == "prepared":
        worker.prepared(5)
    elif state == "running":
        worker.launched(5)
        worker.prepared(6)
    worker.agent.stop()
    worker.thread.join(WAIT_S)
    assert not worker.thread.is_alive()
    assert worker.error is None
