"""The master of a cluster: who is there, what is served by whom, and what happens when somebody goes.

One thread, the control thread, owns the hub and decides everything; other threads hand requests in and read
snapshots. What it hears (`reception`) changes the roster and the sessions (`stage`); then it compares what is with what
should be (`reconciler`). Of the sessions one may serve while the next one prepares: workers fetch what they lack in the
meantime, and the change happens between two requests. A loss ends the serving session at once; its request fails in
words, and the next plan is made from who is there.
"""

import logging
import queue
import threading
from collections.abc import Callable, Sequence

from tpiedge.clock import Clock
from tpiedge.errors import Cancelled, InternalError, TpiedgeError
from tpiedge.nodes.desk import Answering, Desk
from tpiedge.nodes.door import Door
from tpiedge.nodes.outbox import Outbox
from tpiedge.nodes.quarantine import Standing
from tpiedge.nodes.rank_zero import RankZero
from tpiedge.nodes.reception import Reception
from tpiedge.nodes.reconciler import NotServing, PlanSeats, Reconciler
from tpiedge.nodes.roster import Roster
from tpiedge.nodes.seats import Served
from tpiedge.nodes.stage import Stage
from tpiedge.nodes.status import ClusterStatus
from tpiedge.nodes.timing import Timing
from tpiedge.transport.endpoint import EndpointClosed
from tpiedge.transport.hub import Hub
from tpiedge.wire.requests import GenerationRequest

__all__ = ["Master", "NotServing", "PlanSeats"]

_log = logging.getLogger(__name__)

_QUEUE = 64
#: More than a plan, a switch of sessions and the end of every node take together.
_CLOSE_S = 30.0


class Master:
    """Runs between `start` and `close`. Owns rank 0's processes; the hub is the caller's to close."""

    def __init__(
        self,
        hub: Hub,
        clock: Clock,
        served: Served,
        plan: PlanSeats,
        rank_zero: RankZero,
        door: Door,
        *,
        timing: Timing | None = None,
        queue_limit: int = _QUEUE,
        known: Sequence[str] = (),
    ) -> None:
        """`known`: the workers that belonged to the cluster before, as Roster wants them."""
        timing = timing or Timing()
        roster, standing, outbox = Roster(timing.timeout_s, known), Standing(), Outbox(hub)
        self._hub = hub
        self._clock = clock
        self._heartbeat_s = timing.heartbeat_s
        self._desk = Desk(queue_limit, self._cancel, hub.wake)
        self._stage = Stage(hub, outbox, rank_zero, served, timing, clock, self._desk.tell)
        self._reception = Reception(hub, clock, outbox, door, roster, standing, self._stage)
        self._reconciler = Reconciler(clock, plan, roster, standing, self._stage, self._desk)
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._beat = clock.now()  # when the next heartbeat is due
        self._closing = threading.Event()
        self._failed: TpiedgeError | None = None
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self, first_epoch: int) -> None:
        """Epochs count from `first_epoch`: above those of a master that ran before under this key."""
        self._stage.count_from(first_epoch)
        self._thread.start()

    def submit(self, request: GenerationRequest) -> Answering:
        """Queue the request. Raises QueueFull, or NotServing where nothing is served nor about to be."""
        if self._failed is not None or self._reconciler.hopeless:
            self._desk.refuse(self._reconciler.not_serving())
        return self._desk.submit(request)

    @property
    def status(self) -> ClusterStatus:
        return self._reconciler.status

    def observe(self) -> ClusterStatus:
        """As `status`; the nodes are asked for their counters, which a later one has, for as long as somebody looks."""
        self._calls.put(self._stage.observe)
        self._hub.wake()
        return self.status

    @property
    def failed(self) -> TpiedgeError | None:
        """What ended the control thread, if anything did."""
        return self._failed

    def forget(self, name: str) -> None:
        """The worker was revoked: its node is lost at once."""
        self._calls.put(lambda: self._reception.forget(name))
        self._hub.wake()

    def drain(self) -> None:
        """Accept no more requests; those that are accepted are served."""
        self._desk.close(NotServing("the master is shutting down"))

    @property
    def idle(self) -> bool:
        """Whether no request runs or waits."""
        return self._desk.idle

    def close(self) -> None:
        """End every node; requests that are left fail. Idempotent. Raises InternalError if it takes too long."""
        self._closing.set()
        self._hub.wake()
        if not self._thread.is_alive():
            self._end_all()
            return
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            raise InternalError(f"the control thread did not end within {_CLOSE_S:.0f} s")

    def turn(self) -> None:
        """Hear what has arrived, do what is due. For the control thread, or for a caller that has not started it."""
        try:
            self._reception.hear(self._beat)
        except EndpointClosed:
            self._closing.set()
            return
        while not self._calls.empty():
            self._calls.get()()
        if self._clock.now() >= self._beat:
            self._beat = self._clock.now() + self._heartbeat_s
            self._reception.tick()
        self._reconciler.reconcile()

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
        error = self._failed or Cancelled("the master was stopped")
        self._desk.close(NotServing(str(error)))
        self._desk.fail_all(error)
        self._stage.close()

    def _cancel(self, request: str) -> None:
        self._stage.cancel(request)
