"""Decides when a prepared session replaces the serving one, and what KV cache it takes over.

A session that is only faster waits until the time lost by waiting equals the time that the pause would take: how long
answers go on is not known, and so no more than twice the least is lost. Keys and values of running requests travel if
that (`planner/carriage.py`) is faster than to compute running prompts and answers anew, at the rate of late. Rank 0 is
told to halt, and the switch waits for its answer. If the plan comes to nothing meanwhile, rank 0 goes on.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from tpiedge.master.assignments import Served
from tpiedge.master.request_queue import RequestQueue
from tpiedge.master.roster import Machine, Roster
from tpiedge.master.session import Phase, Session
from tpiedge.pack.share import kv_share
from tpiedge.planner.carriage import Carriage, KVHolder, carriage, carriage_s
from tpiedge.units import counted
from tpiedge.wire.control import Carried
from tpiedge.wire.fields import MAX_MOVES

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Switching:
    """For the control thread. Times are seconds on the caller's clock."""

    _requests: RequestQueue
    _roster: Roster
    _served: Served
    #: Since when the serving session halts, and until when that is waited for.
    since: float = 0.0
    _until: float = 0.0
    _waiting: tuple[int, float] = 0, 0.0  # the session that is only faster, and since when it waits
    _carriage: Carriage | None = None

    def due(
        self,
        coming: Session,
        serving: Session | None,
        usable: Mapping[str, Machine],
        own_bytes: int,
        now: float,
    ) -> bool:
        """Whether the coming session is to take over now. `usable`: workers that plans may have, by name; `own_bytes`:
        memory that the master's machine gives."""
        if coming.phase is not Phase.PREPARED:
            return False
        if serving is None or serving.phase is not Phase.READY or not self._requests.running:
            return True
        if serving.halting:
            return serving.halting == coming.number
        if not serving.step_s or not usable.keys() >= set(serving.machines):
            return True  # what serves is not to go on
        limits = {"": own_bytes, **{name: one.offer.memory_bytes for name, one in usable.items()}}
        if any(one.planned_bytes > limits[one.machine] for one in serving.assignments):
            return True
        # What serves was predicted with what was known then.
        slower = [usable[one.machine].slowdown / one.slowdown for one in serving.assignments if one.machine]
        step_s = serving.step_s * max([1.0, *slower])
        # The nodes of a new session take one and a half seconds to get ready at least.
        pause_s = max(1.5, serving.start_s) + self._outlook(serving, coming)[1]
        if self._waiting[0] != coming.number:
            self._waiting = coming.number, now
        gain = 1 - coming.step_s / step_s
        return gain <= 0 or gain * (now - self._waiting[1]) >= pause_s

    def _outlook(self, serving: Session, coming: Session) -> tuple[Carriage | None, float]:
        """The transfer between the sessions (None: recompute everything) and its predicted seconds (0: not known). It
        takes two minutes at most, ten seconds if the time to recompute is not known."""
        (positions, reread_s), head_bytes = self._requests.positions, self._served.kv_head_bytes
        again = None, reread_s
        if serving.phase is not Phase.READY or not positions or not head_bytes:
            return again
        old, new = self._holders(serving), self._holders(coming)
        found = carriage(old, new)
        if max(len(found.sent), len(found.brought), len(found.stored)) > MAX_MOVES:
            return again
        takes_s = carriage_s(found, old, new, positions * head_bytes)
        return (found, takes_s) if takes_s <= min(reread_s or 10.0, 120.0) else again

    def resume(self, serving: Session | None, coming: Session | None) -> None:
        """Lets a halted `serving` go on unless `coming` is the prepared session that it was halted for."""
        if serving is None or not serving.halting or serving.phase is not Phase.READY:
            return
        if coming is None or coming.number != serving.halting or coming.phase is not Phase.PREPARED:
            serving.resume()

    def ready(self, serving: Session, coming: Session, now: float) -> bool:
        """Halts `serving` for `coming`; whether it has left what it will. To be called until it has."""
        if not serving.halting:
            (self._carriage, takes_s), self.since = self._outlook(serving, coming), now
            if self._carriage is None:
                return True
            # Rank 0 ends its step first. With a prompt it may take six times as long as one token (engine/batcher.py).
            step_s = max(10.0, 6 * serving.step_s)
            self._until = now + takes_s + step_s
            serving.halt(coming.number, self._carriage)
        return serving.halted is not None or now >= self._until

    def carried(self, serving: Session) -> Carried | None:
        said = serving.halted
        if said is None or self._carriage is None:
            return None
        if said.why:
            _log.warning("what was computed for running requests does not travel: %s", said.why)
        if not said.pages:  # all may have ended just now
            return None
        _log.debug("%s of the KV cache go on", counted(said.pages, "page"))
        private = bool(self._served.split_shows)
        return Carried(serving.number, said.pages, private, self._carriage.brought)

    def _holders(self, session: Session) -> list[KVHolder]:
        links = {one.name: one.link.bytes_per_s for one in self._roster.machines if one.link is not None}
        return [
            KVHolder(
                one.machine, kv_share(one.share.attention, self._served.group_size), links.get(one.machine)
            )
            for one in session.assignments
        ]
