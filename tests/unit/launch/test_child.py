"""A child that cannot be ended does not keep its parent."""

import errno
import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator

import pytest

from tpiedge.errors import ResourceError
from tpiedge.launch.child import Child


@pytest.fixture
def child() -> Iterator[Child]:
    """A child whose module does not exist."""
    made = Child("tpiedge.there_is_no_such_module", b"", {})
    yield made
    made.stop(time.monotonic())


def test_a_process_that_survives_its_kill_is_given_up_and_said_so(
    child: Child, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As while it reads from a disk that does not answer."""
    signals: list[int] = []

    def never(timeout: float | None = None) -> int:
        assert timeout is not None, "a wait without end"
        raise subprocess.TimeoutExpired("child", timeout)

    meanwhile: list[int] = []
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(child._process, "wait", never)
        patch.setattr(child._process, "kill", lambda: signals.append(signal.SIGKILL))
        child.stop(time.monotonic(), lambda: meanwhile.append(1))
    assert signals == [signal.SIGKILL]
    assert len(meanwhile) > 10, "others are to hear of this machine"
    assert f"process {child.pid} was killed and does not end" in caplog.text


def test_a_log_that_finds_no_room_is_said_and_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    with pytest.raises(ResourceError, match=r"temporary file.*\(No space left on device\).*TMPDIR"):
        Child("tpiedge.there_is_no_such_module", b"", {})
