"""Wrappers of a rank's endpoint: one stops, one changes messages, and one delays messages.

None of them can do an all-reduce in one call; the ranks around them may.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tpiedge.transport.endpoint import TENSOR, Buffer, Envelope, names_of, read_frame
from tpiedge.wire.fields import Message


class Between:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @property
    def counters(self) -> Any:
        return self.inner.counters

    def send_frame(self, frame: Buffer, to: str | Sequence[str] | None, timeout_s: float) -> None:
        for name in names_of(to):
            self.send_to(bytes(frame), str(name), timeout_s)

    def send_to(self, frame: bytes, name: str, timeout_s: float) -> None:
        self.inner.send_frame(frame, name, timeout_s)

    def recv(self, timeout_s: float) -> Envelope | None:
        return self.inner.recv(timeout_s)

    def reducer(self, _exchange: object) -> None:
        return None


class Stopped(Exception):
    """The rank of this endpoint computes no more."""


class Stopping(Between):
    """Sends `left` messages more, once that is set, to one peer each; then it is as if its process had frozen."""

    left: int | None = None

    def send_to(self, frame: bytes, name: str, timeout_s: float) -> None:
        if self.left is not None:
            if self.left == 0:
                raise Stopped
            self.left -= 1
        super().send_to(frame, name, timeout_s)


Change = Callable[[Envelope], Sequence[bytes]]


class Changing(Between):
    """Sends `change(message)` instead of each message, once that is set."""

    change: Change | None = None

    def send_to(self, frame: bytes, name: str, timeout_s: float) -> None:
        frames: Sequence[bytes] = [frame]
        if self.change is not None:
            frames = self.change(read_frame(name, memoryview(frame), TENSOR))
        for one in frames:
            super().send_to(one, name, timeout_s)


class Late(Between):
    """Keeps back what `holds(sender, message)`, and whatever `sender` sends after it, until `released`."""

    holds: Callable[[str, Message], bool] | None = None

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.released = threading.Event()
        #: What was handed on, in this order.
        self.heard: list[tuple[str, Message]] = []
        self._held: deque[Envelope] = deque()

    def recv(self, timeout_s: float) -> Envelope | None:
        deadline = time.monotonic() + timeout_s
        while True:
            if self._held and self.released.is_set():
                return self._hear(self._held.popleft())
            received = self.inner.recv(max(0.0, deadline - time.monotonic()))
            if received is None:
                return None
            if not self._keeps(received):
                return self._hear(received)
            self._held.append(received)

    def _keeps(self, received: Envelope) -> bool:
        if self.released.is_set() or self.holds is None:
            return False
        sender = received.sender
        return sender in {held.sender for held in self._held} or self.holds(sender, received.message)

    def _hear(self, received: Envelope) -> Envelope:
        self.heard.append((received.sender, received.message))
        return received
