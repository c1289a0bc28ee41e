"""The processes that use a pack: a shared lock on its manifest for as long as a process works with it.

It ends with its process, however that ends. Who wants to delete the pack needs the lock for itself alone. On a file
system without locks packs are used and deleted all the same.
"""

import contextlib
import fcntl
import os
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.pack.manifest import MANIFEST_NAME
from tpiedge.pack.store.locks import try_flock


class PackHold:
    """Keeps `remove_packs` away from the pack at `path` until `close`, or until nothing refers to this object.

    Raises UserError where the pack is being deleted.
    """

    def __init__(self, path: Path) -> None:
        fd = os.open(path / MANIFEST_NAME, os.O_RDONLY | os.O_CLOEXEC)
        self._release = weakref.finalize(self, os.close, fd)
        # A manifest without a name was deleted after it was opened and before it was locked.
        if try_flock(fd, fcntl.LOCK_SH) is False or not os.fstat(fd).st_nlink:
            self.close()
            raise UserError(
                f"the pack {path} is being deleted by another tpiedge: wait for that, then try again"
            )

    def close(self) -> None:
        self._release()


def remove_packs(paths: list[Path]) -> None:
    """Delete all of the packs, or none: raises UserError if a process uses one."""
    with contextlib.ExitStack() as stack:
        for path in paths:
            stack.enter_context(_alone(path))
        for path in paths:
            (path / MANIFEST_NAME).unlink()  # first: without it the rest is no pack any more
            shutil.rmtree(path)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    fd = os.open(path / MANIFEST_NAME, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if try_flock(fd, fcntl.LOCK_EX) is False:
            raise UserError(f"a running tpiedge uses the pack {path}: end it first")
        yield
    finally:
        os.close(fd)
