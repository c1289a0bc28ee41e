"""Who could serve, is not in any plan, and why: in words, for where the others are too few. Pure."""

from collections.abc import Mapping
from typing import Final

from tpiedge.master.quarantine import Exclusion
from tpiedge.master.roster import Roster
from tpiedge.planner.reasons import SpareReason

#: How many of each kind are named: the last ones that were let in.
_NAMED: Final = 3


def absent_words(
    roster: Roster, spare: Mapping[str, SpareReason], left_out: Mapping[str, Exclusion], now: float
) -> list[str]:
    """Of the workers that are lost, left out, and drained. `spare`: why plans have no part for machines."""
    small = {name: reason.why for name, reason in spare.items() if reason.kind == "too small"}
    causes = small | {name: exclusion.why(now) for name, exclusion in left_out.items()}
    gone = (one for one in roster.machines if not one.present)
    lost = [f"{one.offer.host}: {small.get(one.name, one.cause)}" for one in gone]  # who is too small leaves
    out = [
        f"{one.offer.host} is left out: {causes[one.name]}" for one in roster.present if one.name in causes
    ]
    drained = [f"{one.offer.host} is drained" for one in roster.present if one.drained]
    return [*lost[-_NAMED:], *out[-_NAMED:], *drained[-_NAMED:]]
