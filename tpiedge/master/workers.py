"""What a worker is to its master, what may happen to it, and how long one that failed waits: a table without sockets,
threads or clock. docs/failures.md states the rules. TRANSITIONS says what each event does in each state; an event that
has no line there changes nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from tpiedge.sanitise import sanitised_line

FIRST_S: Final = 30.0
LONGEST_S: Final = 1800.0
HALVED_S: Final = 3600.0
LONGEST_DUE_S: Final = 10.0


class WorkerState(StrEnum):
    AWAY = "away"
    PRESENT = "present"
    FETCHING = "fetching"
    READY = "ready"
    SERVING = "serving"
    WAITING = "waiting"
    DRAINED = "drained"


class WorkerEvent(StrEnum):
    OFFERED = "makes its offer"
    ASKED = "is asked for a part"
    PREPARED = "has its part"
    LAUNCHED = "its node starts"
    RELEASED = "has no part any more"
    UNPREPARED = "cannot prepare a part"
    FAILED = "its node fails"
    BREACHED = "breaks the protocol"
    LOST = "is lost"
    STOPPED = "is stopped by its user"
    OVER = "its wait is over"
    CLEARED = "an administrator ends its wait"
    DRAINED = "is drained"
    UNDRAINED = "is taken back in"


WorkerAction: TypeAlias = Literal["count", "take back", "plan"]
"""The failure counts; the last failure is taken back; a plan is due."""
Fault: TypeAlias = Literal["", "lost", "died", "unfit", "breach"]
"""The last failure: its machine was lost, its node died, it could not prepare a part, it broke the protocol."""

_S, _E = WorkerState, WorkerEvent
_Moves: TypeAlias = Mapping[WorkerEvent, tuple[WorkerState, tuple[WorkerAction, ...]]]

_ANYWHERE: _Moves = {
    _E.LOST: (_S.AWAY, ("count", "plan")),
    _E.STOPPED: (_S.AWAY, ("plan",)),
    _E.BREACHED: (_S.WAITING, ("count", "plan")),
    _E.FAILED: (_S.WAITING, ("count", "plan")),
    _E.UNPREPARED: (_S.WAITING, ("count", "plan")),
}


def _with_a_part(state: WorkerState) -> _Moves:
    stays: Mapping[WorkerEvent, tuple[WorkerState, tuple[WorkerAction, ...]]] = {
        _E.DRAINED: (state, ("plan",)),
        _E.UNDRAINED: (state, ("plan",)),
        _E.OVER: (state, ("plan",)),
        _E.CLEARED: (state, ("plan",)),
    }
    return {**_ANYWHERE, **stays, _E.RELEASED: (_S.PRESENT, ())}


TRANSITIONS: Final[Mapping[WorkerState, _Moves]] = {
    _S.AWAY: {
        _E.OFFERED: (_S.PRESENT, ("plan",)),
        _E.BREACHED: (_S.AWAY, ("count",)),
    },
    _S.PRESENT: {
        **_ANYWHERE,
        _E.ASKED: (_S.FETCHING, ()),
        _E.LAUNCHED: (_S.SERVING, ()),
        _E.DRAINED: (_S.DRAINED, ("plan",)),
    },
    _S.FETCHING: {**_with_a_part(_S.FETCHING), _E.PREPARED: (_S.READY, ())},
    _S.READY: {**_with_a_part(_S.READY), _E.LAUNCHED: (_S.SERVING, ())},
    _S.SERVING: {**_with_a_part(_S.SERVING), _E.UNPREPARED: (_S.SERVING, ("count", "plan"))},
    _S.WAITING: {
        _E.ASKED: (_S.FETCHING, ()),
        _E.LAUNCHED: (_S.SERVING, ()),
        _E.OVER: (_S.PRESENT, ("plan",)),
        _E.CLEARED: (_S.PRESENT, ("plan",)),
        _E.BREACHED: (_S.WAITING, ("count", "plan")),
        _E.LOST: (_S.AWAY, ("plan",)),
        _E.STOPPED: (_S.AWAY, ("take back", "plan")),
        _E.DRAINED: (_S.DRAINED, ("plan",)),
    },
    _S.DRAINED: {
        _E.UNDRAINED: (_S.PRESENT, ("plan",)),
        _E.BREACHED: (_S.DRAINED, ("count",)),
        _E.LOST: (_S.AWAY, ("plan",)),
        _E.STOPPED: (_S.AWAY, ("plan",)),
    },
}


@dataclass(frozen=True)
class Standing:
    """Where a worker stands. Times are seconds on the caller's clock."""

    state: WorkerState = WorkerState.AWAY
    drained: bool = False
    #: The last failure, why, when, and until when the worker waits for it.
    fault: Fault = ""
    cause: str = ""
    failed: float = -math.inf
    until: float = -math.inf
    #: Doublings of the wait, and failures in a row since a session with the worker proved itself.
    doublings: int = 0
    row: int = 0
    #: When a plan may begin that needs the worker.
    due: float = -math.inf

    def waits(self, now: float) -> bool:
        return now < self.until

    def barred(self, now: float) -> bool:
        """Whether no plan may have the worker, even where none exists without it."""
        return self.waits(now) and self.fault == "breach"

    def why(self, now: float) -> str:
        """Why the worker waits, and for how long from `now` on."""
        return f"{self.cause} (for another {max(1, math.ceil(self.until - now))} s)"


def step(
    one: Standing, event: WorkerEvent, now: float, fault: Fault = "", cause: str = ""
) -> tuple[Standing, tuple[WorkerAction, ...]]:
    """What becomes of a worker, and what its master has to do. `fault` and `cause` are those of a failure."""
    to, actions = TRANSITIONS[one.state].get(event, (one.state, ()))
    if event in (_E.DRAINED, _E.UNDRAINED):
        one = replace(one, drained=event is _E.DRAINED)
    if event is _E.CLEARED:
        one = replace(one, until=min(one.until, now), due=min(one.due, now), row=0)
    if event in (_E.OVER, _E.CLEARED):
        one = replace(one, fault="")
    if "count" in actions and not (one.drained and event is _E.LOST):
        one = failed(one, now, fault, cause)
    if "take back" in actions and not one.barred(now):
        one = replace(one, until=now, due=now, doublings=max(0, one.doublings - 1), row=max(0, one.row - 1))
    if to in (_S.PRESENT, _S.WAITING, _S.DRAINED):
        to = _S.DRAINED if one.drained else _S.WAITING if one.waits(now) else _S.PRESENT
    return replace(one, state=to), actions


def failed(one: Standing, now: float, fault: Fault, cause: str) -> Standing:
    """A failure that counts. What a machine's loss costs is no failure in a row: it comes back by itself."""
    calm = max(0.0, now - max(one.until, one.failed))
    before = max(0, one.doublings - int(calm // HALVED_S)) if one.doublings else 0
    doublings = min(before + (4 if fault == "breach" else 1), 1 + math.ceil(math.log2(LONGEST_S / FIRST_S)))
    wait_s = min(LONGEST_S, FIRST_S * 2.0 ** (doublings - 1))
    row, due = one.row, one.due
    if fault == one.fault == "breach" and one.waits(now):
        cause = one.cause  # the first one says most
    if fault in ("died", "unfit"):
        row, due = row + 1, now + (min(LONGEST_DUE_S, 2.0**row) if row else 0.0)
    return replace(
        one,
        fault=fault,
        cause=sanitised_line(cause),
        failed=now,
        until=now + wait_s,
        doublings=doublings,
        row=row,
        due=due,
    )
