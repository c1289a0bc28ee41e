"""Standard input, output and error of a command in a container, over the one connection that engines give."""

import socket
from collections.abc import Callable
from typing import Final

_HEADER: Final = 8
_RECEIVE_BYTES: Final = 65536
_OUT: Final = 1


class Demultiplexer:
    """Pieces of (stream, data) out of what arrives: each has a header of the stream's number (1: output, 2: error),
    three zeros and the length. At a terminal there are no headers, and all is output."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self._waiting = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """What is complete. A piece may come in parts of several calls."""
        if self._terminal:
            return [(_OUT, data)] if data else []
        self._waiting += data
        pieces = []
        while len(self._waiting) >= _HEADER:
            end = _HEADER + int.from_bytes(self._waiting[4:_HEADER], "big")
            if len(self._waiting) < end:
                break
            pieces.append((self._waiting[0], self._waiting[_HEADER:end]))
            self._waiting = self._waiting[end:]
        return pieces


class CommandStream:
    """`status()` waits for the command's end; `resize(rows, columns)` is for terminals."""

    def __init__(
        self,
        connection: socket.socket,
        terminal: bool,
        status: Callable[[], int],
        resize: Callable[[int, int], None],
    ) -> None:
        self._connection = connection
        self._pieces = Demultiplexer(terminal)
        self.status = status
        self.resize = resize

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, data: bytes) -> int:
        """How much of it went: not more than fits, for who waits here does not read. Raises OSError."""
        try:
            return self._connection.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except ValueError:  # TLS knows no such thing
            self._connection.sendall(data)
            return len(data)

    def end_input(self) -> None:
        self._connection.shutdown(socket.SHUT_WR)

    def receive(self) -> list[tuple[int, bytes]] | None:
        """Pieces of (1 for output or 2 for error, data), perhaps none yet; None once all is closed."""
        try:
            data = self._connection.recv(_RECEIVE_BYTES)
        except ConnectionError:  # the engine ended
            return None
        return self._pieces.feed(data) if data else None
