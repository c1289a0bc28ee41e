"""How fast the disk brings a pack's weights, with the reads of a node: past the page cache, several in flight."""

import mmap
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

from tpiedge.host.disk_speed import DiskSpeed
from tpiedge.memory.reader import DirectFile, DirectReader, ReadJob
from tpiedge.memory.sweep import Sweep
from tpiedge.pack.reader import Pack
from tpiedge.units import MIB

_READ_BYTES = 8 * MIB
_IN_FLIGHT = 8


def measure_sweep(pack: Pack, sweep: Sweep, seconds: float = 0.7) -> DiskSpeed:
    """Read the pieces of the sweep in order, again and again, for so long, with a node's four threads, and count
    nothing but the bytes. Raises ReadFault, UserError."""
    view = memoryview(mmap.mmap(-1, _IN_FLIGHT * _READ_BYTES))
    waiting: deque[Future[int]] = deque()
    done, started, last = 0, time.perf_counter(), 0.0
    with ExitStack() as stack:
        paths = {pack.blob_path(piece.key) for piece in sweep.pieces}
        files = {path: stack.enter_context(DirectFile(path)) for path in paths}
        reader = stack.enter_context(DirectReader())  # last: it ends its reads before the files are closed
        for number, (path, offset, length) in enumerate(cycle(_reads(pack, sweep))):
            if len(waiting) == _IN_FLIGHT:
                done += waiting.popleft().result()
                last = time.perf_counter()
                if last - started >= seconds:
                    break
            at = number % _IN_FLIGHT * _READ_BYTES
            waiting.append(reader.submit(ReadJob(files[path], offset, view[at : at + length], _unchecked)))
        is_direct = all(file.is_direct for file in files.values())
    return DiskSpeed(done / (last - started), is_direct)


def _reads(pack: Pack, sweep: Sweep) -> Iterator[tuple[Path, int, int]]:
    """(file, offset, length) of all reads of a sweep."""
    for piece in sweep.pieces:
        offset, length = pack.layout(piece.key).matrix(piece.matrix).span(piece.units.start, piece.units.stop)
        for start in range(0, length, _READ_BYTES):
            yield pack.blob_path(piece.key), offset + start, min(_READ_BYTES, length - start)


def _unchecked(_data: memoryview) -> None:
    """What is read is not used."""
