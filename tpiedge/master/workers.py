"""The states of a worker, and its waits after failures (docs/failures.md). Pure."""

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
    ENGAGED = "engaged"
    WAITING = "waiting"
    DRAINED = "drained"


class WorkerEvent(StrEnum):
    OFFERED = "makes its offer"
    ENGAGED = "gets a part"
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
"""A failure counts; the last failure is taken back; a plan is due."""
Fault: TypeAlias = Literal["", "lost", "died", "unfit", "breach"]
"""The last failure: a lost machine, a dead node, a part that was not prepared, a breach of the protocol."""

_S, _E = WorkerState, WorkerEvent
_Moves: TypeAlias = Mapping[WorkerEvent, tuple[WorkerState, tuple[WorkerAction, ...]]]

_ANYWHERE: _Moves = {
    _E.LOST: (_S.AWAY, ("count", "plan")),
    _E.STOPPED: (_S.AWAY, ("plan",)),
    _E.BREACHED: (_S.WAITING, ("count", "plan")),
    _E.FAILED: (_S.WAITING, ("count", "plan")),
}
#: Other events change nothing.
TRANSITIONS: Final[Mapping[WorkerState, _Moves]] = {
    _S.AWAY: {_E.OFFERED: (_S.PRESENT, ("plan",)), _E.BREACHED: (_S.AWAY, ("count",))},
    _S.PRESENT: {**_ANYWHERE, _E.ENGAGED: (_S.ENGAGED, ()), _E.DRAINED: (_S.DRAINED, ("plan",))},
    _S.ENGAGED: {
        **_ANYWHERE,
        _E.RELEASED: (_S.PRESENT, ()),
        _E.UNPREPARED: (_S.ENGAGED, ("count", "plan")),
        **dict.fromkeys((_E.DRAINED, _E.UNDRAINED, _E.OVER, _E.CLEARED), (_S.ENGAGED, ("plan",))),
    },
    _S.WAITING: {
        _E.ENGAGED: (_S.ENGAGED, ()),
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
    """Times are seconds on the caller's clock."""

    state: WorkerState = WorkerState.AWAY
    drained: bool = False
    fault: Fault = ""
    cause: str = ""
    failed: float = -math.inf  # the time of the last failure
    until: float = -math.inf  # the end of the wait
    doublings: int = 0  # of the wait
    row: int = 0  # failures in a row since a session with the worker proved itself
    due: float = -math.inf  # when a plan with the worker may begin

    def waits(self, now: float) -> bool:
        return now < self.until

    def barred(self, now: float) -> bool:
        """Whether no plan may have the worker."""
        return self.waits(now) and self.fault == "breach"

    def why(self, now: float) -> str:
        return f"{self.cause} (for another {max(1, math.ceil(self.until - now))} s)"


def step(
    one: Standing, event: WorkerEvent, now: float, fault: Fault = "", cause: str = ""
) -> tuple[Standing, tuple[WorkerAction, ...]]:
    """Returns the new state and actions. `fault` and `cause` describe a failure."""
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
    """Counts a failure. Losses do not count as failures in a row."""
    calm = max(0.0, now - max(one.until, one.failed))
    before = max(0, one.doublings - int(calm // HALVED_S)) if one.doublings else 0
    doublings = min(before + (4 if fault == "breach" else 1), 1 + math.ceil(math.log2(LONGEST_S / FIRST_S)))
    end = now + min(LONGEST_S, FIRST_S * 2.0 ** (doublings - 1))
    if fault == one.fault == "breach" and one.waits(now):
        cause = one.cause  # the first cause says most
    if fault in ("died", "unfit"):  # a lost machine comes back by itself
        due_s = min(LONGEST_DUE_S, 2.0**one.row) if one.row else 0.0
        one = replace(one, row=one.row + 1, due=now + due_s)
    return replace(one, fault=fault, cause=sanitised_line(cause), failed=now, until=end, doublings=doublings)
