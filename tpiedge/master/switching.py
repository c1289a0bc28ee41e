"""When a session that is prepared takes the place of the one that serves, and answers that run pause for it.

One that is only faster waits until it is worth that (`worth.py`). Then it waits for requests whose prompt is still
read, which would be read anew, for _READING_S at most; meanwhile no request starts.
"""

from collections.abc import Collection
from typing import Final

from tpiedge.master.request_queue import RequestQueue
from tpiedge.master.session import Phase, Session
from tpiedge.master.worth import Worth

__all__ = ["Switching"]

#: For how long a plan waits for prompts that are read.
_READING_S: Final = 30.0


class Switching:
    """For the control thread."""

    def __init__(self, requests: RequestQueue) -> None:
        self._requests = requests
        self._worth = Worth()
        self._since: float | None = None

    @property
    def awaited(self) -> bool:
        """Whether the switch is only waiting for prompts that are read."""
        return self._since is not None

    def due(self, coming: Session, serving: Session | None, usable: Collection[str], now: float) -> bool:
        """Whether the coming session is to take over now. `usable`: the workers that plans may have."""
        if coming.phase is not Phase.PREPARED or not self._is_worth_it(coming, serving, usable, now):
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return not self._requests.reading or now - self._since >= _READING_S

    def _is_worth_it(
        self, coming: Session, serving: Session | None, usable: Collection[str], now: float
    ) -> bool:
        if serving is None or serving.phase is not Phase.READY or not self._requests.running:
            return True
        if not serving.step_s or not set(serving.machines) <= set(usable):
            return True  # what serves is not to go on
        gain = 1 - coming.step_s / serving.step_s
        return self._worth.reached(coming.number, now, gain, self._requests.reread_s)
