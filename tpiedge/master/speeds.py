"""Keeps the roster's speeds: what machines measured when they joined, corrected by the pace of their nodes."""

import logging
from typing import Final

from tpiedge.master.roster import Roster
from tpiedge.master.session import Session

__all__ = ["note_speeds"]

_log = logging.getLogger(__name__)

#: So long a machine without a part counts as slow as it was when it had one.
_TRIED_S: Final = 600.0


def note_speeds(roster: Roster, serving: Session, now: float) -> None:
    """Has the roster know what the nodes of a session that is ready show. Machines without a part show nothing: they
    are tried again after a while."""
    for machine in roster.present:
        left = machine.name not in serving.machines
        if left and machine.slowdown != 1 and now - machine.slowed >= _TRIED_S:
            roster.slowed(machine.name, 1.0, now)
    present = {machine.name: machine for machine in roster.present}
    found = serving.slowdowns({name: machine.slowdown for name, machine in present.items()})
    for name, slowdown in found.items():
        _log.info("%s takes %.1f times as long as it measured", present[name].offer.host, slowdown)
        roster.slowed(name, slowdown, now)
