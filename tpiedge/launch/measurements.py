"""A machine's measurements of itself, kept for a week.

The same numbers at every start give the same shares, so nothing is shipped again, and a join need not wait.
"""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from tpiedge import __version__
from tpiedge.errors import TpiedgeError, UserError
from tpiedge.host.disk_speed import measure_disk
from tpiedge.host.private_file import read_private, replace_private
from tpiedge.host.usage import cpu_name
from tpiedge.kernels.shared_library import NO_ISA, kernel_library
from tpiedge.launch.readiness import NodeReport
from tpiedge.wire.epochs import Capacity
from tpiedge.wire.schema import schema_of

_KEEP_S = 7 * 86400.0


class Measurements:
    """Reads and writes `folder`/measured.json, for one number of threads. `wall_clock` gives seconds since 1970."""

    def __init__(self, folder: Path, threads: int, wall_clock: Callable[[], float] = time.time) -> None:
        self._path = folder / "measured.json"
        library = kernel_library()
        self._conditions = {
            "version": __version__,
            "cpu": cpu_name(),
            "kernels": library.isa if library else NO_ISA,
            "threads": threads,
        }
        self._now = wall_clock

    def recall(self) -> NodeReport | None:
        """The last report; None if it is old or cannot be read, or if the processor, the number of threads, the
        version or the kernels' instruction set has changed since."""
        try:
            values = read_private(self._path) or {}
        except UserError:
            return None
        when, report = values.get("when"), values.get("report")
        if values.get("conditions") != self._conditions or not isinstance(when, float):
            return None
        if not 0 <= self._now() - when <= _KEEP_S or not isinstance(report, dict):
            return None
        try:
            found = NodeReport(**(report | {"pid": 0, "capacity": Capacity(**report["capacity"])}))
            schema_of(Capacity).write(found.capacity)
        except (TypeError, KeyError, ValueError):
            return None
        return found if isinstance(found.cpu, str) and isinstance(found.isa, str) else None

    def keep(self, report: NodeReport) -> None:
        """Stores the report for the next start. If that fails, the next start measures again."""
        try:
            replace_private(
                self._path, {"conditions": self._conditions, "when": self._now(), "report": asdict(report)}
            )
        except TpiedgeError:
            return


def disk_bytes_per_s(folder: Path, disk: Path, wall_clock: Callable[[], float] = time.time) -> float:
    """The read speed of the folder `disk`, from `folder`/disk.json if it is less than a week old, else measured now.

    0 if the folder cannot be written to. Blocks while it measures.
    """
    path, now = folder / "disk.json", wall_clock()
    known = _recall_disk(path, disk, now)
    if known is not None:
        return known
    try:
        speed = measure_disk(disk)
    except OSError:
        return 0.0
    with contextlib.suppress(TpiedgeError):  # then the next start measures again
        replace_private(path, {"folder": str(disk), "when": now, "bytes_per_s": speed.bytes_per_s})
    return speed.bytes_per_s


def _recall_disk(path: Path, disk: Path, now: float) -> float | None:
    try:
        values = read_private(path) or {}
    except UserError:
        return None
    when, found = values.get("when"), values.get("bytes_per_s")
    if values.get("folder") != str(disk) or not isinstance(when, float) or not isinstance(found, float):
        return None
    return found if 0 <= now - when <= _KEEP_S and 1 <= found < math.inf else None
