"""When a session that is prepared takes the place of the one that serves, and answers that run pause for it.

One that is only faster waits until it is worth that (`worth.py`). Where what was computed does not travel
(`handover.py`), it then waits for requests whose prompt is still read, which would be read anew, for _READING_S at
most; meanwhile no request starts.
"""

from collections.abc import Mapping
from typing import Final

from tpiedge.master.handover import Handover
from tpiedge.master.request_queue import RequestQueue
from tpiedge.master.session import Phase, Session
from tpiedge.master.worth import Worth

__all__ = ["Switching"]

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
        self, coming: Session, serving: Session | None, slowdowns: Mapping[str, float], now: float
    ) -> bool:
        """Whether the coming session is to take over now. `slowdowns`: of the workers that plans may have, as the
        roster knows them."""
        if coming.phase is not Phase.PREPARED or not self._is_worth_it(coming, serving, slowdowns, now):
            self._due = None
            return False
        if self._due is None or self._due[0] != coming.number:
            self._due = coming.number, now
        if not self._requests.reading or now - self._due[1] >= _READING_S:
            return True
        return serving is not None and self._handover.outlook(serving, coming).carriage is not None

    def _is_worth_it(
        self, coming: Session, serving: Session | None, slowdowns: Mapping[str, float], now: float
    ) -> bool:
        if serving is None or serving.phase is not Phase.READY or not self._requests.running:
            return True
        if not serving.step_s or not set(serving.machines) <= slowdowns.keys():
            return True  # what serves is not to go on
        # What serves was predicted with what was known then.
        slower = max((slowdowns[one.machine] / one.slowdown for one in serving.workers), default=1.0)
        step_s = serving.step_s * max(1.0, slower)
        pause_s = max(_RESTART_S, serving.start_s) + self._handover.outlook(serving, coming).seconds
        return self._worth.reached(coming.number, now, 1 - coming.step_s / step_s, pause_s)
