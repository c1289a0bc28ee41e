"""Which workers are told why the plan has no part for them: a machine without sockets, threads or clock.

Laws:
1. A worker is told once, and again when the kind of reason changes; numbers that change are no news.
2. A worker that had a part since, or was lost and came back, or made another offer, may be told again.
"""

from collections.abc import Mapping, Sequence

from tpiedge.master.roster import Machine
from tpiedge.planner.reasons import SpareReason
from tpiedge.wire.fields import SpareKind


class Notices:
    """Remembers what each worker was told."""

    def __init__(self) -> None:
        #: Since when a worker is present, and the kind of reason that it was told.
        self._told: dict[str, tuple[float, SpareKind]] = {}

    def due(
        self, idle: Sequence[Machine], reasons: Mapping[str, SpareReason]
    ) -> list[tuple[str, SpareReason]]:
        """What to tell to whom after a plan that has no part for the `idle`, all that it knew and that are present."""
        known, self._told = self._told, {}
        for machine in idle:
            if machine.name in reasons:
                self._told[machine.name] = machine.since, reasons[machine.name].kind
        return [(name, reasons[name]) for name, told in self._told.items() if known.get(name) != told]
