"""What a session that ends leaves for the one that takes its place: whether keys and values of running requests travel,
or are computed anew, whichever is predicted to be faster.

They travel where the time that it takes (`planner/carriage.py`) is shorter than reading all running prompts and answers
anew, at the rate of late. Rank 0 is told to halt; the switch waits for its word, for a long step more than is predicted
at most. If the plan that it was halted for comes to nothing meanwhile, it goes on.
"""

import logging
from dataclasses import dataclass
from typing import Final

from tpiedge.master.assignments import Served
from tpiedge.master.request_queue import RequestQueue
from tpiedge.master.roster import Roster
from tpiedge.master.session import Phase, Session
from tpiedge.pack.share import kv_share
from tpiedge.planner.carriage import Carriage, KVHolder, carriage, carriage_s
from tpiedge.units import counted
from tpiedge.wire.control import Carried
from tpiedge.wire.limits import MAX_MOVES

_log = logging.getLogger(__name__)

#: Rank 0 ends its step first. With a prompt it may take so many times as long as one token (engine/batcher.py).
_WAIT_S: Final = 10.0
_LONG_STEP: Final = 6.0
#: Longer than that nothing travels; nor longer than this where it is not known how long reading anew takes.
_MOST_S: Final = 120.0
_MOST_UNKNOWN_S: Final = 10.0


@dataclass(frozen=True)
class Outlook:
    """What is to travel (None: all is to be computed anew), and how long that is predicted to take; 0: not known."""

    carriage: Carriage | None
    seconds: float


class Handover:
    """For the control thread. Times are seconds on the caller's clock."""

    def __init__(self, requests: RequestQueue, roster: Roster, served: Served) -> None:
        self._requests = requests
        self._roster = roster
        self._served = served
        self._carriage: Carriage | None = None
        #: Since when the serving session halts, and until when that is waited for.
        self.since = self._until = 0.0

    def outlook(self, serving: Session, coming: Session) -> Outlook:
        """How what runs would get from one session to the other, now."""
        positions, head_bytes = self._requests.positions, self._served.kv_head_bytes
        again = Outlook(None, self._requests.reread_s)
        if serving.phase is not Phase.READY or not positions or not head_bytes:
            return again
        old, new = self._holders(serving), self._holders(coming)
        found = carriage(old, new)
        if max(len(found.sent), len(found.brought), len(found.stored)) > MAX_MOVES:
            return again
        takes_s = carriage_s(found, old, new, positions * head_bytes)
        most = min(again.seconds, _MOST_S) if again.seconds else _MOST_UNKNOWN_S
        return Outlook(found, takes_s) if takes_s <= most else again

    def begun(self, serving: Session | None, coming: Session | None) -> bool:
        """Whether `serving` halts for `coming`. One that halts for another one, or for none, goes on."""
        if serving is None or not serving.halting or serving.phase is not Phase.READY:
            return False
        if coming is not None and coming.number == serving.halting and coming.phase is Phase.PREPARED:
            return True
        serving.resume()
        return False

    def ready(self, serving: Session, coming: Session, now: float) -> bool:
        """Whether `serving`, which is to be replaced by `coming`, has left what it will. Call it until it is so."""
        if not serving.halting:
            found, self.since = self.outlook(serving, coming), now
            if found.carriage is None:
                return True
            step_s = max(_WAIT_S, _LONG_STEP * serving.step_s)
            self._carriage, self._until = found.carriage, now + found.seconds + step_s
            serving.halt(coming.number, found.carriage)
        return serving.halted is not None or now >= self._until

    def carried(self, serving: Session) -> Carried | None:
        """What the next session's nodes find."""
        said = serving.halted
        if said is None or self._carriage is None:
            return None
        if said.why:
            _log.warning("what was computed for running requests does not travel: %s", said.why)
        if not said.pages:  # all may have ended just now
            return None
        _log.debug("%s of the KV cache go on", counted(said.pages, "page"))
        private = bool(serving.split_shows)
        return Carried(serving.number, said.pages, private, self._carriage.brought)

    def _holders(self, session: Session) -> list[KVHolder]:
        return [
            KVHolder(
                one.machine,
                kv_share(one.share.attention, self._served.group_size),
                self._link_bytes_per_s(one.machine),
            )
            for one in session.assignments
        ]

    def _link_bytes_per_s(self, name: str) -> float | None:
        machine = self._roster.get(name)
        return machine.link.bytes_per_s if machine is not None and machine.link is not None else None
