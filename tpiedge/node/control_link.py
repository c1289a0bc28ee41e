"""Runs a node's control thread: heartbeats, the master's commands, and the health of peers.

The engine thread takes commands from `ControlLink.commands`, and posts messages. A wait for a peer ends in PeerLost:

- if the master is silent
- if the master reports a lost node
- if the link to the peer stays broken
- if the peer's progress (step, block, bytes read) stops
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tpiedge.clock import Clock
from tpiedge.errors import Cancelled, PeerLost, TpiedgeError
from tpiedge.launch.bootstrap import OwnStalls
from tpiedge.transport.endpoint import Endpoint
from tpiedge.transport.monitor import LinkMonitor, LinkState
from tpiedge.wire import control as c
from tpiedge.wire.fields import Message


class ClusterLiveness:
    """The engine's view of its peers. `timeout_s` limits the master's silence, `stall_s` a peer's time without
    progress."""

    def __init__(self, clock: Clock, *, timeout_s: float, stall_s: float) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._master_heard = self._listened = clock.now()
        self._lost: dict[int, str] = {}
        #: Each node's progress, and the time of its last change.
        self._progress: dict[int, tuple[tuple[int, int, int], float]] = {}
        self._waits: dict[int, tuple[str, float]] = {}
        self._stopping = False
        self._links: Mapping[int, LinkMonitor] = {}
        self._broken_limit_s = 0.0
        self._broken: dict[int, float] = {}

    def watch(self, links: Mapping[int, LinkMonitor], limit_s: float) -> None:
        """Makes a rank count as lost once its link has been broken for `limit_s`."""
        self._links, self._broken_limit_s = links, limit_s

    def heard_master(self) -> None:
        with self._lock:
            self._master_heard = self._listened = self._clock.now()

    def heard_nothing(self) -> None:
        """Records that no message came while this node listened."""
        with self._lock:
            self._listened = self._clock.now()

    def report(self, peer: c.PeerPulse) -> None:
        progress = peer.step, peer.block, peer.bytes_read
        with self._lock:
            known = self._progress.get(peer.rank)
            if known is None or known[0] != progress:
                self._progress[peer.rank] = (progress, self._clock.now())

    def mark_lost(self, rank: int, cause: str) -> None:
        with self._lock:
            self._lost.setdefault(rank, cause)

    def stop(self) -> None:
        with self._lock:
            self._stopping = True

    def check(self, rank: int, waiting_for: str) -> None:
        """Raises PeerLost, or Cancelled at shutdown. Repeat the same `waiting_for` during one wait."""
        with self._lock:
            now = self._clock.now()
            # Lack of progress counts from the first call, because a peer may have been idle.
            known = self._waits.get(rank)
            if known is None or known[0] != waiting_for:
                known = self._waits[rank] = (waiting_for, now)
            self._check_alive(rank, waiting_for)
            _, advanced = self._progress.get(rank, (None, now))
            stuck_s = now - max(advanced, known[1])
            if stuck_s > self._stall_s:
                raise PeerLost(rank, waiting_for, f"alive but without progress for {stuck_s:.0f} s")
        self._check_link(rank, waiting_for)

    def check_idle(self, rank: int, waiting_for: str) -> None:
        """Checks like `check`, but allows the peer to make no progress."""
        with self._lock:
            self._check_alive(rank, waiting_for)
        self._check_link(rank, waiting_for)

    def _check_alive(self, rank: int, waiting_for: str) -> None:
        if self._stopping:
            raise Cancelled(f"the node stops during {waiting_for}")
        for lost, cause in self._lost.items():
            raise PeerLost(lost, waiting_for, cause)
        silent_s = self._listened - self._master_heard  # grows only while this node listens
        if silent_s > self._timeout_s:
            raise PeerLost(rank, waiting_for, f"the master has been silent for {silent_s:.1f} s")

    def _check_link(self, rank: int, waiting_for: str) -> None:
        link, now = self._links.get(rank), self._clock.now()
        if link is None or link.poll() is LinkState.UP:
            self._broken.pop(rank, None)
        elif now - self._broken.setdefault(rank, now) >= self._broken_limit_s:
            raise PeerLost(rank, waiting_for, "its connection broke")


NodeCommand = c.Assign | c.Compile | c.Connect | c.Generate | c.Halt | c.Resume


@dataclass(eq=False)
class ControlLink:
    _endpoint: Endpoint
    _clock: Clock
    _liveness: ClusterLiveness
    _heartbeat_s: float
    _heartbeat: Callable[[], c.Heartbeat]
    _answer: Callable[[c.Cancel | c.AskStats], c.Stats | None]

    def __post_init__(self) -> None:
        #: An error means that the link itself failed.
        self.commands: queue.Queue[NodeCommand | c.Shutdown | TpiedgeError] = queue.Queue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self, hello: c.Hello) -> None:
        """Sends `hello` to the master. Starts the thread. Raises Unreachable."""
        self._endpoint.send(hello, timeout_s=10.0)
        self._liveness.heard_master()
        self._thread.start()

    def post(self, message: Message | Sequence[Message]) -> None:
        self._endpoint.post(message)

    def await_room(self) -> None:
        """Waits while more than 1000 posted messages are unsent. Raises PeerLost, or Cancelled at shutdown."""
        while self._endpoint.posted > 1000:
            self._liveness.check_idle(0, "room for what is said")
            time.sleep(0.005)

    def close(self) -> None:
        """Sends the posted messages. Ends the endpoint and the thread."""
        self._closing.set()
        self._endpoint.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        due, stalls = self._clock.now(), OwnStalls(self._heartbeat_s)
        try:
            while not self._closing.is_set():
                now = self._clock.now()
                if now >= due:
                    stalls.beat(now - due)
                    if not self._endpoint.posted:  # they are signs of life, too, and `send` waits for them
                        self._endpoint.send(self._heartbeat())
                    due = now + self._heartbeat_s
                envelope = self._endpoint.recv(max(0.0, due - now))
                if envelope is None and not stalls.stalled:
                    self._liveness.heard_nothing()
                elif envelope is not None:
                    self._liveness.heard_master()
                    self._handle(envelope.message)
        except TpiedgeError as error:
            if not self._closing.is_set():
                self._liveness.mark_lost(0, f"its link failed: {error}")
                self.commands.put(error)

    def _handle(self, message: Message) -> None:
        match message:
            case c.Shutdown():
                self._liveness.stop()
                self.commands.put(message)
            case _ if isinstance(message, NodeCommand):
                self.commands.put(message)
            case c.Pulse(peers=peers):
                for peer in peers:
                    self._liveness.report(peer)
            case c.Lost(rank=rank, cause=cause):
                self._liveness.mark_lost(rank, cause)
            case c.Cancel() | c.AskStats():
                stats = self._answer(message)
                if stats is not None:
                    self._endpoint.send(stats)
