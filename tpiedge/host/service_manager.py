"""Reports to systemd, by the messages of sd_notify(3), whether a service is ready, alive or stopping."""

import logging
import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

_log = logging.getLogger(__name__)


class ServiceManager:
    """The systemd that started this process. Methods block for one second at most; without systemd they do nothing."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        # @ begins the name of an abstract socket, which has no file.
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        own = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environment.get("WATCHDOG_USEC", "") if own else ""
        self._watchdog_usec = int(usec) if usec.isdecimal() else 0
        self._paused = False
        self._due = 0.0  # when the next sign of life is due
        self._asked: Future[Any] | None = None

    def ready(self, *, watched: bool = True) -> None:
        """Reports readiness. Unless `watched`, the watchdog stops until the next `alive`."""
        self._paused = not watched and self._watchdog_usec > 0
        self._tell("READY=1", *(["WATCHDOG_USEC=0"] if self._paused else []))

    def status(self, line: str) -> None:
        """Sets the line that `systemctl status` shows to every user: no secrets."""
        self._tell("STATUS=" + " ".join(line.split()))

    def saying(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """Returns a function that calls `say` and sets the status."""

        def both(line: str) -> None:
            say(line)
            self.status(line)

        return both

    def alive(self, now: float, ask: Callable[[], Future[Any]] | None = None) -> None:
        """Feeds the watchdog four times in its period. Call `alive` often. With `ask`, feeds the watchdog only after
        the future from `ask` is done."""
        if not self._watchdog_usec or now < self._due:
            return
        if ask is not None:
            self._asked = self._asked or ask()
            if not self._asked.done():
                return
            self._asked = None
        self._due = now + self._watchdog_usec / 4e6
        resumed = [f"WATCHDOG_USEC={self._watchdog_usec}"] if self._paused else []
        self._paused = False
        self._tell(*resumed, "WATCHDOG=1")

    def stopping(self, line: str = "stopping") -> None:
        self._tell("STOPPING=1", f"STATUS={line}")

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(1.0)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            _log.warning("systemd was not told %s: %s", lines[0], error)
