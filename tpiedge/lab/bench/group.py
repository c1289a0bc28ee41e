"""`tpiedge` in a control group with a memory limit, with all that it starts."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from tpiedge.host.memory_group import ENTER, memory_group

_ENDING_S = 10.0


@dataclass(frozen=True)
class GroupRun:
    """What a command left: the JSON that it printed, or else why it failed; the most that its group used, page cache
    included, and how many processes were killed for want of memory."""

    record: dict[str, Any] | None
    failure: str
    peak_bytes: int
    oom_kills: int


def run_in_group(limit_bytes: int, arguments: Sequence[str]) -> GroupRun:
    """`tpiedge ARGUMENTS`, which prints JSON, below the limit. It is told of the end of this process by the end of its
    standard input."""
    with memory_group(limit_bytes) as group:
        # -P: a folder named numpy in the user's working directory must not be imported.
        entry = [sys.executable, "-P", "-c", "from tpiedge.cli.entry import main; main()"]
        status, out, err = _run(["sh", "-c", ENTER, str(group.members_file), *entry, *arguments])
        failure = "" if not status else f"status {status}: {err.strip().rpartition(chr(10))[2]}"
        use = group.use()
        return GroupRun(None if status else json.loads(out), failure, use.peak_bytes, use.oom_kills)


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
