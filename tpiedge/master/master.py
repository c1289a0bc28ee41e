"""The master of a cluster: it tracks machines, runs the sessions that serve requests, and replans after a loss.

One thread, the control thread, owns the hub and decides everything; other threads submit requests and read
snapshots. What it receives (`reception`) changes the roster and the sessions (`session_manager`); then it compares the
actual state with the desired one (`reconciler`). One session may serve while the next one prepares.
"""

import logging
import math
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from tpiedge.clock import Clock
from tpiedge.errors import Cancelled, InternalError, MasterFailed, TpiedgeError
from tpiedge.host.device import usable_cores
from tpiedge.joining.front_door import FrontDoor
from tpiedge.launch.bootstrap import OwnStalls, Timing
from tpiedge.master.assignments import Served
from tpiedge.master.counters import StepTimeline
from tpiedge.master.foresight import Foresight, PlaceNodes
from tpiedge.master.history import ClusterEvent
from tpiedge.master.journal import PendingAnswer
from tpiedge.master.reception import Reception
from tpiedge.master.reconciler import RECOVERY_GRACE_S, NotServing, Reconciler
from tpiedge.master.request_queue import QUEUE_LIMIT, RequestQueue
from tpiedge.master.roster import Machine, Roster
from tpiedge.master.session_manager import Outbox, RankZero, SessionManager
from tpiedge.master.status import ClusterStatus
from tpiedge.master.workers import WorkerEvent
from tpiedge.transport.endpoint import EndpointClosed, Hub
from tpiedge.wire.control import AnswerPart
from tpiedge.wire.requests import GenerationRequest

_log = logging.getLogger(__name__)


