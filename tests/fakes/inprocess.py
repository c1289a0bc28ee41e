"""Hub and spokes inside one process: queues instead of sockets, the same bytes and the same checks."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from tpiedge.transport import endpoint
from tpiedge.transport.admission import Admission
from tpiedge.wire.fields import Message


class Receiver(Protocol):
    name: str

    def deliver(self, sender: str, frame: bytes | None) -> None: ...


Carry = Callable[[str, Receiver, bytes], None]
"""Takes a frame of this sender to its receiver, in the end."""


class _Mailbox:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        #: A frame of None: the connection broke and was made anew.
        self.received: deque[tuple[str, bytes | None]] = deque()
        self.posted: deque[tuple[bytes, str | None]] = deque()
        self.closed = False
        self.woken = False


class _InProcessEndpoint(endpoint.Endpoint):
    def __init__(self, name: str, address: str, plane: endpoint.Plane) -> None:
        super().__init__(name, plane)
        self.address = address
        self.carry: Carry = _deliver  # at once; a shaped network takes its time (tests/shaped_links.py)
        self._mailbox = _Mailbox()

    def send_frame(
        self, frame: endpoint.Buffer, to: str | Sequence[str] | None = None, timeout_s: float | None = None
    ) -> None:
        self._flush()
        copy = bytes(frame)
        for name in endpoint.names_of(to):
            self._send(copy, name, timeout_s)

    def recv_frame(self, timeout_s: float) -> tuple[str, memoryview] | None:
        deadline = time.monotonic() + timeout_s
        box = self._mailbox
        while True:
            self._flush()
            with box.changed:
                ready = box.changed.wait_for(
                    lambda: box.closed or box.received or box.posted or box.woken,
                    max(0.0, deadline - time.monotonic()),
                )
                if box.closed:
                    raise endpoint.EndpointClosed(f"{self.name} was closed")
                if not box.received and (box.woken or not ready):
                    box.woken = False
                    return None
                if not box.received:
                    continue
                sender, frame = box.received.popleft()
            if frame is None:
                raise endpoint.LinkReset(sender)
            if not self._admits(sender):
                self.counters.refused += 1
                continue
            self.counters.bytes_received += len(frame)
            return sender, memoryview(frame)

    @property
    def is_closed(self) -> bool:
        return self._mailbox.closed

    def _queue(self, frames: Sequence[tuple[bytes, str | None]]) -> None:
        with self._mailbox.changed:
            self._mailbox.posted.extend(frames)
            self._mailbox.changed.notify_all()

    @property
    def posted(self) -> int:
        return len(self._mailbox.posted)

    def wake(self) -> None:
        with self._mailbox.changed:
            self._mailbox.woken = True
            self._mailbox.changed.notify_all()

    def close(self) -> None:
        if not self._mailbox.closed:
            self._drain()
        with self._mailbox.changed:
            self._mailbox.closed = True
            self._mailbox.changed.notify_all()

    def deliver(self, sender: str, frame: bytes | None) -> None:
        with self._mailbox.changed:
            self._mailbox.received.append((sender, frame))
            self._mailbox.changed.notify_all()

    def _find(self, to: str | None, deadline: float) -> "_InProcessEndpoint | None":
        raise NotImplementedError

    def _admits(self, _peer: str) -> bool:
        return True

    def _flush(self) -> None:
        if self._mailbox.closed:
            raise endpoint.EndpointClosed(f"{self.name} was closed")
        self._drain()

    def _drain(self) -> None:
        while self._mailbox.posted:
            frame, to = self._mailbox.posted.popleft()
            with contextlib.suppress(endpoint.Unreachable):
                self._send(frame, to, 0.0)

    def _send(self, frame: bytes, to: str | None, timeout_s: float | None) -> None:
        wait_s = endpoint.SEND_TIMEOUT_S if timeout_s is None else timeout_s
        peer = self._find(to, time.monotonic() + wait_s)
        if peer is None or peer._mailbox.closed:
            raise endpoint.Unreachable(to or ("nobody" if peer is None else peer.name), wait_s)
        self.carry(self.name, peer, frame)
        self.counters.bytes_sent += len(frame)


def _deliver(sender: str, receiver: Receiver, frame: bytes) -> None:
    receiver.deliver(sender, frame)


class InProcessHub(_InProcessEndpoint):
    """A hub that, given an `admission`, hears only admitted peers and sends only to them."""

    def __init__(
        self, name: str, plane: endpoint.Plane = endpoint.TENSOR, admission: Admission | None = None
    ) -> None:
        super().__init__(name, f"inprocess:{name}", plane)
        self.admission = admission or Admission({})
        self.addresses: dict[str, str] = {}  # where peers are connected from, by name
        self._checks = admission is not None
        self._spokes: dict[str, InProcessSpoke] = {}
        self._joined = threading.Condition()

    def spoke(self, name: str) -> "InProcessSpoke":
        spoke = InProcessSpoke(name, self, self._plane)
        with self._joined:
            self._spokes[name] = spoke
            self._joined.notify_all()
        return spoke

    def address_of(self, name: str) -> str:
        return self.addresses.get(name, "")

    def is_connected(self, name: str) -> bool:
        spoke = self._spokes.get(name)
        return spoke is not None and not spoke.is_closed

    def disconnect(self, name: str, farewell: Message | None = None) -> None:
        with self._joined:
            spoke = self._spokes.pop(name, None)
        if spoke is not None and farewell is not None:
            self.carry(self.name, spoke, endpoint.frame_of(farewell, None, self._plane))

    def _admits(self, peer: str) -> bool:
        return not self._checks or peer in self.admission.admitted

    def _find(self, to: str | None, deadline: float) -> _InProcessEndpoint | None:
        if not self._admits(to or ""):
            return None
        with self._joined:
            self._joined.wait_for(lambda: to in self._spokes, max(0.0, deadline - time.monotonic()))
            return self._spokes.get(to or "")


class InProcessSpoke(_InProcessEndpoint):
    def __init__(self, name: str, hub: InProcessHub, plane: endpoint.Plane) -> None:
        super().__init__(name, hub.address, plane)
        self._hub = hub

    def _find(self, _to: str | None, _deadline: float) -> _InProcessEndpoint | None:
        return self._hub


class InProcessPeer(_InProcessEndpoint):
    def __init__(self, name: str, members: dict[str, "InProcessPeer"], plane: endpoint.Plane) -> None:
        super().__init__(name, f"inprocess:{name}", plane)
        self._members = members
        members[name] = self

    @staticmethod
    def group(names: Sequence[str], plane: endpoint.Plane = endpoint.TENSOR) -> list["InProcessPeer"]:
        members: dict[str, InProcessPeer] = {}
        return [InProcessPeer(name, members, plane) for name in names]

    def _find(self, to: str | None, _deadline: float) -> _InProcessEndpoint | None:
        return self._members.get(to or "")
