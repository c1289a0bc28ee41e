"""Child processes that are started, watched and ended by one parent, and that cannot outlive it.

A child's standard input is its lifeline: the parent writes the first line (what the child must know, secrets
included, so that nothing secret is in an argument list or the environment) and keeps the pipe open. When the parent
dies, in whatever way, the pipe closes and the child ends (tpiedge.lifeline).
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import IO

from tpiedge.errors import InternalError

__all__ = ["Child"]

_TAIL_BYTES = 4000


class Child:
    """A running `python -m MODULE`. The parent must call `stop`."""

    def __init__(self, module: str, first_line: bytes, environment: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `stop`)
        # A session of its own: Ctrl-C in the terminal reaches the parent alone, which ends the children in order.
        self._process = subprocess.Popen(
            # -P: a folder named numpy in the user's working directory must not be imported.
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, **environment},
        )
        with contextlib.suppress(BrokenPipeError):  # it died at once; `exit_cause` tells why
            self._lifeline.write(first_line + b"\n")
            self._lifeline.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def _lifeline(self) -> IO[bytes]:
        if self._process.stdin is None:
            raise InternalError("a child was started without a lifeline")
        return self._process.stdin

    def exit_cause(self) -> str | None:
        """None while it runs; afterwards why it ended, in words, with the last line that it wrote to its log."""
        status = self._process.poll()
        if status is None:
            return None
        last = self.log_tail().strip().rsplit("\n", 1)[-1] if status > 0 else ""
        return _describe(status) + (f" ({last})" if last else "")

    def log_tail(self) -> str:
        """The end of its standard error."""
        size = os.fstat(self._log.fileno()).st_size
        start = max(0, size - _TAIL_BYTES)
        return os.pread(self._log.fileno(), _TAIL_BYTES, start).decode(errors="replace")

    def stop(self, deadline: float) -> None:
        """Close the lifeline, wait until `deadline` (monotonic seconds) for a voluntary end, then kill. Idempotent."""
        with contextlib.suppress(BrokenPipeError):
            self._lifeline.close()
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def _describe(status: int) -> str:
    if status >= 0:
        return f"its process ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"its process was killed by {name}"