class Master:
    """Runs between `start` and `close`. Owns rank 0's processes; the caller closes the hub. Thread-safe but for
    `turn`."""

    def __init__(
        self,
        hub: Hub,
        clock: Clock,
        served: Served,
        plan: PlaceNodes,
        rank_zero: RankZero,
        door: FrontDoor,
        *,
        timing: Timing | None = None,
        queue_limit: int = QUEUE_LIMIT,
        known: Sequence[str] = (),
        recovery_grace_s: float = RECOVERY_GRACE_S,
        stock: bool = True,
        follow_memory: Callable[[int], None] = lambda _bytes: None,
    ) -> None:
        """`known`: names of the workers that belonged to the cluster before, as for Roster. `recovery_grace_s`: for how
        long requests wait for lost machines to return where the others are too few. `stock`: machines fetch what plans
        for losses need of them. `follow_memory` has `plan` made for so much
        memory of this machine from now on, in bytes."""
        timing = timing or Timing()
        roster = self._roster = Roster(timing.timeout_s, known)
        outbox = Outbox(hub)
        self._hub = hub
        self._clock = clock
        self._heartbeat_s = timing.heartbeat_s
        compiles = max(1, math.floor(usable_cores()) // 2)
        self.requests = RequestQueue(
            queue_limit,
            served.sequences,
            lambda name: self._sessions.cancel(name),
            hub.wake,
            clock.now,
            compiles,
        )
        requests = self.requests
        self._sessions = SessionManager(
            hub, outbox, roster, rank_zero, served, timing, clock, requests.tell, lambda: not requests.idle
        )
        foresight = Foresight(plan, outbox.send, served.pack_id, stock=stock)
        self._reception = Reception(
            hub, clock, outbox, door, roster, self._sessions, foresight, OwnStalls(timing.heartbeat_s)
        )
        self._reconciler = Reconciler(
            clock,
            plan,
            roster,
            self._sessions,
            requests,
            outbox.send,
            recovery_grace_s,
            foresight,
            follow_memory,
        )
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._beat = clock.now()  # when the next heartbeat is due
        self._closing = threading.Event()
        self._failed: TpiedgeError | None = None
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self, first_epoch: int) -> None:
        """Starts the control thread. Epochs count from `first_epoch`, above all earlier ones under this key."""
        self._sessions.count_from(first_epoch)
        self._thread.start()

    def submit(self, request: GenerationRequest, client: str = "", *, attended: bool = True) -> PendingAnswer:
        """Queues the request of that client; does not block. `attended`: whether somebody waits for it already. Raises
        QueueFull, or NotServing where nothing is served nor about to be, once that has lasted for the recovery
        grace."""
        if self._failed is not None or self._reconciler.hopeless:
            self.requests.refuse(self._reconciler.not_serving())
        return self.requests.submit(request, client, attended=attended)

    def resume(self, request: GenerationRequest, said: Sequence[AnswerPart]) -> PendingAnswer:
        """Queues a request that an earlier master had accepted, of whose answer `said` was passed on. It waits for
        machines as if they had been lost. To be called before `start`, in the order of the requests."""
        return self.requests.resume(request, said, self._reconciler.served_before())

    @property
    def status(self) -> ClusterStatus:
        return self._reconciler.status

    def observe(self, *, timeline: bool = False) -> ClusterStatus:
        """Returns `status` with its histograms, and has the nodes asked for their counters, which later calls then see,
        and for what they do in a step if `timeline` is to have one. Does not block."""
        self._order(lambda: self._sessions.observe(timeline=timeline))
        return replace(self.status, histograms=self.requests.histograms)

    @property
    def timeline(self) -> StepTimeline | None:
        """What all nodes did in a step of the epoch that serves; None where they were not asked, or none was taken."""
        serving = self._sessions.serving
        return None if serving is None else serving.timelines.latest

    @property
    def events(self) -> tuple[ClusterEvent, ...]:
        return self._reconciler.history.events

    def usable(self) -> Future[tuple[Machine, ...]]:
        """The machines that plans may have now, as the control thread will say within a turn."""
        found: Future[tuple[Machine, ...]] = Future()
        self._order(lambda: found.set_result(tuple(self._reconciler.selection.able())))
        return found

    @property
    def failed(self) -> TpiedgeError | None:
        """The error that ended the control thread; None if there was none."""
        return self._failed

    def forget(self, name: str) -> None:
        self._order(lambda: self._reception.forget(name))

    def drain_worker(self, name: str) -> Future[str]:
        """Takes the worker out of plans while answers go on; the result is its name once `status` shows
        that, or CannotDrain. Cancelled, the order is void."""
        ordered: Future[str] = Future()
        self._order(lambda: self._reconciler.drain(name, ordered))
        return ordered

    def undrain_worker(self, name: str) -> None:
        self._order(lambda: self._roster.step(name, WorkerEvent.UNDRAINED, self._clock.now()))

    def clear_worker(self, name: str) -> None:
        """Has the worker tried again at once, if it is left out of plans for a while, or the next attempt waits."""
        self._order(lambda: self._reconciler.clear(name))

    def drain(self) -> None:
        """Accepts no more requests; accepted ones are still served."""
        self.requests.close(NotServing("the master is shutting down"))

    def close(self) -> None:
        """Ends every node; remaining requests fail. Idempotent. Blocks for half a minute, which is more than a plan, a
        switch of sessions and the end of every node take together, then raises InternalError."""
        self._closing.set()
        self._hub.wake()
        if not self._thread.is_alive():
            self._end_all()
            return
        self._thread.join(30.0)
        if self._thread.is_alive():
            raise InternalError("the control thread did not end within 30 s")

    def turn(self) -> None:
        """One round: handles what has arrived, then does what is due. Blocks until the next heartbeat at most. For the
        control thread, or for a caller that has not started it."""
        try:
            self._reception.hear(self._beat)
        except EndpointClosed:
            self._closing.set()
            return
        while not self._calls.empty():
            self._calls.get()()
        late_s = self._clock.now() - self._beat
        if late_s >= 0:
            self._beat += late_s + self._heartbeat_s
            self._reception.tick(late_s)
        self._reconciler.reconcile()

    def _order(self, call: Callable[[], None]) -> None:
        """Has the control thread do it in its next turn."""
        self._calls.put(call)
        self._hub.wake()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self.turn()
        except TpiedgeError as error:
            self._failed = error
        except Exception as error:
            _log.exception("the control thread failed")
            self._failed = InternalError(f"the control thread failed: {type(error).__name__}: {error}")
        finally:
            self._end_all()

    def _end_all(self) -> None:
        failed = self._failed
        error = Cancelled("the master was stopped") if failed is None else MasterFailed(str(failed))
        self.requests.close(NotServing(str(error)))
        self.requests.fail_all(error)
        self._sessions.close()
