"""Processes of a testbed: finding those that belong to it, and ending them. Linux."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tpiedge.errors import ResourceError

__all__ = ["end_all", "processes_with_arguments"]

_KILLED_S = 20.0
_POLL_S = 0.01


def end_all(members: Callable[[], set[int]], polite_s: float) -> None:
    """SIGTERM to all that `members` finds, SIGKILL to what is left after `polite_s`, again and again until it finds
    none. This process is spared. Raises ResourceError if one does not end."""
    started = time.monotonic()
    asked: set[int] = set()
    while running := members() - {os.getpid()}:
        waited = time.monotonic() - started
        if waited > polite_s + _KILLED_S:
            raise ResourceError(
                f"processes of the testbed do not end: {', '.join(map(str, sorted(running)))}"
            )
        if waited > polite_s:
            _signal(running, signal.SIGKILL)
        else:
            _signal(running - asked, signal.SIGTERM)
            _signal(running - asked, signal.SIGCONT)  # who is stopped hears nothing
            asked |= running
        time.sleep(_POLL_S)


def processes_with_arguments(*wanted: str) -> set[int]:
    """Those that run and were started with all of these words."""
    words = {os.fsencode(word) for word in wanted}
    pids = (name for name in os.listdir("/proc") if name.isdecimal())
    return {int(pid) for pid in pids if words <= set(_arguments(Path("/proc", pid)))}


def _arguments(process: Path) -> list[bytes]:
    try:
        return (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
