"""Decides when a prepared session replaces the serving session, and which KV cache is taken over.

A faster session takes over once the slower session has wasted as much time as the switch will take. So at most twice
the least possible time is wasted. Keys and values are transferred (`planner/kv_transfer.py`) if a transfer is faster
than computing them anew. Before a switch, rank 0 halts. It goes on if the switch does not happen."""

import logging
from dataclasses import dataclass

from tpiedge.master.request_queue import RequestQueue
from tpiedge.master.roster import Roster
from tpiedge.master.selection import Selection
from tpiedge.master.session import Phase, Session
from tpiedge.master.turns import Turns
from tpiedge.pack.share import kv_share
from tpiedge.planner.kv_transfer import KVHolder, KVMoves, plan_moves, transfer_s
from tpiedge.units import counted
from tpiedge.wire.control import KVSnapshot
from tpiedge.wire.fields import MAX_MOVES, NAME_BYTES

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Switching:
    """Belongs to the control thread. Times are seconds on the caller's clock."""

    _requests: RequestQueue
    _roster: Roster
    _turns: Turns
    _selection: Selection
    since: float = 0.0  # when the serving session was told to halt
    _until: float = 0.0  # the end of the wait for its answer
    _waiting: tuple[int, float] = 0, 0.0  # the session that is only faster, and since when it waits
    _moves: KVMoves | None = None

    def due(self, coming: Session, serving: Session | None, own_bytes: int, now: float) -> bool:
        """Whether the coming session should take over. `own_bytes`: the master's memory."""
        if coming.phase is not Phase.PREPARED:
            return False
        if serving is None or serving.phase is not Phase.READY:
            return True
        if not self._requests.running and serving.served.pack_id == coming.served.pack_id:
            return True
        if serving.halting:
            return serving.halting == coming.number
        usable = {one.name: one for one in self._selection.awake(self._selection.serving_on())}
        if not usable.keys() >= set(serving.machines):
            return True  # the serving session cannot go on
        limits = {"": own_bytes, **{name: one.offer.memory_bytes for name, one in usable.items()}}
        if any(one.planned_bytes > limits[one.machine] for one in serving.assignments):
            return True
        # The nodes of a new session take at least 1.5 s to get ready.
        pause_s = max(1.5, serving.start_s) + self._plan_transfer(serving, coming)[1]
        if serving.served.pack_id != coming.served.pack_id:
            return self._turns.over(serving, pause_s)
        if not serving.step_s:
            return True
        # `serving.step_s` was predicted with earlier slowdowns.
        slower = [usable[one.machine].slowdown / one.slowdown for one in serving.assignments if one.machine]
        step_s = serving.step_s * max([1.0, *slower])
        if self._waiting[0] != coming.number:
            self._waiting = coming.number, now
        gain = 1 - coming.step_s / step_s
        return gain <= 0 or gain * (now - self._waiting[1]) >= pause_s

    def _plan_transfer(self, serving: Session, coming: Session) -> tuple[KVMoves | None, float]:
        """Returns (transfer, its seconds). Without a transfer, returns (None, seconds to recompute, or 0 if unknown). A
        transfer takes at most two minutes; at most ten seconds if the time to recompute is unknown."""
        (positions, reread_s), head_bytes = self._requests.positions, serving.served.kv_head_bytes
        again = None, reread_s
        if serving.served.pack_id != coming.served.pack_id:
            return again
        if serving.phase is not Phase.READY or not positions or not head_bytes:
            return again
        old, new = self._holders(serving), self._holders(coming)
        found = plan_moves(old, new)
        if max(len(found.gathered), len(found.scattered)) > MAX_MOVES:
            return again
        takes_s = transfer_s(found, old, new, positions * head_bytes)
        return (found, takes_s) if takes_s <= min(reread_s or 10.0, 120.0) else again

    def resume(self, serving: Session | None, coming: Session | None) -> None:
        """Lets a halted session go on, unless it halted for `coming`."""
        if serving is None or not serving.halting or serving.phase is not Phase.READY:
            return
        if coming is None or coming.number != serving.halting or coming.phase is not Phase.PREPARED:
            serving.resume()

    def ready(self, serving: Session, coming: Session, now: float) -> bool:
        """Halts `serving` for `coming`. Returns whether the switch may happen now."""
        if not serving.halting:
            (self._moves, takes_s), self.since = self._plan_transfer(serving, coming), now
            if self._moves is None:
                return True
            # Rank 0 ends its step first. With a prompt it may take six times as long as one token (engine/batcher.py).
            step_s = max(10.0, 6 * serving.step_s)
            self._until = now + takes_s + step_s
            serving.halt(coming.number, self._moves)
        return serving.halted is not None or now >= self._until

    @property
    def travels(self) -> bool:
        """Whether machines send each other parts of the KV cache at the latest switch."""
        return self._moves is not None and bool(self._moves.gathered or self._moves.scattered)

    def snapshot(self, serving: Session) -> KVSnapshot | None:
        said = serving.halted
        if said is None or self._moves is None:
            return None
        if said.why:
            _log.warning("running requests are computed anew: the KV cache was not saved: %s", said.why)
        if not said.names:  # all requests may have ended
            return None
        _log.debug("%s of the KV cache are transferred", counted(len(said.names) // NAME_BYTES, "page"))
        return KVSnapshot(said.names, self._moves.scattered)

    def _holders(self, session: Session) -> list[KVHolder]:
        links = {one.name: one.link.bytes_per_s for one in self._roster.machines if one.link is not None}
        group = session.served.group_size
        return [
            KVHolder(one.machine, kv_share(one.share.along("attention"), group), links.get(one.machine))
            for one in session.assignments
        ]
