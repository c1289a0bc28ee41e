"""A node's control thread: heartbeats out, the master's commands in.

It alone owns the control endpoint. The engine thread takes commands from `commands` and posts messages from outside;
both sides of that border are thread-safe.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence

from tpiedge.clock import Clock
from tpiedge.errors import TpiedgeError
from tpiedge.launch.own_stalls import OwnStalls
from tpiedge.node.liveness import ClusterLiveness, Progress
from tpiedge.transport.endpoint import Endpoint
from tpiedge.wire.control import (
    AskStats,
    Assign,
    Cancel,
    Compile,
    Connect,
    Generate,
    Halt,
    Heartbeat,
    Hello,
    Lost,
    Pulse,
    Resume,
    Shutdown,
    Stats,
)
from tpiedge.wire.messages import Message

Command = Assign | Compile | Connect | Generate | Halt | Resume | Shutdown | TpiedgeError
"""What the engine thread acts on; an error means that the link itself failed."""

_CONNECT_S = 10.0
_MOST_POSTED = 1000
_LOOK_S = 0.005


class ControlLink:
    """Runs from `start` to `close`."""

    def __init__(
        self,
        endpoint: Endpoint,
        clock: Clock,
        liveness: ClusterLiveness,
        heartbeat_s: float,
        heartbeat: Callable[[], Heartbeat],
        stats: Callable[[], Stats],
        on_cancel: Callable[[str], None],
        on_timeline: Callable[[], None],
    ) -> None:
        self.commands: queue.Queue[Command] = queue.Queue()
        self._endpoint = endpoint
        self._clock = clock
        self._liveness = liveness
        self._heartbeat_s = heartbeat_s
        self._heartbeat = heartbeat
        self._stats = stats
        self._on_cancel = on_cancel
        self._on_timeline = on_timeline
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self, hello: Hello) -> None:
        """Introduce this node to the master, then keep the link alive. Raises Unreachable where there is no master."""
        self._endpoint.send(hello, timeout_s=_CONNECT_S)
        self._liveness.heard_master()
        self._thread.start()

    def post(self, message: Message | Sequence[Message]) -> None:
        """Send from any thread."""
        self._endpoint.post(message)

    def await_room(self) -> None:
        """Wait while the connection takes less than is posted. Raises PeerLost, or Cancelled at shutdown."""
        while self._endpoint.posted > _MOST_POSTED:
            self._liveness.check_idle(0, "room for what is said")
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Send what was posted, then end the thread and the endpoint."""
        self._closing.set()
        self._endpoint.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._serve()
        except TpiedgeError as error:
            if not self._closing.is_set():
                self._liveness.lose(0, f"its link failed: {error}")
                self.commands.put(error)

    def _serve(self) -> None:
        due, stalls = self._clock.now(), OwnStalls(self._heartbeat_s)
        while not self._closing.is_set():
            now = self._clock.now()
            if now >= due:
                stalls.beat(now - due)
                if not self._endpoint.posted:  # which are signs of life as well, and would be waited for
                    self._endpoint.send(self._heartbeat())
                due = now + self._heartbeat_s
            envelope = self._endpoint.recv(max(0.0, due - now))
            if envelope is None and not stalls.excuse:
                self._liveness.heard_nothing()
            elif envelope is not None:
                self._liveness.heard_master()
                self._handle(envelope.message)

    def _handle(self, message: Message) -> None:
        match message:
            case Assign() | Compile() | Connect() | Generate() | Halt() | Resume():
                self.commands.put(message)
            case Shutdown():
                self._liveness.stop()
                self.commands.put(message)
            case Pulse(peers=peers):
                for peer in peers:
                    self._liveness.report(peer.rank, Progress(peer.step, peer.block, peer.bytes_read))
            case Lost(rank=rank, cause=cause):
                self._liveness.lose(rank, cause)
            case Cancel(request=request):
                self._on_cancel(request)
            case AskStats(timeline=timeline):
                if timeline:
                    self._on_timeline()
                self._endpoint.send(self._stats())
            case _:
                # The master sends nothing else to a node; a newer master's extra messages are refused at the handshake.
                return
