"""A control group with a memory limit, and a command that runs in it with all that it starts (Linux, root).

Page cache counts, and a page of a library counts for the group that first touched it: for the whole truth, let the
system forget its caches before (`echo 1 > /proc/sys/vm/drop_caches`).
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tpiedge.errors import UserError
from tpiedge.nodes.cgroups import Cgroups

__all__ = ["GroupRun", "MemoryGroup", "memory_group", "run_in_group"]

_ENDING_S = 10.0
_POLL_S = 0.01
_ENTER = 'echo $$ > "$0" && exec "$@"'


@dataclass(frozen=True)
class GroupRun:
    """What a command left: the JSON that it printed, or else why it failed; the most that its group used, page cache
    included, and how many processes were killed for want of memory."""

    record: dict[str, Any] | None
    failure: str
    peak_bytes: int
    oom_kills: int


@dataclass(frozen=True)
class MemoryGroup:
    """A group that exists. `files` are those of its version: limits in the order of writing, peak, kills."""

    folder: Path
    limits: Mapping[str, int]
    peak: str
    events: str

    def limit(self) -> None:
        """Raises OSError."""
        for name, value in self.limits.items():
            if (self.folder / name).exists():  # swap may not be accounted for
                (self.folder / name).write_text(str(value))

    @property
    def peak_bytes(self) -> int:
        return int((self.folder / self.peak).read_text())

    @property
    def oom_kills(self) -> int:
        pairs = (line.partition(" ") for line in (self.folder / self.events).read_text().splitlines())
        return next((int(value) for name, _, value in pairs if name == "oom_kill"), 0)

    def remove(self) -> None:
        """End what still runs in it, and the group. Raises OSError if that takes too long."""
        deadline = time.monotonic() + _ENDING_S
        while True:
            for pid in (self.folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            try:
                self.folder.rmdir()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)


@contextlib.contextmanager
def memory_group(limit_bytes: int, root: Path = Path("/")) -> Iterator[MemoryGroup]:
    """A new group that must not swap. Raises UserError where that is not allowed or not possible."""
    group = _group(Cgroups.own(root), f"tpiedge-bench-{os.getpid()}", limit_bytes)
    try:
        if "memory.max" in group.limits:
            (group.folder.parent / "cgroup.subtree_control").write_text("+memory")
        group.folder.mkdir()
    except OSError as error:
        raise UserError(f"--cgroup cannot make {group.folder}: {error.strerror}; run it as root") from None
    try:
        group.limit()
        yield group
    finally:
        group.remove()


def run_in_group(limit_bytes: int, arguments: Sequence[str]) -> GroupRun:
    """`tpiedge ARGUMENTS`, which prints JSON, below the limit. It is told of the end of this process by the end of its
    standard input."""
    with memory_group(limit_bytes) as group:
        # -P: a folder named numpy in the user's working directory must not be imported.
        entry = [sys.executable, "-P", "-c", "from tpiedge.cli.entry import main; main()"]
        status, out, err = _run(["sh", "-c", _ENTER, str(group.folder / "cgroup.procs"), *entry, *arguments])
        failure = "" if not status else f"status {status}: {err.strip().rpartition(chr(10))[2]}"
        return GroupRun(None if status else json.loads(out), failure, group.peak_bytes, group.oom_kills)


def _run(command: Sequence[str]) -> tuple[int, str, str]:
    """Status, output and errors of a command whose own waits are bounded. A session of its own: Ctrl-C reaches this
    process alone, which ends it in order."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=err, start_new_session=True
        )
        try:
            status = process.wait()
        finally:
            _end(process)
        return status, _text(out), _text(err)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The end of its standard input asks it to go; SIGKILL follows if it does not."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _group(own: Cgroups, name: str, limit_bytes: int) -> MemoryGroup:
    """Version 1 below the own group; version 2 below the topmost, since groups with processes have none below."""
    if own.memory_v1:
        limits = {
            "memory.swappiness": 0,
            "memory.limit_in_bytes": limit_bytes,
            "memory.memsw.limit_in_bytes": limit_bytes,
        }
        folder = own.memory_v1[0] / name
        return MemoryGroup(folder, limits, "memory.max_usage_in_bytes", "memory.oom_control")
    if own.memory_v2:
        limits = {"memory.max": limit_bytes, "memory.swap.max": 0}
        return MemoryGroup(own.memory_v2[-1] / name, limits, "memory.peak", "memory.events")
    raise UserError("--cgroup needs control groups that limit memory, and this system has none")
