"""The resources that this process holds: threads, child processes, open files. Linux only.

Some holdings belong to libraries, are opened once on first use and stay until the end of the process; they are no
leaks:

- pyzmq's garbage collector (a daemon thread, its context and sockets) starts with the first send without a copy;
- tqdm's monitor, a daemon thread, starts with transformers' first progress bar;
- the random devices and /dev/null, which libsodium and the C library may keep.
"""

import contextlib
import ctypes
import gc
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.02
_GRACE_S = 30.0

_LIBRARY_THREADS = {"GarbageCollectorThread", "TMonitor"}
# Where the check covers several tests, the last one has a timer of its own.
_TEST_TIMER = "pytest_timeout "
_LIBRARY_FILES = ("/dev/urandom", "/dev/random", "/dev/null")
# The garbage collector's context: its signalling eventfds and epoll sets.
_COLLECTOR_FILES = 16


def adopt_orphans() -> None:
    """Makes a process whose parent dies a child of this one, where the check finds it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@dataclass(frozen=True)
class Holdings:
    """Taken before a test, to be compared with after it."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]
    files: Counter[str]

    @staticmethod
    def now() -> "Holdings":
        threads = frozenset(threading.enumerate())
        return Holdings(threads, frozenset(_children()), Counter(_open_files()))

    def growth(self, grace_s: float) -> list[str]:
        """Describes new holdings; slow ones have `grace_s` to go."""
        deadline = time.monotonic() + grace_s
        left = self._growth()
        if left:
            gc.collect()  # what only a cycle still holds
        while left and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            left = self._growth()
        return left

    def _growth(self) -> list[str]:
        threads = [thread for thread in threading.enumerate() if thread not in self.threads]
        threads = [thread for thread in threads if not thread.name.startswith(_TEST_TIMER)]
        ours = [thread for thread in threads if type(thread).__name__ not in _LIBRARY_THREADS]
        left = [f"thread {thread.name}" for thread in ours]
        left += [f"process {pid}: {name}" for pid, name in _children().items() if pid not in self.children]
        files = Counter(_open_files()) - self.files
        if len(ours) < len(threads):
            files = _without_collector(files)
        return left + [f"open file {name} (x{count})" for name, count in files.items()]


@contextlib.contextmanager
def leak_check(what: str) -> Iterator[None]:
    """Fails where the block, which is `what`, leaves anything behind, with its name."""
    before = Holdings.now()
    yield
    left = before.growth(_GRACE_S)
    if left:
        pytest.fail(f"left behind by the {what}:\n  " + "\n  ".join(left), pytrace=False)


def _without_collector(files: Counter[str]) -> Counter[str]:
    kinds = ("anon_inode:", "socket")
    held = sum(count for name, count in files.items() if name.startswith(kinds))
    if held > _COLLECTOR_FILES:
        return files
    return Counter({name: count for name, count in files.items() if not name.startswith(kinds)})


def _open_files() -> list[str]:
    """One entry per descriptor: the path, or the kind where the path is a number that changes."""
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own descriptor
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if name not in _LIBRARY_FILES and not name.startswith(f"/proc/{os.getpid()}/fd"):
                names.append(name.partition(":[")[0] if name.startswith(("socket:", "pipe:")) else name)
    return names


def _children() -> dict[int, str]:
    """Process id -> command, of everything below this process. Adopted orphans that have ended are reaped."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # cheap: most tests have no child at all
        return {
            child.pid: _command(child) for child in psutil.Process().children(recursive=True) if _runs(child)
        }
    return {}


def _runs(child: psutil.Process) -> bool:
    try:
        if child.status() != psutil.STATUS_ZOMBIE:
            return True
    except psutil.NoSuchProcess:
        return False
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)
    return False


def _command(child: psutil.Process) -> str:
    try:
        return " ".join(child.cmdline())[:120]
    except psutil.Error:
        return "?"
