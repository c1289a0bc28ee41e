"""Runs all disk jobs of a node, for weights and for pages of the KV cache, in a few threads and in one order."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeAlias

from tpiedge.errors import InternalError, ResourceError
from tpiedge.memory.disk_order import DiskOrder, DiskUse, Purpose
from tpiedge.pack.files import Closable
from tpiedge.tracing.tracer import BRING, LEAVE, Tracer

DiskWork: TypeAlias = Callable[[], int]
"""Reads or writes, and returns how many bytes it moved."""

_LANES: Final = {"bring": BRING, "leave": LEAVE}
_WAIT_S: Final = 60.0


class DiskQueue(Closable):
    """Any thread may call the methods."""

    def __init__(self, threads: int = 4) -> None:
        self._order = DiskOrder()
        self._jobs: dict[int, tuple[Purpose, DiskWork, Future[int]]] = {}  # by ticket
        self._changed = threading.Condition()
        self._closed = False
        self._tracer: Tracer | None = None
        self._page = 0  # the tracer's number of this name
        self._threads = [
            threading.Thread(target=self._run, name=f"tpiedge-disk-{number}", daemon=True)
            for number in range(threads)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError as error:
            self.close()
            raise ResourceError(f"cannot start a thread for the disk ({error}): allow more threads") from None

    def submit(self, purpose: Purpose, nbytes: int, work: DiskWork) -> "Future[int]":
        """Runs `work`, which will move about `nbytes`, in a thread. A job to bring or leave moves one page. The future
        has the result or error of `work`, or InternalError if the queue is closed first."""
        future = Future[int]()
        future.set_running_or_notify_cancel()  # a job that waits cannot be cancelled either
        with self._changed:
            if not self._closed:
                self._jobs[self._order.submit(purpose, nbytes)] = purpose, work, future
                self._changed.notify()
                return future
        future.set_exception(_closed())
        return future

    def used(self, purpose: Purpose) -> DiskUse:
        with self._changed:
            return self._order.used(purpose)

    @property
    def moved_bytes(self) -> int:
        """Bytes moved for all purposes."""
        with self._changed:
            return self._order.moved_bytes

    def trace(self, tracer: Tracer) -> None:
        """Records jobs of pages from now on."""
        self._page = tracer.name("page")
        self._tracer = tracer

    def close(self) -> None:
        """Waits for running jobs, and ends waiting jobs with an error. Idempotent."""
        with self._changed:
            self._closed = True
            waiting, self._jobs = self._jobs, {}
            self._changed.notify_all()
        for _, _, future in waiting.values():
            future.set_exception(_closed())
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_WAIT_S)

    def _run(self) -> None:
        while self._run_next():
            pass  # an idle thread must not keep the memory of its last job

    def _run_next(self) -> bool:
        """Waits for a job and runs it. Returns False once the queue is closed."""
        with self._changed:
            started = time.perf_counter()
            while self._closed or (ticket := self._order.begin(started)) is None:
                if self._closed:
                    return False
                self._changed.wait(_WAIT_S)
                started = time.perf_counter()
            purpose, work, future = self._jobs.pop(ticket)
        moved, failure = 0, None
        try:
            moved = work()
        except BaseException as error:  # which only the job's owner can judge
            failure = error
        ended = time.perf_counter()
        with self._changed:
            self._order.end(ticket, moved, ended)
        if self._tracer is not None and purpose in _LANES:
            self._tracer.add(_LANES[purpose], self._page, started, ended, nbytes=moved)
        if failure is None:  # the lock is free: callbacks may submit jobs
            future.set_result(moved)
        else:
            future.set_exception(failure)
        return True


def _closed() -> InternalError:
    return InternalError("the disk queue was closed before the job began")
