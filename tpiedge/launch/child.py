"""Starts child processes that cannot outlive their parent.

A child's standard input is a socket, its lifeline. If the parent dies, the socket closes and the child ends
(tpiedge.lifeline). Secrets go through the socket, because argument lists and environments are visible to other
processes. When a thread ends, the kernel kills the children that the thread started.
"""

import contextlib
import logging
import math
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from tpiedge.errors import InternalError, OutOfMemory, PeerError, ResourceError
from tpiedge.host.device import Cgroups
from tpiedge.lifeline import child_environment

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """A node's location: its IP address, and a command prefix that starts the node there."""

    host: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


class Child:
    """Starts `python -m module`. Call `stop` in the end. `reports`: whether the child prints a line, its report. Raises
    ResourceError."""

    def __init__(
        self,
        module: str,
        first_line: bytes,
        environment: Mapping[str, str],
        *,
        reports: bool = False,
        prefix: Sequence[str] = (),
    ) -> None:

        def start(stdin: socket.socket, log: IO[bytes]) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                # -P: a folder named numpy in the user's working directory must not be imported.
                [*prefix, sys.executable, "-P", "-m", module],
                stdin=stdin.fileno(),
                stdout=subprocess.PIPE if reports else subprocess.DEVNULL,
                stderr=log,
                # A session of its own: Ctrl-C in the terminal reaches the parent alone.
                start_new_session=True,
                env={**child_environment(), **environment},
            )

        self._start(start)
        self.send_line(first_line)

    def _start(
        self, start: "Callable[[socket.socket, IO[bytes]], subprocess.Popen[bytes] | ForkedProcess]"
    ) -> None:
        """`stop` closes the lifeline and the log. Raises ResourceError."""
        self._oom_kills = Cgroups.own().oom_kills()
        self._report = b""
        with contextlib.ExitStack() as opened:
            self._log = opened.enter_context(_log_file())
            try:
                self._lifeline, theirs = socket.socketpair()
                opened.callback(self._lifeline.close)
                with theirs:
                    self._process = start(theirs, self._log)
            except OSError as error:
                raise ResourceError(
                    f"cannot start a process ({error.strerror}): is this machine short of memory or of processes?"
                ) from None
            opened.pop_all()

    @property
    def pid(self) -> int:
        """The process id; 0 before the fork."""
        return self._process.pid

    def send_line(self, line: bytes, descriptors: Sequence[int] = ()) -> None:
        """Sends a line and open files to the child, if the child lives."""
        with contextlib.suppress(ConnectionError):
            sent = socket.send_fds(self._lifeline, [line + b"\n"], descriptors)
            self._lifeline.sendall((line + b"\n")[sent:])

    def read_report(self, deadline: float) -> bytes | None:
        """Returns the report, or None at `deadline` (monotonic seconds). Do not call it during `stop`. Raises
        PeerError, OutOfMemory."""
        pipe = self._process.stdout
        if pipe is None or pipe.closed:
            raise InternalError("a child that has no pipe for a report (any more) was asked for it")
        while b"\n" not in self._report:
            if not _is_readable(pipe.fileno(), max(0.0, deadline - time.monotonic())):
                return None
            data = os.read(pipe.fileno(), 4096)
            self._report += data
            if not data or len(self._report) > 65536:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(2.0)  # the pipe closes shortly before the process has a status
                kind = OutOfMemory if self._was_killed_for_memory else PeerError
                raise kind(f"a process that was to get ready did not report: {self.exit_cause()}")
        return self._report.partition(b"\n")[0]

    def exit_cause(self) -> str | None:
        """Returns why the child ended, or None while it runs. Does not block."""
        status = self._process.poll()
        if status is None:
            return None
        if self._was_killed_for_memory:
            return "it ran out of memory (killed by the system's OOM killer)"
        if status < 0:
            known = -status in {one.value for one in signal.Signals}
            name = signal.Signals(-status).name if known else f"signal {-status}"
            return f"its process was killed by {name}"
        last = self.log_tail().strip().rsplit("\n", 1)[-1] if status else ""
        return f"its process ended with status {status}" + (f" ({last})" if last else "")

    @property
    def out_of_memory(self) -> bool:
        return self._was_killed_for_memory or OutOfMemory.__name__ in self.log_tail()

    @property
    def _was_killed_for_memory(self) -> bool:
        return self._process.poll() == -signal.SIGKILL and Cgroups.own().oom_kills() > self._oom_kills

    def log_tail(self) -> str:
        if self._log.closed:
            return ""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), 4000, max(0, size - 4000)).decode(errors="replace")

    def stop(self, deadline: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Closes the lifeline; kills the child at `deadline` (monotonic seconds). Calls `meanwhile` until the killed
        child ends. Idempotent."""
        self._lifeline.close()
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            # Freeing 1 GB takes 0.1 s: others would miss heartbeats. A process whose disk does not answer never ends.
            for _ in range(300):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.1)
                    break
                meanwhile()
            else:
                _log.warning("process %d was killed and does not end: does its disk answer?", self.pid)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()


class ForkedProcess:
    """A process that a fork server forks, with methods of subprocess.Popen. Thread-safe. `told`: a pipe to which the
    server writes two lines, the pid and later the exit status. If the server dies, the kernel kills the process."""

    stdout: IO[bytes] | None = None

    def __init__(self, told: int) -> None:
        os.set_blocking(told, False)
        self._pid = 0
        self._told = told
        self._lines = b""
        self._status: int | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        self.poll()
        return self._pid

    def poll(self) -> int | None:
        with self._lock:
            while self._status is None:
                try:
                    data = os.read(self._told, 64)
                except BlockingIOError:
                    break
                self._lines += data
                pid, *status = self._lines.split(b"\n")[: self._lines.count(b"\n")] or [b"0"]
                self._pid = int(pid)
                if status or not data:
                    self._end(int(status[0]) if status else -signal.SIGKILL)
            return self._status

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while (status := self.poll()) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired("a node", timeout or 0.0)
            _is_readable(self._told, min(1.0, left_s))  # another thread may close it meanwhile
        return status

    def kill(self) -> None:
        ended = self.poll() is not None
        with self._lock:
            if self._pid and not ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)
            elif self._status is None:  # not forked yet: its closed lifeline will end it
                self._end(-signal.SIGKILL)

    def _end(self, status: int) -> None:
        self._status = status
        os.close(self._told)


class ForkedChild(Child):
    """A child that `server` forks. `line`: the node's bootstrap. Raises ResourceError."""

    def __init__(self, server: Child, line: bytes) -> None:

        def start(stdin: socket.socket, log: IO[bytes]) -> ForkedProcess:
            told, tells = os.pipe()
            process = ForkedProcess(told)
            server.send_line(line, [stdin.fileno(), log.fileno(), tells])
            os.close(tells)
            return process

        self._start(start)
        self._server = server

    def exit_cause(self) -> str | None:
        """Returns why the fork server or the child ended; None while the child runs."""
        cause = super().exit_cause()
        return cause if cause is None else self._server.exit_cause() or cause


def _is_readable(descriptor: int, within_s: float) -> bool:
    poller = select.poll()  # select() takes no descriptor above 1023
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(within_s * 1000))


def _log_file() -> IO[bytes]:
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise ResourceError(
            f"cannot make a temporary file for the log of a process ({error.strerror}): free some space, or set TMPDIR "
            "to a folder on another disk"
        ) from None
