"""A thread that waits for a disk in place of one that must not wait."""

import queue
import threading
from collections.abc import Callable


class DiskThread:
    """Calls what it is given, in that order and in a thread of its own, from its construction to `close`.

    At most `limit` calls wait. `put` and `close` are for any thread.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._limit = limit
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None]) -> bool:
        """Returns at once: False, and the job is not taken, where too many wait."""
        if self._jobs.qsize() >= self._limit:
            return False
        self._jobs.put(job)
        return True

    def close(self, limit_s: float) -> bool:
        """Does what waits; whether that took no longer than `limit_s`. Idempotent."""
        self._jobs.put(None)
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
