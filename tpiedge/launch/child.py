"""Child processes that are started, watched and ended by one parent, and that cannot outlive it.

A child's standard input is its lifeline: the parent writes the first line (what the child must know, secrets
included, so that nothing secret is in an argument list or the environment) and keeps the pipe open. When the parent
dies, in whatever way, the pipe closes and the child ends (tpiedge.lifeline).

The kernel's parent-death signal counts the thread that started the child as its parent: that thread must outlive it.
"""

import contextlib
import logging
import os
import selectors
import signal
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
    """Where a node runs: `host` is its IP address, `prefix` a command that execs the node's command in that place."""

    host: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


class Child:
    """A running `python -m MODULE`. The parent must call `stop`.

    With `reports` its standard output is a pipe on which it writes one line, for `read_report`. `prefix` is a command
    that execs what follows it, in another place. Raises ResourceError if the process cannot be started.
    """

    def __init__(
        self,
        module: str,
        first_line: bytes,
        environment: Mapping[str, str],
        *,
        reports: bool = False,
        prefix: Sequence[str] = (),
    ) -> None:
        self._oom_kills = Cgroups.own().oom_kills()
        self._log = _log_file()  # closed by `stop`
        try:
            self._process = subprocess.Popen(
                # -P: a folder named numpy in the user's working directory must not be imported.
                [*prefix, sys.executable, "-P", "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if reports else subprocess.DEVNULL,
                stderr=self._log,
                # A session of its own: Ctrl-C in the terminal reaches the parent alone, which ends the children.
                start_new_session=True,
                env={**child_environment(), **environment},
            )
        except OSError as error:
            self._log.close()
            raise ResourceError(
                f"cannot start a process ({error.strerror}): is this machine short of memory or of processes?"
            ) from None
        self._report = b""
        self._reading = threading.Lock()  # guards `_report` and the pipe that it comes from
        self.send_line(first_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send_line(self, line: bytes) -> None:
        """Writes one more line to the child. Does nothing if it has ended: `exit_cause` says why."""
        assert self._process.stdin is not None  # it is a pipe
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def read_report(self, deadline: float) -> bytes | None:
        """The line that it reports; None if none came by `deadline` (monotonic seconds). From any thread; blocks.

        Raises PeerError or OutOfMemory with the cause if it ends without a report.
        """
        with self._reading:
            pipe = self._process.stdout
            if pipe is None or pipe.closed:
                raise InternalError("a child that has no pipe for a report (any more) was asked for it")
            while b"\n" not in self._report:
                with selectors.DefaultSelector() as selector:
                    selector.register(pipe, selectors.EVENT_READ)
                    if not selector.select(max(0.0, deadline - time.monotonic())):
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
        """None while it runs; then why it ended, in words, with the last line of its log. Does not block."""
        status = self._process.poll()
        if status is None:
            return None
        if self._was_killed_for_memory:
            return "it ran out of memory (killed by the system's OOM killer)"
        last = self.log_tail().strip().rsplit("\n", 1)[-1] if status > 0 else ""
        words = f"its process ended with status {status}"
        if status < 0:
            known = -status in {one.value for one in signal.Signals}
            words = (
                f"its process was killed by {signal.Signals(-status).name if known else f'signal {-status}'}"
            )
        return words + (f" ({last})" if last else "")

    @property
    def out_of_memory(self) -> bool:
        """Whether it ends for want of memory: the system killed it, or its log says so, before the process is gone."""
        return self._was_killed_for_memory or OutOfMemory.__name__ in self.log_tail()

    @property
    def _was_killed_for_memory(self) -> bool:
        return self._process.poll() == -signal.SIGKILL and Cgroups.own().oom_kills() > self._oom_kills

    def log_tail(self) -> str:
        """The end of its standard error; "" after `stop`."""
        if self._log.closed:
            return ""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), 4000, max(0, size - 4000)).decode(errors="replace")

    def stop(self, deadline: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Closes the lifeline, blocks until `deadline` (monotonic seconds) for the end, then kills. Idempotent.

        `meanwhile` is called again and again until a killed process has ended.
        """
        assert self._process.stdin is not None  # it is a pipe
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            # The kernel frees its memory first, a tenth of a second for each GB: longer than others may not hear
            # of this machine. One whose disk never answers does not end at all.
            for _ in range(300):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.1)
                    break
                meanwhile()
            else:
                _log.warning("process %d was killed and does not end: does its disk answer?", self.pid)
        if self._process.stdout is not None:
            with self._reading:  # a reader has seen the end of the pipe by now
                self._process.stdout.close()
        self._log.close()


def _log_file() -> IO[bytes]:
    """A file without a name. Raises ResourceError."""
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise ResourceError(
            f"cannot make a temporary file for the log of a process ({error.strerror}): free some space, or set TMPDIR "
            "to a folder on another disk"
        ) from None
