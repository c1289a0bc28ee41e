"""When a session that is prepared takes the place of the one that serves, and answers that run pause for it.

One that is only faster waits until it is worth that (`worth.py`). Where what was computed does not travel
(`handover.py`), it then waits for requests whose prompt is still read, which would be read anew, for _READING_S at
most; meanwhile no request starts. It waits for nothing where a machine has less memory by now than its node that serves
may grow to.
"""

from collections.abc import Mapping
from typing import Final

from tpiedge.master.handover import Handover
from tpiedge.master.request_queue import RequestQueue
from tpiedge.master.roster import Machine
from tpiedge.master.session import Phase, Session
from tpiedge.master.worth import Worth

#: For how long a plan waits for prompts that are read.
_READING_S: Final = 30.0
#: The nodes of a new session take so long to get ready at least.
_RESTART_S: Final = 1.5


class Switching:
    """For the control thread."""

    def __init__(self, requests: RequestQueue, handover: Handover) -> None:
        self._requests = requests
        self._handover = handover
        self._worth = Worth()
        self._due: tuple[int, float] | None = None  # the session that is to take over, and since when

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
        return serving is not None and self._handover.outlook(serving, coming).carriage is not None

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
        pause_s = max(_RESTART_S, serving.start_s) + self._handover.outlook(serving, coming).seconds
        return self._worth.reached(coming.number, now, 1 - coming.step_s / step_s, pause_s)


def _outgrows(serving: Session, usable: Mapping[str, Machine], own_bytes: int) -> bool:
    """Whether a node of what serves may take more memory by its plan than its machine offers by now."""
    return serving.assignments[0].planned_bytes > own_bytes or any(
        one.planned_bytes > usable[one.machine].offer.memory_bytes
        for one in serving.workers
        if one.machine in usable
    )
