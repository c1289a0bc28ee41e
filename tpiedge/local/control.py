"""The control thread of a local cluster: it owns the hub, drives the epoch and passes events on."""

import queue
import threading
from collections.abc import Callable, Sequence

from tpiedge.clock import Clock
from tpiedge.errors import InternalError, TpiedgeError
from tpiedge.launch.bootstrap import control_name, node_of
from tpiedge.master.epoch import Epoch, EpochEvent
from tpiedge.master.membership import Membership
from tpiedge.transport.endpoint import Endpoint, EndpointClosed, LinkReset, MalformedMessage
from tpiedge.wire.control import Assign
from tpiedge.wire.messages import Message


class Controller:
    """Runs between `start` and `close`; `events` has messages of the nodes, or the error that ends the cluster.

    `assign(rank)` makes a node's part of the plan; `exit_causes()` gives each process's cause of its end, or None. The
    control thread calls both.
    """

    def __init__(
        self,
        hub: Endpoint,
        clock: Clock,
        membership: Membership,
        epoch: int,
        heartbeat_s: float,
        assign: Callable[[int], Assign],
        exit_causes: Callable[[], Sequence[str | None]],
    ) -> None:
        self.events: queue.Queue[EpochEvent] = queue.Queue()
        self._hub = hub
        self._clock = clock
        self._heartbeat_s = heartbeat_s
        self._exit_causes = exit_causes
        self._number = epoch
        self._epoch = Epoch(epoch, clock, membership, assign, self._post, self.events.put)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Ends the thread and waits for it. Messages that were posted before are sent."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        due = self._clock.now()
        while not self._closing.is_set():
            try:
                # If this thread was held up, heartbeats are waiting: it takes them all before it looks for silence.
                while (envelope := self._hub.recv(max(0.0, due - self._clock.now()))) is not None:
                    self._epoch.handle(_rank(envelope.sender), envelope.message)
                due = self._clock.now() + self._heartbeat_s
                self._watch()
                self._epoch.tick()
            except (MalformedMessage, LinkReset) as error:
                self._epoch.lose(_rank(error.peer), str(error))
            except EndpointClosed:
                return
            except TpiedgeError as error:
                self.events.put(error)
                return
            except Exception as error:
                self.events.put(InternalError(f"the control thread failed: {type(error).__name__}: {error}"))
                return

    def _watch(self) -> None:
        for rank, cause in enumerate(self._exit_causes()):
            if cause is not None and not self._closing.is_set():
                self._epoch.ended(rank, cause)

    def _post(self, message: Message, rank: int) -> None:
        self._hub.post(message, to=control_name(rank, self._number))


def _rank(peer: str) -> int:
    rank, _ = node_of(peer)
    if rank is None:
        raise InternalError(f"the hub let in {peer}, which is no node")
    return rank
