"""A link to one process of a grammar: frames, and how it ended. See `grammar_child.py` for both.

Nothing here waits, but for `fds` of what select() takes. Imports no library, as the child imports this, too.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tpiedge.lifeline import killed_from_outside

FATE: Final = struct.Struct("<iQ")
"""How a child ended: its exit status, negative of a signal, and its microseconds of a processor."""
_HEAD: Final = 5
_RECEIVED: Final = 1 << 18


class LinkEnded(Exception):
    """The process is gone. `foreign`: it was killed from outside."""

    def __init__(self, *, foreign: bool) -> None:
        super().__init__("the process of a grammar has ended")
        self.foreign = foreign


def frame(letter: bytes, body: bytes) -> bytes:
    """The bytes of a frame."""
    return len(body).to_bytes(4, "little") + letter + body


class GrammarLink:
    """The parent's ends of the two sockets of a child: `session` carries frames, `watch` tells its end, and ends it
    where it is closed."""

    def __init__(self, session: socket.socket, watch: socket.socket) -> None:
        session.setblocking(False)
        watch.setblocking(False)
        self._session = session
        self._watch = watch
        self._unsent = b""
        self._received = bytearray()
        self._silent = False  # the session has ended, and the fate is awaited
        self._pid = 0
        #: Of a processor: what the child said, what its end said, and what the caller was told.
        self._said_s = self._fate_s = self._told_s = 0.0

    @staticmethod
    def through(parent: socket.socket) -> "GrammarLink":
        """A link to a new child of the process at the other end of `parent`. Raises OSError."""
        with contextlib.ExitStack() as undone, contextlib.ExitStack() as theirs:
            ends = []
            for _ in range(2):
                own, other = socket.socketpair()
                undone.callback(own.close)
                theirs.callback(other.close)
                ends.append((own, other))
            socket.send_fds(parent, [b"s"], [other.fileno() for _, other in ends])
            undone.pop_all()
        return GrammarLink(ends[0][0], ends[1][0])

    @property
    def reads(self) -> socket.socket:
        """The socket that is readable when there is something to take."""
        return self._watch if self._silent else self._session

    @property
    def writes(self) -> socket.socket | None:
        """The socket that is writable when there is room for what is unsent, if anything is."""
        return self._session if self._unsent and not self._silent else None

    def send(self, letter: bytes, body: bytes = b"") -> None:
        """What does not fit on the way at once, as a long answer so far, goes later: the child may not have begun."""
        self._unsent += frame(letter, body)
        self.flush()

    def flush(self) -> None:
        """Sends what there is room for. Where the child has ended, `take` says so."""
        try:
            self._unsent = self._unsent[self._session.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = b""

    def fork(self) -> "GrammarLink":
        """A link to a new child of this child, which was sent all frames and expects nothing else. Raises OSError."""
        return GrammarLink.through(self._session)

    def take(self) -> Sequence[tuple[bytes, bytes]]:
        """The frames that have come. Raises LinkEnded once there are no more."""
        if not self._silent:
            self._receive()
        found = []
        while len(self._received) >= _HEAD:
            end = _HEAD + int.from_bytes(self._received[:4], "little")
            if len(self._received) < end:
                break
            letter, body = bytes(self._received[4:_HEAD]), bytes(self._received[_HEAD:end])
            del self._received[:end]
            found.append((letter, body))
            if letter == b"r":
                self._pid = int.from_bytes(body, "little")
            elif letter in b"cy":
                self._said_s += int.from_bytes(body, "little") / 1e6
        if not found and self._silent:
            self._hear_fate()
        return found

    def spent_s(self) -> float:
        """Seconds of a processor that the child has used since this was asked last."""
        now_s = max(self._told_s, self._said_s, self._fate_s, _processor_s(self._pid))
        spent_s, self._told_s = now_s - self._told_s, now_s
        return spent_s

    def close(self) -> None:
        """Ends the child."""
        self._session.close()
        self._watch.close()

    def _receive(self) -> None:
        try:
            part = self._session.recv(_RECEIVED)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        self._received += part
        self._silent = not part

    def _hear_fate(self) -> None:
        try:
            said = self._watch.recv(FATE.size)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if len(said) != FATE.size:  # whoever was to tell has ended, too
            raise LinkEnded(foreign=True)
        status, spent = FATE.unpack(said)
        self._fate_s = spent / 1e6
        raise LinkEnded(foreign=killed_from_outside(status))


def _processor_s(pid: int) -> float:
    """What a process has used until now; 0 where it has ended, or the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        user, system = fields.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0
