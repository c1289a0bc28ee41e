"""The trace of a whole cluster: the nodes' parts, joined into one file when the cluster has ended."""

import errno
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tpiedge.errors import DiskFull, TpiedgeError, UserError
from tpiedge.tracing.chrome import write_trace
from tpiedge.tracing.tracer import read_part

_PAGE = 4096


@dataclass(frozen=True)
class Joined:
    """What became of a trace: how many events it has, how many more had no room, and the ranks that left nothing."""

    events: int
    dropped: int
    missing: tuple[int, ...]


class Collection:
    """A folder beside `path` that holds the parts; it is gone at the end of the context.

    Raises UserError or DiskFull, when it is made, if `path` cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = writable(path)
        try:
            folder = tempfile.mkdtemp(prefix=f".{self._path.name}.", suffix=".partial", dir=self._path.parent)
        except OSError as error:
            raise cannot_write(path, error) from None
        self._folder = Path(folder)

    def part(self, rank: int) -> Path:
        """Where the node of that rank, on this computer, writes what it has recorded."""
        return self._folder / f"node-{rank}"

    def join(self, nodes: int) -> Joined:
        """Write the trace of ranks 0, 1, ... in place of what was there. Nothing is written if none left anything.

        Raises UserError, DiskFull.
        """
        paths = [self.part(rank) for rank in range(nodes)]
        missing = tuple(rank for rank, path in enumerate(paths) if not path.exists())
        try:
            return self._join([path for path in paths if path.exists()], missing)
        except OSError as error:
            raise cannot_write(self._path, error) from None

    def _join(self, paths: list[Path], missing: tuple[int, ...]) -> Joined:
        starts: list[float] = []
        events = dropped = 0
        for part in map(read_part, paths):  # one at a time, and twice: each may take a hundred megabytes
            starts += [event.start_s for event in part.events[:1]]
            events += len(part.events)
            dropped += part.dropped
        unfinished = self._folder / "joined"
        if starts:
            write_trace(unfinished, map(read_part, paths), min(starts))
            unfinished.replace(self._path)
        elif missing:  # perhaps for want of room, of which what they had begun has taken the rest
            unfinished.write_bytes(bytes(_PAGE))
        return Joined(events, dropped, missing)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder)


def writable(path: Path) -> Path:
    """The file that `path` leads to; it need not be there yet. Raises UserError where it can be seen that it cannot
    be replaced."""
    found = Path(os.path.realpath(path))
    try:
        there = found.exists()
        if there and not found.is_file():
            raise UserError(f"{path} is not a file: give the path of one, which is made or replaced")
        if not found.parent.is_dir():
            raise UserError(f"cannot write {path}: there is no folder {found.parent}")
        if not os.access(found if there else found.parent, os.W_OK):
            raise UserError(f"cannot write {path}: permission denied")
    except OSError as error:
        raise cannot_write(path, error) from None
    return found


def cannot_write(path: Path, error: OSError) -> TpiedgeError:
    """What to tell the user of it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull.at(path)
    return UserError(f"cannot write {path}: {error.strerror}")
