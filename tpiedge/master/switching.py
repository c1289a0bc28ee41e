"""When a session that is prepared takes the place of the one that serves, and what that leaves for it.

One that is only faster waits until it is worth the pause (`Worth`). Keys and values of running requests travel where
the time that it takes (`planner/carriage.py`) is shorter than reading all running prompts and answers anew, at the
rate of late. Rank 0 is told to halt; the switch waits for its word, for a long step more than is predicted at most.
If the plan that it was halted for comes to nothing meanwhile, it goes on. Where nothing travels, the switch waits for
requests whose prompt is still read, which would be read anew, for _READING_S at most; meanwhile no request starts. It
waits for nothing where a machine has less memory by now than its node that serves may grow to.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tpiedge.master.assignments import Served
from tpiedge.master.request_queue import RequestQueue
from tpiedge.master.roster import Machine, Roster
from tpiedge.master.session import Phase, Session
from tpiedge.pack.share import kv_share
from tpiedge.planner.carriage import Carriage, KVHolder, carriage, carriage_s
from tpiedge.units import counted
from tpiedge.wire.control import Carried
from tpiedge.wire.limits import MAX_MOVES

_log = logging.getLogger(__name__)

#: For how long a plan waits for prompts that are read.
_READING_S: Final = 30.0
#: The nodes of a new session take so long to get ready at least.
_RESTART_S: Final = 1.5
#: Rank 0 ends its step first. With a prompt it may take so many times as long as one token (engine/batcher.py).
_WAIT_S: Final = 10.0
_LONG_STEP: Final = 6.0
#: Longer than that nothing travels; nor longer than this where it is not known how long reading anew takes.
_MOST_S: Final = 120.0
_MOST_UNKNOWN_S: Final = 10.0


class Worth:
    """Whether a faster plan is worth the pause that it costs. `now` never decreases from call to call.

    Nobody knows how long the answers that run will go on, nor who asks next. So a faster plan waits until the time
    that was lost by waiting for it equals the time that the pause would take: whatever comes, no more than twice the
    least is lost (as whoever rents skis until the rent has reached their price). Without requests nothing is lost by
    a pause.
    """

    def __init__(self) -> None:
        self._plan = 0
        self._lost_s = 0.0
        self._looked = 0.0
        self._reached = False

    def reached(self, plan: int, now: float, gain: float, pause_s: float) -> bool:
        """Whether the plan of that number, ready to serve, is worth its pause by now, while requests run. Once it is,
        it stays so, though running answers grow.

        `gain` is the part of the time that it saves; not positive: it is not for its speed that it comes.
        """
        if plan != self._plan:
            self._plan, self._lost_s, self._looked, self._reached = plan, 0.0, now, False
        self._lost_s += max(0.0, gain) * (now - self._looked)
        self._looked = now
        self._reached |= gain <= 0 or self._lost_s >= pause_s
        return self._reached


@dataclass(frozen=True)
class Outlook:
    """What is to travel (None: all is to be computed anew), and how long that is predicted to take; 0: not known."""

    carriage: Carriage | None
    seconds: float


class Switching:
    """For the control thread. Times are seconds on the caller's clock."""

    def __init__(self, requests: RequestQueue, roster: Roster, served: Served) -> None:
        self._requests = requests
        self._roster = roster
        self._served = served
        self._worth = Worth()
        self._due: tuple[int, float] | None = None  # the session that is to take over, and since when
        self._carriage: Carriage | None = None
        #: Since when the serving session halts, and until when that is waited for.
        self.since = self._until = 0.0

    def awaits_readers(self, coming: Session) -> bool:
        """Whether that session's switch is only waiting for prompts that are read."""
        return self._due is not None and self._due[0] == coming.number

    def due(
        self,
        coming: Session,
        serving: Session | None,
        usable: Mapping[str, Machine],
        own_bytes: int,
        now: float,
    ) -> bool:
        """Whether the coming session is to take over now. `usable`: by name, the workers that plans may have;
        `own_bytes`: of memory, what the master's machine gives."""
        if coming.phase is not Phase.PREPARED or not self._is_worth_it(
            coming, serving, usable, own_bytes, now
        ):
            self._due = None
            return False
        if self._due is None or self._due[0] != coming.number:
            self._due = coming.number, now
        if serving is not None and _outgrows(serving, usable, own_bytes):
            return True
        if not self._requests.reading or now - self._due[1] >= _READING_S:
            return True
        return serving is not None and self.outlook(serving, coming).carriage is not None

    def _is_worth_it(
        self,
        coming: Session,
        serving: Session | None,
        usable: Mapping[str, Machine],
        own_bytes: int,
        now: float,
    ) -> bool:
        if serving is None or serving.phase is not Phase.READY or not self._requests.running:
            return True
        if not serving.step_s or not set(serving.machines) <= usable.keys():
            return True  # what serves is not to go on
        if _outgrows(serving, usable, own_bytes):
            return True
        # What serves was predicted with what was known then.
        slower = max((usable[one.machine].slowdown / one.slowdown for one in serving.workers), default=1.0)
        step_s = serving.step_s * max(1.0, slower)
        pause_s = max(_RESTART_S, serving.start_s) + self.outlook(serving, coming).seconds
        return self._worth.reached(coming.number, now, 1 - coming.step_s / step_s, pause_s)

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


def _outgrows(serving: Session, usable: Mapping[str, Machine], own_bytes: int) -> bool:
    """Whether a node of what serves may take more memory by its plan than its machine offers by now."""
    return serving.assignments[0].planned_bytes > own_bytes or any(
        one.planned_bytes > usable[one.machine].offer.memory_bytes
        for one in serving.workers
        if one.machine in usable
    )
