"""One command under a memory limit and a deadline: what it printed, what it used, how it ended."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpiedge.lab.memory_group import ENTER, MemoryUse, memory_group

_LINE = 200


@dataclass(frozen=True)
class Ended:
    """`status` is None where the command did not end within `deadline_s` and was killed."""

    status: int | None
    out: str
    err: str
    use: MemoryUse
    deadline_s: float

    @property
    def failure(self) -> str | None:
        """Describes the failure; None without one."""
        if self.status == 0:
            return None
        if self.use.oom_kills:
            return f"out of memory: the kernel killed {self.use.oom_kills} of its processes"
        if self.status is None:
            return f"no answer in {self.deadline_s:.0f} s"
        if self.status < 0:
            return f"killed by signal {-self.status}"
        lines = self.err.strip().splitlines() or ["nothing on standard error"]
        return f"exit status {self.status}: {lines[-1][:_LINE]}"


def run_confined(
    command: Sequence[str], limit_bytes: int, deadline_s: float, environment: Mapping[str, str]
) -> Ended:
    """Run `command` in a group of its own; neither it nor what it started is there afterwards, whatever happens."""
    with memory_group(limit_bytes) as group:
        # The shell enters the group before the command's first page is charged; the command takes its place.
        process = subprocess.Popen(
            ["/bin/sh", "-c", ENTER, str(group.members_file), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=dict(environment),
            start_new_session=True,  # Ctrl-C is for this process, which then ends the group
        )
        with process:
            try:
                out, err = process.communicate(timeout=deadline_s)
                status: int | None = process.returncode
            except subprocess.TimeoutExpired:
                group.kill()
                out, err = process.communicate()
                status = None
            except BaseException:
                group.kill()
                raise
        return Ended(status, out, err, group.use(), deadline_s)
