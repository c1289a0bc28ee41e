"""Processes of a testbed: finding those that belong to it, and ending them. Linux."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tpiedge.errors import ResourceError

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


def module_processes(module: str, argument: str) -> set[int]:
    """Those that run and were started as `...

    -m MODULE ARGUMENT`, by any process with the same /run: in a container the same path is another file.
    """
    wanted = [os.fsencode(word) for word in ("-m", module, argument)]
    processes = (Path("/proc", name) for name in os.listdir("/proc") if name.isdecimal())
    return {int(path.name) for path in processes if _arguments(path)[-3:] == wanted and _shares_run(path)}


def _arguments(process: Path) -> list[bytes]:
    try:
        return (process / "cmdline").read_bytes().removesuffix(b"\0").split(b"\0")
    except OSError:
        return []


def _shares_run(process: Path) -> bool:
    try:
        return (process / "root" / "run").samefile("/run")
    except OSError:
        return False


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
