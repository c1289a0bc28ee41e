"""A file descriptor that one thread waits on and any thread makes ready."""

import contextlib
import os
import threading


class Wakeup:
    """Usable next to sockets in a poll; `ring` after `close` does nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else _pipe()
        self._open = True

    def fileno(self) -> int:
        return self._read

    def ring(self) -> None:
        with self._lock:
            if self._open:
                # A full pipe is ringing already.
                with contextlib.suppress(BlockingIOError):
                    os.write(self._write, b"!")

    def silence(self) -> None:
        """Called by the waiting thread, before it looks at what it was woken for."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open = False
                os.close(self._read)
                os.close(self._write)


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends
