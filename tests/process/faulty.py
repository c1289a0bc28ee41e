"""`tpiedge` with a fault that begins while it runs: `python -m tests.process.faulty FAULT FILE ARGUMENTS...`.

`slow-disk`: while FILE is there, an fsync does not end, but for as many as FILE says; then FILE.stuck is there."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tpiedge.cli.main import main

__all__ = ["Fault"]

_POLL_S = 0.01


class Fault:
    """Of a process that is started by `program`."""

    def __init__(self, kind: str, path: Path) -> None:
        self.program = (sys.executable, "-m", "tests.process.faulty", kind, path)
        self._path = path

    def begin(self, spared: int = 0) -> None:
        """`spared`: how many calls go well before the first that does not."""
        partial = self._path.with_suffix(".partial")
        partial.write_text(str(spared))
        partial.replace(self._path)

    def end(self) -> None:
        """Idempotent."""
        self._path.unlink(missing_ok=True)

    @property
    def met(self) -> bool:
        """Whether the process is in it."""
        return _stuck(self._path).exists()


def _stuck(path: Path) -> Path:
    return path.with_suffix(".stuck")


def _slow_disk(path: Path) -> None:
    fsync: Callable[[int], None] = os.fsync
    passed = 0

    def wait_and_sync(fd: int) -> None:
        nonlocal passed
        while path.exists() and passed >= int(path.read_text()):
            _stuck(path).touch()
            time.sleep(_POLL_S)
        passed += path.exists()
        fsync(fd)

    os.fsync = wait_and_sync


_FAULTS = {"slow-disk": _slow_disk}


if __name__ == "__main__":
    kind, file, *arguments = sys.argv[1:]
    _FAULTS[kind](Path(file))
    sys.argv[1:] = arguments
    main()
