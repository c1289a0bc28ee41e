"""Observes a spoke's attempts to connect. libzmq tries for ever and reports no error."""

import math
import threading
import time
from enum import Enum

import zmq
from zmq.utils.monitor import recv_monitor_message


class LinkState(Enum):
    """WAITING: the link waits for a handshake. REFUSED: a hub, perhaps a false one, refused this key. FAILED: the hub
    has another key."""

    WAITING = "waiting"
    UP = "up"
    REFUSED = "refused"
    FAILED = "failed"


_STATES: dict[int, LinkState] = {
    zmq.EVENT_HANDSHAKE_SUCCEEDED: LinkState.UP,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: LinkState.REFUSED,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: LinkState.FAILED,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: LinkState.FAILED,
    zmq.EVENT_DISCONNECTED: LinkState.WAITING,
}
# The I/O thread reports the break and its next try well within this time.
_RETRY_S = 0.2
# One handshake can fail because a network or a process went away in its middle.
_CERTAIN = 2


class LinkMonitor:
    """Watches one socket. Make it before the connect; close it before the socket. Only one thread may call `wait`."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._lock = threading.Lock()
        self._socket = socket
        self._events = socket.get_monitor_socket(sum(map(int, (*_STATES, zmq.EVENT_CONNECT_RETRIED))))
        self._failures = 0
        self._broken_at: float | None = None
        self.state = LinkState.WAITING

    def wait(self, timeout_s: float) -> LinkState:
        """Waits until the link is UP, REFUSED or twice FAILED, at most for `timeout_s`. Returns its state."""
        deadline = time.monotonic() + timeout_s
        self.poll()  # what has happened already costs no time
        while not self.is_final and self._read_event(max(0.0, deadline - time.monotonic())):
            pass
        if self.state is LinkState.WAITING and self._failures:
            return LinkState.FAILED
        return self.state

    def poll(self) -> LinkState:
        while self._read_event(0.0):
            pass
        return self.state

    def gave_up(self) -> bool:
        """Whether the link broke and libzmq will not mend it. Returns True once per break."""
        self.poll()
        if self._broken_at is None or time.monotonic() - self._broken_at < _RETRY_S:
            return False
        self._broken_at = None
        return True

    def close(self) -> None:
        with self._lock:
            if not self._events.closed:
                self._socket.disable_monitor()
                self._events.close(linger=0)

    @property
    def is_final(self) -> bool:
        return self.state in (LinkState.UP, LinkState.REFUSED) or self._failures >= _CERTAIN

    def _read_event(self, timeout_s: float) -> bool:
        with self._lock:
            if self._events.closed or not self._events.poll(math.ceil(timeout_s * 1000)):
                return False
            event = recv_monitor_message(self._events)["event"]
        if event == zmq.EVENT_CONNECT_RETRIED:
            self._broken_at = None
            return True
        state = _STATES.get(event, self.state)
        if event == zmq.EVENT_DISCONNECTED or (state is LinkState.FAILED and self.state is LinkState.UP):
            # Bytes that CURVE refuses count as a failed handshake, after which libzmq stops reading for good.
            self._broken_at = time.monotonic()
        elif state is LinkState.UP:
            self._broken_at, self._failures = None, 0
        if state is LinkState.WAITING and self.state is not LinkState.UP:
            return True  # the end of a handshake that failed, which is known already
        self._failures += state is LinkState.FAILED
        self.state = state
        return True
