"""Keeps the roster's speeds: what machines measured when they joined, corrected by the pace of their nodes."""

import logging
from typing import Final

from tpiedge.master.roster import Machine, Roster
from tpiedge.master.session import Session

_log = logging.getLogger(__name__)

#: So long a machine without a part counts as slow as it was when it had one, and another's speed as what it was found
#: to be; twice as long after each change, up to _LONGEST times: a machine that its owner uses now and then would
#: otherwise have everybody pause again and again.
_TRIED_S: Final = 600.0
_KEPT_S: Final = 30.0
_LONGEST: Final = 16


def note_speeds(roster: Roster, serving: Session, now: float) -> None:
    """Has the roster know what the nodes of a session that is ready show. Machines without a part show nothing: they
    are tried again after a while."""
    for machine in roster.present:
        if (
            machine.slowdown != 1
            and machine.name not in serving.machines
            and _settled(machine, now, _TRIED_S)
        ):
            roster.slowed(machine.name, 1.0, now)
    present = {machine.name: machine for machine in roster.present}
    found = serving.slowdowns({name: machine.slowdown for name, machine in present.items()})
    for name, slowdown in found.items():
        if _settled(present[name], now, _KEPT_S):
            _log.info("%s takes %.1f times as long as it measured", present[name].offer.host, slowdown)
            roster.slowed(name, slowdown, now)


def _settled(machine: Machine, now: float, least_s: float) -> bool:
    """Whether the machine's speed may change again. The first change may come at any time."""
    if not machine.changes:
        return True
    return now - machine.slowed >= least_s * min(_LONGEST, 1 << (machine.changes - 1))
