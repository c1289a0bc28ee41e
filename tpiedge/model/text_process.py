"""Runs a model's tokenizer or chat template in a child process (`text_child.py`).

A job beyond a limit ends the process; the next job starts another. If something else kills the process, a new process
repeats the job once. A caller waits at most `wall_s` seconds for earlier jobs, then at most `wall_s` seconds for its
own job.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, Final

from tpiedge.errors import ChildLost, UserError
from tpiedge.lifeline import killed_from_outside
from tpiedge.model.text_child import HEAD, receive

_CHILD: Final = Path(__file__).parent / "text_child.py"
_ENDING_S: Final = 10.0
_KEPT_ENVIRONMENT: Final = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TZ")
_PACKAGES: Final = ("tokenizers", "jinja2", "markupsafe")
#: Job -> CPU seconds. The jobs: limit memory, open a tokenizer, add tokens, encode, count, render.
_CPU_S: Final = {b"L": 1, b"O": 60, b"A": 60, b"E": 20, b"C": 20, b"R": 2}
_REPEATED: Final = (b"O", b"A")


class JobFailed(ValueError):
    """A job failed. `limited` means that the job met a limit."""

    def __init__(self, text: str, *, limited: bool) -> None:
        super().__init__(text)
        self.limited = limited


class TextProcess:
    """Does one job of `text_child.py` at a time. Thread-safe. `what` names the model's part in errors. `memory` is
    the process's limit in bytes. A new process loads the same tokenizer."""

    def __init__(self, what: str, memory: int, wall_s: float) -> None:
        self._setup = [(b"L", str(memory).encode())]
        self._what = what
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self._end: weakref.finalize[..., TextProcess] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def do(self, letter: bytes, body: bytes) -> Any:
        """Blocks until a job is done, and returns its answer. Raises JobFailed, ChildLost, and UserError if a limit
        killed the process."""
        if not self._lock.acquire(timeout=self._wall_s):
            raise self._busy()
        try:
            for _ in range(2):
                try:
                    if self._link is None:
                        self._start()
                    found = self._done(letter, body)
                    if letter in _REPEATED:
                        self._setup.append((letter, body))
                    return found
                except (EOFError, ConnectionError):
                    status = self._close()
                if not killed_from_outside(status):
                    # Killed by a limit (a negative status), or out of memory before it could say so.
                    reason = f"signal {-status}" if status < 0 else f"exit status {status}"
                    raise UserError(f"{self._what} took too much time or memory ({reason}); use another one")
            raise killed_twice(self._what)
        except TimeoutError:
            assert self._process is not None
            self._process.kill()
            self._close()
            raise self._busy() from None
        finally:
            self._lock.release()

    def _busy(self) -> ChildLost:
        return ChildLost(
            f"{self._what} took more than {self._wall_s:g} s: this machine is too busy for it; try again later"
        )

    def _done(self, letter: bytes, body: bytes) -> Any:
        link = self._link
        assert link is not None
        deadline = time.monotonic() + self._wall_s

        def read(_: int, count: int) -> bytes:
            link.settimeout(max(0.001, deadline - time.monotonic()))
            return link.recv(count)

        link.settimeout(self._wall_s)
        link.sendall(HEAD.pack(len(body), letter, _CPU_S[letter]) + body)
        kind, _, answer = receive(link.fileno(), read)
        if kind == b"j":
            return json.loads(answer)
        if kind == b"l":
            self._close()  # frees its memory
        raise JobFailed(answer.decode("utf-8", "replace"), limited=kind == b"l")

    def _start(self) -> None:
        environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
        command = ["-I", "-S", str(_CHILD), *_folders()]
        self._process, self._link = start_linked(command, environment)
        self._end = weakref.finalize(self, _ended, self._process, self._link)
        self._end.atexit = False  # the system closes the socket
        for job in self._setup:
            self._done(*job)

    def _close(self) -> int:
        assert self._end is not None
        self._link = None
        return self._end() or 0


def _ended(process: "subprocess.Popen[bytes]", link: socket.socket) -> int:
    link.close()
    with suppress(subprocess.TimeoutExpired):
        return process.wait(_ENDING_S)
    process.kill()
    return process.wait(_ENDING_S)


def start_linked(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """Starts Python. Returns (process, this end of the socket that is its standard input). Raises ChildLost."""
    try:
        ours, theirs = socket.socketpair()
        with ExitStack() as unless_started, theirs:
            unless_started.callback(ours.close)
            command = [sys.executable, *arguments]
            process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=DEVNULL, stderr=DEVNULL, env=environment
            )
            unless_started.pop_all()
    except OSError as error:
        raise no_room(error) from None
    return process, ours


def no_room(error: OSError) -> ChildLost:
    return ChildLost(
        f"this machine has no room for the process of a text or a grammar ({error.strerror}): try again later"
    )


def killed_twice(what: str) -> ChildLost:
    return ChildLost(
        f"the process of {what} was killed twice, perhaps because this machine is short of memory: try again later"
    )


def _folders() -> list[str]:
    # Without site-packages the child starts in half the time.
    folders = []
    for name in _PACKAGES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise UserError(f"the Python package {name} is missing; install tpiedge again")
        folders.append(str(Path(spec.origin).parent.parent))
    return list(dict.fromkeys(folders))
