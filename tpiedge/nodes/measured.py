"""What a machine measured of itself, kept for a while: the same numbers at every start mean the same shares, so that
nothing is shipped again, and a join that waits for no measurement."""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from tpiedge import __version__
from tpiedge.errors import TpiedgeError, UserError
from tpiedge.kernels.shared_library import native_library
from tpiedge.nodes.disk_speed import measure_disk
from tpiedge.nodes.private_file import read_private, replace_private
from tpiedge.nodes.readiness import NodeReport
from tpiedge.nodes.usage import cpu_name
from tpiedge.wire.epochs import Capacity
from tpiedge.wire.schema import schema_of

__all__ = ["Measurements", "disk_bytes_per_s"]

_KEEP_S = 7 * 86400.0


class Measurements:
    """`folder`/measured.json, of one number of threads. `wall_clock`: seconds since 1970."""

    def __init__(self, folder: Path, threads: int, wall_clock: Callable[[], float] = time.time) -> None:
        self._path = folder / "measured.json"
        library = native_library()
        self._conditions = {
            "version": __version__,
            "cpu": cpu_name(),
            "kernels": library.isa if library else "torch",
            "threads": threads,
        }
        self._now = wall_clock

    def recall(self) -> NodeReport | None:
        """The last report, unless it is old or of another processor, number of threads, version or instruction set of
        the kernels. What cannot be read is measured anew."""
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
        """For the next start. A disk that does not take it costs a measurement then."""
        try:
            replace_private(
                self._path, {"conditions": self._conditions, "when": self._now(), "report": asdict(report)}
            )
        except TpiedgeError:
            return


def disk_bytes_per_s(folder: Path, disk: Path, wall_clock: Callable[[], float] = time.time) -> float:
    """How fast the folder `disk` is read, as `folder`/disk.json knows for a week, or measured now; 0 where nothing can
    be written to it."""
    path, now = folder / "disk.json", wall_clock()
    known = _recall_disk(path, disk, now)
    if known is not None:
        return known
    speed = measure_disk(disk)
    if speed is None:
        return 0.0
    with contextlib.suppress(TpiedgeError):  # it costs a measurement at the next start
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
    return found if 0 <= now - when <= _KEEP_S and 0 < found < math.inf else None
