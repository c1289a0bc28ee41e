"""Ends a process properly if one of its threads fails."""

import logging
import threading
from collections.abc import Callable
from typing import Self

from tpiedge.errors import InternalError

_log = logging.getLogger(__name__)


class Supervisor:
    """Catches exceptions that end threads, within a `with` block. The first failed thread calls `on_failure`."""

    def __init__(self, on_failure: Callable[[InternalError], None] | None = None) -> None:
        self.failure: InternalError | None = None  # the first one; for any thread
        self.failed = ""  # its thread's name
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._before = threading.excepthook

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> Self:
        self._before, threading.excepthook = threading.excepthook, self._notice
        return self

    def __exit__(self, *_error: object) -> None:
        threading.excepthook = self._before

    def _notice(self, ended: threading.ExceptHookArgs) -> None:
        name = ended.thread.name if ended.thread is not None else "of no name"
        words = f"the thread {name} failed: {ended.exc_type.__name__}: {ended.exc_value}"
        with self._lock:
            first = self.failure is None
            if first:
                self.failed = name
                self.failure = InternalError(f"{words}; start tpiedge again, and report it")
        _log.error("%s", words)
        trace = (ended.exc_type, ended.exc_value or ended.exc_type(), ended.exc_traceback)
        _log.debug("where it failed:", exc_info=trace)
        if first and self._on_failure is not None and self.failure is not None:
            self._on_failure(self.failure)
