"""Talks to `grammar_child.py`, without waiting. A child that was killed from outside is restarted once."""

import contextlib
import itertools
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tpiedge.errors import ChildLost, GrammarRefused, TpiedgeError
from tpiedge.lifeline import killed_from_outside
from tpiedge.model.text_child import HEAD
from tpiedge.model.text_process import killed_twice, no_room
from tpiedge.sanitise import sanitised_line
from tpiedge.wire.requests import Grammar

FATE: Final = struct.Struct("<iQ")
"""A child's exit status (negative: a signal), and its CPU time in microseconds."""
#: Limit until a child is ready; other children and the tokenizer may come first. All limits together are below a stall
#: limit.
_READY_S: Final = 25.0
COMPILE_S: Final = 20.0
"""Limit until a grammar is compiled, and again until its answer begins. CPU limits end most grammars long before."""
AGAIN_S: Final = 30.0
"""The same limit if an answer has begun."""


class GrammarLink:
    """The parent's two sockets to a child. Shutting `watch` ends the child; `watch` then delivers the child's
    `FATE`."""

    def __init__(self, session: socket.socket, watch: socket.socket) -> None:
        session.setblocking(False)
        watch.setblocking(False)
        self._session = session
        self._watch = watch
        self._unsent = b""
        self._received = bytearray()
        self._silent = False
        self._pid = 0
        self._known_s = self._told_s = 0.0
        self.killed: bool | None = None
        """Whether the child was killed from outside; None until it has ended."""

    @staticmethod
    def through(parent: socket.socket) -> "GrammarLink":
        """Makes the process behind `parent` fork a child. Returns a link to the child. Raises OSError."""
        with contextlib.ExitStack() as undone, contextlib.ExitStack() as sent:
            pairs = []
            for _ in range(2):
                own, theirs = socket.socketpair()
                undone.enter_context(own)
                pairs.append((own, sent.enter_context(theirs)))
            socket.send_fds(parent, [b"s"], [theirs.fileno() for _, theirs in pairs])
            undone.pop_all()
        return GrammarLink(pairs[0][0], pairs[1][0])

    @property
    def reads(self) -> socket.socket:
        return self._watch if self._silent else self._session

    @property
    def writes(self) -> socket.socket | None:
        return self._session if self._unsent and not self._silent else None

    def send(self, letter: bytes, number: int, body: bytes = b"") -> None:
        """Sends a frame, now or in a later call."""
        self._unsent += HEAD.pack(len(body), letter, number) + body
        self._flush()

    def receive(self) -> Sequence[tuple[bytes, int, bytes]]:
        """Returns (letter, number, body) of each new frame."""
        self._flush()
        if not self._silent:
            part = _received(self._session, 1 << 18)
            self._received += part or b""
            self._silent = part == b""
            if self._silent:
                with contextlib.suppress(OSError):
                    self._watch.shutdown(socket.SHUT_WR)  # so that the child is reaped
        found = []
        while len(self._received) >= HEAD.size:
            length, letter, number = HEAD.unpack_from(self._received)
            end = HEAD.size + length
            if len(self._received) < end:
                break
            body = bytes(self._received[HEAD.size : end])
            del self._received[:end]
            found.append((letter, number, body))
            if letter == b"r":
                self._pid = int.from_bytes(body, "little")
            elif letter in b"dmy":
                self._known_s += micros(body) / 1e6
        said = _received(self._watch, FATE.size) if not found and self._silent else None
        if said is not None:
            # If no fate comes, the child's parent has ended, too.
            status, spent = FATE.unpack(said) if len(said) == FATE.size else (-signal.SIGKILL, 0)
            self.killed = killed_from_outside(status)
            self._known_s = max(self._known_s, spent / 1e6)
        return found

    def spent_s(self) -> float:
        before_s, self._told_s = self._told_s, max(self._told_s, self._known_s, _processor_s(self._pid))
        return self._told_s - before_s

    def close(self) -> None:
        self._session.close()
        self._watch.close()

    def _flush(self) -> None:
        if not self._unsent:
            return
        try:
            self._unsent = self._unsent[self._session.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = b""


def _received(source: socket.socket, most: int) -> bytes | None:
    """Returns new bytes; None if there are none yet, b"" at the end."""
    try:
        return source.recv(most)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def micros(body: bytes) -> int:
    return int.from_bytes(body[:4], "little")  # of a processor


def _processor_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        user, system = fields.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


class GrammarProcess:
    """Owns a grammar's process, which several answers may share. Methods raise GrammarRefused and ChildLost."""

    def __init__(
        self,
        grammar: Grammar,
        fork: Callable[[], GrammarLink],
        now: Callable[[], float] = time.monotonic,
        *,
        again: bool,
    ) -> None:
        """`fork` starts the process and may raise OSError. `again`: the answer already has tokens."""
        self._query = json.dumps({"kind": grammar.kind, "text": grammar.text, "again": again}).encode("ascii")
        self._compile_s = AGAIN_S if again else COMPILE_S
        self._fork = fork
        self._now = now
        self._numbers = itertools.count()
        #: By answer's number: the function that takes letter and body of a frame.
        self._answers: dict[int, Callable[[bytes, bytes], None]] = {}
        self._link: GrammarLink | None = None
        self._is_ready = self._compiled = False
        self._error: TpiedgeError | None = None
        self.begun = 0
        """How many processes there have been; a new process knows no answer."""
        self._spent_s = self._deadline = 0.0

    @property
    def usable(self) -> bool:
        return self._error is None and bool(self._answers)

    def join(self, hear: Callable[[bytes, bytes], None]) -> int:
        """Adds an answer. Returns its number. `ready` passes letter and body of the answer's frames to `hear`."""
        number = 1 + next(self._numbers) % 0xFFFF  # frames of an answer that left may still come
        self._answers[number] = hear
        return number

    def leave(self, number: int) -> None:
        if self._answers.pop(number, None) is None:
            return
        self.send(b"x", number)
        if not self._answers:
            self._end()

    def links(self) -> Sequence[GrammarLink]:
        return () if self._error is not None or self._link is None else (self._link,)

    def ready(self) -> bool:
        try:
            if self._error is None:
                self._advance()
        except TpiedgeError as error:  # kept for all answers that ask later
            self._error = error
            self._end()
        if self._error is not None:
            raise type(self._error)(str(self._error))
        return self._compiled

    def send(self, letter: bytes, number: int, body: bytes = b"") -> None:
        if self._link is not None:
            self._link.send(letter, number, body)

    def take_spent(self) -> float:
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s + (self._link.spent_s() if self._link is not None else 0.0)

    def _advance(self) -> None:
        link = self._link or self._start()
        while frames := link.receive():
            for letter, number, body in frames:
                self._understand(letter, number, body)
        if link.killed is False:
            raise GrammarRefused(
                "the grammar is refused: it takes too much time or memory; give a smaller one"
            )
        if link.killed:
            if self.begun > 1:
                raise killed_twice("a grammar")
            self._end()
            self._is_ready = self._compiled = False
        elif not self._compiled and self._now() > self._deadline:
            if self._is_ready:
                raise starved()
            raise ChildLost(f"the process of a grammar was not ready within {_READY_S:g} s: try again later")

    def _start(self) -> GrammarLink:
        try:
            link = self._link = self._fork()
        except OSError as error:
            raise no_room(error) from None
        self.begun += 1
        self._deadline = self._now() + _READY_S
        link.send(b"g", 0, self._query)
        return link

    def _end(self) -> None:
        if self._link is not None:
            self._spent_s += self._link.spent_s()
            self._link.close()
        self._link = None

    def _understand(self, letter: bytes, number: int, body: bytes) -> None:
        if number:
            if number in self._answers:
                self._answers[number](letter, body)
        elif letter == b"r":
            self._is_ready = True
            self._deadline = self._now() + self._compile_s
        elif letter == b"y":
            self._compiled = True
        elif letter == b"e":
            raise refused(body)


def refused(why: bytes) -> GrammarRefused:
    return GrammarRefused(f"the grammar is refused: {sanitised_line(why.decode(errors='replace'), 400)}")


def starved() -> ChildLost:
    return ChildLost("this machine is too busy for the grammar of the request: try again later")
