"""The leak check of every test sees what it should see."""

import subprocess
import sys
import threading
import time

import psutil
import pytest

from tests.process.leaks import Holdings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="system: reads /proc")

AT_ONCE_S = 0.0


def test_leak_check_sees_a_thread():
    before, done = Holdings.now(), threading.Event()
    thread = threading.Thread(target=done.wait, name="forgotten", daemon=True)
    thread.start()
    assert before.growth(AT_ONCE_S) == ["thread forgotten"]
    done.set()
    thread.join()
    assert before.growth(AT_ONCE_S) == []


def test_leak_check_sees_a_child_process():
    before = Holdings.now()
    with subprocess.Popen(["sleep", "60"]) as child:
        _await_command(child.pid)
        assert before.growth(AT_ONCE_S) == [f"process {child.pid}: sleep 60"]
        child.kill()
    assert before.growth(AT_ONCE_S) == []


def test_leak_check_sees_an_orphan_process():
    """A process whose parent has gone: what a master must not leave behind."""
    before = Holdings.now()
    command = "sleep 60 >/dev/null & echo $!"
    started = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, check=True)
    orphan = int(started.stdout)
    _await_command(orphan)
    assert before.growth(AT_ONCE_S) == [f"process {orphan}: sleep 60"]
    psutil.Process(orphan).kill()
    assert before.growth(30.0) == []


def _await_command(pid: int) -> None:
    """Waits until the process has its own command line.

    A fork has its parent's at first, and none between the exec that closes files, for which Popen waits, and the
    kernel's layout of the new one.
    """
    deadline = time.monotonic() + 30
    while psutil.Process(pid).cmdline() != ["sleep", "60"]:
        assert time.monotonic() < deadline, psutil.Process(pid).cmdline()
        time.sleep(0.001)
