import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tpiedge.host.service_manager import ServiceManager


@pytest.fixture(params=["file", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """A socket's name for NOTIFY_SOCKET, and what has arrived there."""
    name = f"@tpiedge-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(name.replace("@", "\0"))
        heard.setblocking(False)

        def arrived() -> list[str]:
            try:
                return [heard.recv(4096).decode(), *arrived()]
            except BlockingIOError:
                return []

        yield name, arrived


Systemd = tuple[str, Callable[[], list[str]]]


def test_states_arrive_at_the_notify_socket(systemd: Systemd) -> None:
    name, arrived = systemd
    manager, said = ServiceManager({"NOTIFY_SOCKET": name}), list[str]()
    manager.ready()
    manager.saying(said.append)("two\nlines")
    manager.alive(0.0)
    manager.stopping()
    assert arrived() == ["READY=1", "STATUS=two lines", "STOPPING=1\nSTATUS=stopping"], "no watchdog is set"
    assert said == ["two\nlines"]


def test_watchdog_is_fed_four_times_per_period(systemd: Systemd) -> None:
    name, arrived = systemd
    manager = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "4000000"})
    for now in (5.0, 5.5, 6.0, 6.9, 7.1):
        manager.alive(now)
    assert arrived() == ["WATCHDOG=1"] * 3


def test_watchdog_waits_while_the_service_is_not_watched(systemd: Systemd) -> None:
    name, arrived = systemd
    manager = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "4000000"})
    manager.ready(watched=False)
    manager.alive(5.0)
    manager.alive(7.0)
    assert arrived() == ["READY=1\nWATCHDOG_USEC=0", "WATCHDOG_USEC=4000000\nWATCHDOG=1", "WATCHDOG=1"]


def test_watchdog_is_fed_only_after_the_asked_thread_answers(systemd: Systemd) -> None:
    name, arrived = systemd
    manager = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "4000000"})
    asked: list[Future[None]] = []

    def ask() -> Future[None]:
        asked.append(Future())
        return asked[-1]

    for now in (5.0, 50.0):
        manager.alive(now, ask)
    assert (len(asked), arrived()) == (1, [])
    asked[0].set_result(None)
    manager.alive(51.0, ask)
    assert arrived() == ["WATCHDOG=1"]


@pytest.mark.parametrize("of", [{}, {"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}])
def test_process_that_systemd_does_not_watch_sends_nothing(of: dict[str, str], systemd: Systemd) -> None:
    name, arrived = systemd
    watchdog = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "4000000", **of} if of else {}
    ServiceManager(watchdog).alive(5.0)
    ServiceManager({}).ready()
    assert arrived() == []


def test_missing_notify_socket_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "none")}).ready()
    assert "systemd was not told READY=1" in caplog.text
