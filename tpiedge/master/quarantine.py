"""Which workers are left out of plans, and for how long: a machine without sockets, threads or clock.

Laws:
1. The first breach of the protocol costs FIRST_S, every further one twice as much as the one before, up to LONGEST_S.
2. Breaches of a worker that is left out already do not count: its node may not have noticed yet.
3. A worker without a breach for FORGIVEN_S after its exclusion ended starts again with FIRST_S.
4. A worker that sends more than FLOOD messages between two heartbeats breaks the protocol.
5. A worker that is lost FLAPS times within WINDOW_S is flapping: for REST_S, and after every further loss for twice as
   long as before, up to LONGEST_REST_S. After WINDOW_S without a loss since such a rest it starts again with REST_S.
6. What is lost of a worker within SAME_S of its last loss is that loss: its node went with its machine. Two nodes are
   two losses. A stop by the user is none.
7. A flapping worker is better than none: a plan uses it if there is no plan without it, or if it serves already. Where
   it is its node that fails, such a plan waits, longer with each failure in a row (`retries.py`).
8. So is one that fails again under the same request: that is tried without it for EXCLUDED_S, if it can be, or until
   the request turns out to be guilty.
9. So is one that could not do its part, for EXCLUDED_S, and after every further failure for twice as long as before, up
   to LONGEST_EXCLUDED_S: a plan uses it if there is no plan without it, even where it serves already; where there are
   several, the last one only if there is none with the others.
10. Whoever is left out, for whatever reason, stays so while others begin without it, until something serves.
11. A worker that serves, and could not prepare another part, is bound to the one that it has for as long as one that
   could not do its part would be left out: what serves goes on.
12. An administrator may have the time of all that keeps a worker out end at once; the next time is as long as if it had
    ended by itself.
13. Of workers with ever new names only the last ones' breaches and losses are known (`remembered.py`).
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tpiedge.master.remembered import Remembered
from tpiedge.master.retries import Retries
from tpiedge.sanitise import sanitised_line

#: How long a worker that could not do its part is left out, the first time and at most.
EXCLUDED_S: Final = 30.0
LONGEST_EXCLUDED_S: Final = 600.0

FIRST_S: Final = 60.0
LONGEST_S: Final = 3600.0
FORGIVEN_S: Final = 24 * 3600.0
FLOOD: Final = 3000
FLAPS: Final = 3
WINDOW_S: Final = 600.0
REST_S: Final = 30.0
LONGEST_REST_S: Final = 1800.0
SAME_S: Final = 2.5


@dataclass(frozen=True)
class Exclusion:
    """A worker is left out of plans until `until` (seconds on the caller's clock)."""

    until: float
    cause: str

    def why(self, now: float) -> str:
        """The cause, and how long the worker is left out from `now` on."""
        return f"{self.cause} (for another {max(1, math.ceil(self.until - now))} s)"


@dataclass(frozen=True)
class _Penalty:
    length_s: float
    until: float


class Quarantine:
    """Penalties that double each time. Times are seconds on the caller's clock."""

    def __init__(
        self, first_s: float = FIRST_S, longest_s: float = LONGEST_S, forgiven_s: float = FORGIVEN_S
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._forgiven_s = forgiven_s
        self._penalties = Remembered[_Penalty]()

    def remembers(self, name: str, now: float) -> bool:
        """Whether the next penalty of `name` is longer than the first."""
        last = self._penalties.get(name)
        return last is not None and now < last.until + self._forgiven_s

    def penalise(self, name: str, now: float) -> float:
        """Penalises `name` and returns the time until which it is left out."""
        last = self._penalties.get(name)
        if last is not None and now < last.until:
            return last.until
        length_s = self._first_s
        if last is not None and self.remembers(name, now):
            length_s = min(2 * last.length_s, self._longest_s)
        self._penalties.note(name, _Penalty(length_s, now + length_s))
        return now + length_s

    def end(self, name: str, now: float) -> None:
        """The last penalty of `name` lasts no longer."""
        last = self._penalties.get(name)
        if last is not None and now < last.until:
            self._penalties.note(name, replace(last, until=now))

    def forget(self, name: str) -> None:
        """The worker was revoked."""
        self._penalties.forget(name)


class Flaps:
    """The losses of each worker. Times are seconds on the caller's clock."""

    def __init__(self) -> None:
        #: When, and whether it was a node.
        self._losses = Remembered[list[tuple[float, bool]]]()

    def lost(self, name: str, now: float, *, node: bool = False) -> int:
        """Counts a loss, of a `node` or else of the machine; returns how many there were within WINDOW_S, or 0 if this
        loss was counted already."""
        losses = [loss for loss in self._losses.get(name) or [] if now - loss[0] < WINDOW_S]
        if losses and now - losses[-1][0] < SAME_S and not (node and losses[-1][1]):
            return 0
        self._losses.note(name, [*losses, (now, node)])
        return len(losses) + 1

    def stopped(self, name: str, now: float) -> None:
        """The worker was stopped by its user: a loss of it within the last SAME_S does not count."""
        losses = self._losses.get(name)
        if losses and now - losses[-1][0] < SAME_S:
            losses.pop()

    def forget(self, name: str) -> None:
        """The worker was revoked."""
        self._losses.forget(name)


class Reputation:
    """Which workers are left out of plans now. Times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self._quarantine = Quarantine()
        self._left_out: dict[str, Exclusion] = {}
        self._flaps = Flaps()
        self._rests = Quarantine(REST_S, LONGEST_REST_S, WINDOW_S)
        self._flapping: dict[str, Exclusion] = {}
        self._crashes = Remembered[Retries]()
        self._doubted: dict[str, Exclusion] = {}
        self._unfit: dict[str, Exclusion] = {}
        self._bound: dict[str, Exclusion] = {}
        self._failures = Quarantine(EXCLUDED_S, LONGEST_EXCLUDED_S, LONGEST_S)

    @property
    def left_out(self) -> Mapping[str, Exclusion]:
        """The workers that no plan may contain, by name."""
        return self._left_out

    def avoided(self, serving: Collection[str] = ()) -> Mapping[str, Exclusion]:
        """The workers that a plan contains only if there is no plan without them, by name. `serving`: those that serve
        already."""
        known = self._doubted | self._flapping
        return {name: one for name, one in known.items() if name not in serving} | self._unfit

    @property
    def bound(self) -> Mapping[str, Exclusion]:
        """The workers that serve and are to keep the part that they have, by name."""
        return self._bound

    @property
    def last_unfit(self) -> tuple[str, ...]:
        """Of several that could not do their part, the last one."""
        return tuple(self._unfit)[-1:] if len(self._unfit) > 1 else ()

    def lost(self, name: str, cause: str, now: float) -> None:
        """The worker was lost and had not said that it leaves."""
        self._rest(name, cause, now, self._flaps.lost(name, now))

    def _rest(self, name: str, cause: str, now: float, count: int) -> None:
        """`count`: as Flaps.lost returns it."""
        if count >= FLAPS or (count and self._rests.remembers(name, now)):
            often = f"{count} times within {WINDOW_S / 60:.0f} min" if count >= FLAPS else "again"
            until = self._rests.penalise(name, now)
            self._flapping[name] = Exclusion(
                until, f"it was lost {often}, the last time: {sanitised_line(cause)}"
            )

    def crashed(self, name: str, cause: str, now: float) -> None:
        """The worker's node was lost, as far as is known without its machine."""
        self._rest(name, cause, now, self._flaps.lost(name, now, node=True))
        retries = self._crashes.get(name) or Retries()
        retries.failed(now)
        self._crashes.note(name, retries)

    def proved(self, names: Iterable[str]) -> None:
        """A session of these workers has proven itself: earlier failures of their nodes are in no row with later
        ones."""
        for name in names:
            self._crashes.forget(name)

    def failing(self, name: str) -> bool:
        """Whether the worker's node was lost and no session with it has proven itself since."""
        return self._crashes.get(name) is not None

    def due(self, name: str) -> float:
        """Before when no plan with the worker begins, where nothing serves."""
        crashes = self._crashes.get(name) if name in self._flapping else None
        return crashes.due if crashes is not None else -math.inf

    def waiting(self, now: float) -> Collection[str]:
        """The workers with which no plan begins yet, where nothing serves."""
        return [name for name in self._flapping if self.due(name) > now]

    def doubt(self, name: str, cause: str, now: float) -> None:
        """The worker's node failed under a request that has not got on since the loss before: whose fault it is shows
        when the request is tried without it."""
        self._doubted[name] = Exclusion(now + EXCLUDED_S, sanitised_line(cause))

    def trust(self) -> None:
        """The request was at fault: nobody is doubted any more."""
        self._doubted.clear()

    def stopped(self, name: str, now: float) -> None:
        """The worker was stopped by its user."""
        self._flaps.stopped(name, now)

    def penalise(self, name: str, cause: str, now: float) -> None:
        """The worker broke the protocol."""
        self._leave_out(name, Exclusion(self._quarantine.penalise(name, now), sanitised_line(cause)))

    def exclude(self, name: str, cause: str, now: float) -> None:
        """No plan can be made with the worker."""
        self._leave_out(name, Exclusion(now + EXCLUDED_S, cause))

    def unfit(self, name: str, cause: str, now: float) -> None:
        """The worker could not do its part."""
        self._unfit.pop(name, None)
        self._bound.pop(name, None)
        self._unfit[name] = self._failed(name, cause, now)

    def bind(self, name: str, cause: str, now: float) -> None:
        """The worker serves, and could not prepare another part."""
        self._bound[name] = self._failed(name, cause, now)

    def _failed(self, name: str, cause: str, now: float) -> Exclusion:
        until = self._failures.penalise(name, now)
        return Exclusion(max(until, now + EXCLUDED_S), cause)  # it was used in spite of the last one

    def _leave_out(self, name: str, exclusion: Exclusion) -> None:
        known = self._left_out.get(name)
        if known is None or known.until < exclusion.until:
            self._left_out[name] = exclusion

    @property
    def _exclusions(self) -> tuple[dict[str, Exclusion], ...]:
        return self._left_out, self._flapping, self._doubted, self._unfit, self._bound

    def clear(self, name: str, now: float) -> bool:
        """An administrator wants the worker tried again: the next `readmit` finds the time of its exclusions over.
        Returns whether there were any."""
        for memory in (self._quarantine, self._rests, self._failures):
            memory.end(name, now)
        own = [exclusions for exclusions in self._exclusions if name in exclusions]
        for exclusions in own:
            exclusions[name] = replace(exclusions[name], until=min(now, exclusions[name].until))
        return bool(own)

    def readmit(self, now: float, beginning: Collection[Collection[str]] = ()) -> bool:
        """Ends the exclusions whose time is over; returns whether there were any.

        `beginning`: the workers of each session that is about to serve while none does. Who is missing in one
        stays out: its return would end that before anything has served.
        """
        found = False
        for exclusions in self._exclusions:
            over = [name for name, exclusion in exclusions.items() if exclusion.until <= now]
            for name in over:
                if all(name in workers for workers in beginning):
                    del exclusions[name]
                    found = True
        return found

    def forget(self, name: str) -> None:
        """The worker was revoked."""
        self._quarantine.forget(name)
        self._left_out.pop(name, None)
        self._flaps.forget(name)
        self._rests.forget(name)
        self._flapping.pop(name, None)
        self._crashes.forget(name)
        self._doubted.pop(name, None)
        self._unfit.pop(name, None)
        self._bound.pop(name, None)
        self._failures.forget(name)


class Traffic:
    """Counts the messages of each peer between two heartbeats."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def floods(self, peer: str) -> bool:
        """Counts a message; True for exactly the one that exceeds the limit."""
        self._counts[peer] += 1
        return self._counts[peer] == FLOOD

    def tick(self) -> None:
        """A heartbeat: starts counting from zero."""
        self._counts.clear()
