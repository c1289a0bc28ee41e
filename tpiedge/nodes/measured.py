"""What a machine measured of itself, kept for a while: the same numbers at every start mean the same shares, so that
nothing is shipped again, and a join that waits for no measurement."""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from tpiedge import __version__
from tpiedge.errors import TpiedgeError, UserError
from tpiedge.nodes.private_file import read_private, replace_private
from tpiedge.nodes.readiness import NodeReport
from tpiedge.nodes.usage import cpu_name
from tpiedge.wire.epochs import Capacity
from tpiedge.wire.schema import schema_of

__all__ = ["Measurements"]

_KEEP_S = 7 * 86400.0


class Measurements:
    """`folder`/measured.json, of one number of threads. `wall_clock`: seconds since 1970."""

    def __init__(self, folder: Path, threads: int, wall_clock: Callable[[], float] = time.time) -> None:
        self._path = folder / "measured.json"
        self._conditions = {"version": __version__, "cpu": cpu_name(), "threads": threads}
        self._now = wall_clock

    def recall(self) -> NodeReport | None:
        """The last report, unless it is old or of another processor, number of threads or version. What cannot be read
        is measured anew."""
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
