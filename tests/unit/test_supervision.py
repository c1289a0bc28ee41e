import logging
import sys
import threading

import pytest

from tpiedge.errors import InternalError
from tpiedge.supervision import Supervisor

WAIT_S = 10.0


def fail(name: str, error: BaseException) -> None:
    def run() -> None:
        raise error

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_first_thread_failure_is_kept_and_all_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    told: list[InternalError] = []
    before = threading.excepthook
    with caplog.at_level(logging.INFO), Supervisor(told.append) as supervisor:
        supervisor.check()
        fail("files", ValueError("no number"))
        fail("pairing", KeyError("gone"))
        assert supervisor.failed == "files"
        assert told == [supervisor.failure]
        with pytest.raises(InternalError, match="the thread files failed: ValueError: no number; start"):
            supervisor.check()
    assert [record.getMessage() for record in caplog.records] == [
        "the thread files failed: ValueError: no number",
        "the thread pairing failed: KeyError: 'gone'",
    ]
    assert not any(record.exc_info for record in caplog.records)
    assert threading.excepthook is before


def test_thread_calling_sys_exit_is_a_failure() -> None:
    """Python itself says nothing of a thread that calls sys.exit."""
    with Supervisor() as supervisor:
        thread = threading.Thread(target=sys.exit, args=(3,), name="api")
        thread.start()
        thread.join(WAIT_S)
        with pytest.raises(InternalError, match="the thread api failed: SystemExit: 3"):
            supervisor.check()
