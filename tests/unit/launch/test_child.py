import errno
import fcntl
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.process.command import wait_for
from tpiedge.errors import OutOfMemory, PeerError, ResourceError
from tpiedge.host.device import Cgroups
from tpiedge.launch.child import Child, ForkedProcess

WAITS = "import sys; sys.stdin.readlines()"
OUT_OF_MEMORY = "it ran out of memory (killed by the system's OOM killer)"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    started: list[Child] = []

    def run(code: str = WAITS, *, reports: bool = False) -> Child:
        (tmp_path / "victim.py").write_text(code)
        started.append(Child("victim", b"", {"PYTHONPATH": str(tmp_path)}, reports=reports))
        return started[-1]

    yield run
    for child in started:
        child.stop(time.monotonic() + 10)


def test_unkillable_process_is_abandoned_with_a_warning(start, monkeypatch, caplog):
    child, signals, meanwhile = start(), [], []

    def never(timeout: float | None = None) -> int:
        assert timeout is not None, "a wait without end"
        raise subprocess.TimeoutExpired("child", timeout)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(child._process, "wait", never)
        patch.setattr(child._process, "kill", lambda: signals.append(signal.SIGKILL))
        child.stop(time.monotonic(), lambda: meanwhile.append(1))
    assert signals == [signal.SIGKILL]
    assert len(meanwhile) > 10, "others are to hear of this machine"
    assert f"process {child.pid} was killed and does not end" in caplog.text


def test_failed_process_start_names_its_cause(start, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(tmp_path / "gone"))
        with pytest.raises(ResourceError, match=r"cannot start a process \(No such file or directory\)"):
            start()

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(ResourceError, match=r"temporary file.*\(No space left on device\).*TMPDIR"):
        start()


def test_child_reports_out_of_memory_before_it_exits(start: Callable[..., Child]) -> None:
    child = start(f"import sys; print('OutOfMemory: a tensor', file=sys.stderr, flush=True); {WAITS}")
    wait_for(lambda: child.out_of_memory, 20)
    assert child.exit_cause() is None


@pytest.mark.parametrize(
    ("kills", "words", "kind"),
    [(0, "its process was killed by SIGKILL", PeerError), (1, OUT_OF_MEMORY, OutOfMemory)],
)
def test_killed_childs_exit_cause_distinguishes_the_oom_killer(start, monkeypatch, kills, words, kind):
    counts = [4]
    monkeypatch.setattr(Cgroups, "oom_kills", lambda self: counts[-1])
    child = start(reports=True)
    counts.append(4 + kills)
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child.exit_cause() == words
    with pytest.raises(kind, match="a process that was to get ready did not report: it"):
        child.read_report(time.monotonic() + 10)


def test_forked_process_works_with_high_file_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    told, tells = os.pipe()
    high = fcntl.fcntl(told, fcntl.F_DUPFD_CLOEXEC, 1500)
    process = ForkedProcess(high)
    assert (process.poll(), process.pid) == (None, 0)
    os.write(tells, b"4242\n")
    assert (process.poll(), process.pid) == (None, 4242)
    os.write(tells, b"-9\n")
    assert process.wait(10.0) == -9
    for file in (told, tells):
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_forked_process_can_be_awaited_by_several_threads() -> None:
    told, tells = os.pipe()
    process = ForkedProcess(told)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(process.wait, 60.0) for _ in range(3)]
        assert [process.poll() for _ in range(2000)] == [None] * 2000
        os.write(tells, b"4242\n7\n")
        assert [one.result() for one in waiting] == [7, 7, 7]
    assert (process.poll(), process.pid) == (7, 4242)
    os.close(tells)
