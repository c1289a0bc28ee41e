"""Messages over whatever carries frames: what all endpoints do alike."""

from collections.abc import Sequence

from tpiedge.transport.endpoint import Buffer, Counters, Envelope, MalformedMessage
from tpiedge.transport.framing import Plane, frame_of, read_frame
from tpiedge.wire.messages import Message

SEND_TIMEOUT_S = 3.0


def messages_of(message: Message | Sequence[Message]) -> Sequence[Message]:
    """Those that were posted: one or several."""
    return message if isinstance(message, Sequence) else (message,)


class Messages:
    """Messages over an endpoint's own frames."""

    _plane: Plane

    def send(
        self,
        message: Message,
        tensors: Sequence[Buffer] = (),
        to: str | Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.send_frame(frame_of(message, tensors, self._plane), to, timeout_s)

    def recv(self, timeout_s: float) -> Envelope | None:
        received = self.recv_frame(timeout_s)
        return None if received is None else self.read(*received)

    def read(self, sender: str, frame: memoryview) -> Envelope:
        raise NotImplementedError

    def send_frame(
        self, frame: Buffer, to: str | Sequence[str] | None = None, timeout_s: float | None = None
    ) -> None:
        raise NotImplementedError

    def recv_frame(self, timeout_s: float) -> tuple[str, memoryview] | None:
        raise NotImplementedError


class Messaging(Messages):
    """An Endpoint but for its frames."""

    def __init__(self, name: str, plane: Plane) -> None:
        self.name = name
        self.counters = Counters()
        self.bytes_sent = 0
        self.bytes_received = 0
        self._plane = plane

    def read(self, sender: str, frame: memoryview) -> Envelope:
        try:
            return read_frame(sender, frame, self._plane)
        except MalformedMessage:
            self.counters.malformed += 1
            raise
