"""A machine's offer: memory and measurements. Measurements are used for a week, so that restarts get the same
shares."""

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from tpiedge import __version__
from tpiedge.errors import TpiedgeError, UserError
from tpiedge.host.disk_speed import measure_disk
from tpiedge.host.private_file import read_private, replace_private
from tpiedge.host.process import cpu_name
from tpiedge.kernels.shared_library import NO_ISA, kernel_library
from tpiedge.launch.bootstrap import NodeReport
from tpiedge.units import format_bytes, format_seconds


class Measurements:
    """Stores measurements in `folder`/measured.json. They were made with `threads` threads."""

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
        """Returns the last report; None if it is older than a week, or version, processor, kernels or threads
        changed."""
        values = _recent(self._path, self._now())
        if values.get("conditions") != self._conditions:
            return None
        try:
            return msgspec.convert(values["report"], NodeReport)
        except (msgspec.ValidationError, UnicodeError, KeyError):
            return None

    def keep(self, report: NodeReport) -> None:
        """Stores the report. Ignores errors."""
        values = {"conditions": self._conditions, "when": self._now(), "report": msgspec.to_builtins(report)}
        with contextlib.suppress(TpiedgeError):
            replace_private(self._path, values)


def disk_bytes_per_s(folder: Path, disk: Path, wall_clock: Callable[[], float] = time.time) -> float:
    """Returns the read speed of `disk`, recalled from `folder` or measured. Returns 0 if `disk` cannot be written.
    Blocks."""
    path, now = folder / "disk.json", wall_clock()
    known = _recent(path, now)
    figure = known.get("bytes_per_s")
    if known.get("folder") == str(disk) and isinstance(figure, float) and 1 <= figure < math.inf:
        return figure
    try:
        speed = measure_disk(disk)
    except OSError:
        return 0.0
    with contextlib.suppress(TpiedgeError):  # then the next start measures again
        replace_private(path, {"folder": str(disk), "when": now, "bytes_per_s": speed.bytes_per_s})
    return speed.bytes_per_s


def _recent(path: Path, now: float) -> dict[str, Any]:
    try:
        values = read_private(path) or {}
    except UserError:
        return {}
    when = values.get("when")
    return values if isinstance(when, float) and 0 <= now - when <= 7 * 86400.0 else {}


PART: Final = 0.05
SETTLED_S: Final = 10.0
LESS: Final = 0.75
FIRST_S: Final = 60.0  # shorter than requests wait for machines
AGAIN: Final = 4.0
LONGEST_S: Final = 24 * 3600.0
LOOK_S: Final = 2.0  # seconds between two looks at the usable memory


class MemoryOffer:
    """A machine's memory offer. `usable`: bytes. `now`: monotonic seconds. Methods return a line for the user, or "".

    1. The offer falls at once when usable memory is lower by the fraction PART. It grows when usable memory was higher
       for SETTLED_S seconds.
    2. A node may run out of memory although its plan fitted. Then LESS times the planned memory is the limit. The first
       limit lasts FIRST_S seconds. Each later limit lasts AGAIN times as long, at most LONGEST_S. A limit ends early if
       usable memory grows.
    3. If the plan exceeded the offer or usable memory, the offer falls to usable memory. No limit begins.
    4. If no plan fits a limit, all usable memory is offered.
    """

    def __init__(self, usable: int) -> None:
        self.offered_bytes = usable
        self._first = usable
        self._roomy: float | None = None  # since when more could be offered
        self._cap: int | None = None  # the limit after an out-of-memory
        self._until = 0.0  # the end of the limit
        self._capped_at = 0  # usable bytes at the out-of-memory
        self._length_s = 0.0

    @property
    def reduced(self) -> bool:
        return self.offered_bytes < self._first

    def look(self, usable: int, now: float) -> str:
        most = self._most(usable, now)
        if most < self.offered_bytes * (1 - PART):
            return self._offer(most)
        if most <= self.offered_bytes * (1 + PART):
            self._roomy = None
        elif self._roomy is None:
            self._roomy = now
        elif now - self._roomy >= SETTLED_S:
            return self._offer(most)
        return ""

    def ran_out(self, planned: int, usable: int, now: float) -> str:
        planned = planned or self.offered_bytes
        if planned > min(usable, self.offered_bytes):
            most = self._most(usable, now)
            return self._offer(most) if most < self.offered_bytes else ""
        self._length_s = min(AGAIN * self._length_s, LONGEST_S) or FIRST_S
        self._until = now + self._length_s
        self._cap, self._capped_at = int(LESS * planned), usable
        self.offered_bytes, self._roomy = self._most(usable, now), None
        return (
            f"this machine ran out of memory with {format_bytes(planned)} planned for it: it offers "
            f"{format_bytes(self.offered_bytes)} for the next {format_seconds(self._length_s)}; with --memory it never "
            "offers more than that"
        )

    def insist(self, usable: int, now: float) -> str:
        self._until = min(self._until, now)
        most = self._most(usable, now)
        return self._offer(most) if most > self.offered_bytes else ""

    def _most(self, usable: int, now: float) -> int:
        if self._cap is None or now >= self._until or usable > self._capped_at * (1 + PART):
            return usable
        return min(usable, self._cap)

    def _offer(self, most: int) -> str:
        before, self.offered_bytes, self._roomy = self.offered_bytes, most, None
        changed = "less" if most < before else "more"
        return (
            f"this machine has {changed} memory for tpiedge now: it offers {format_bytes(most)} "
            f"(before: {format_bytes(before)})"
        )
