"""When this process itself did not run: a machine without clock or threads.

Laws:
1. Who was not heard while this process did not run may have spoken: its words wait to be read, perhaps in the system
   still. So a heartbeat that comes late judges nobody's silence.
2. The one after it does, however late it comes: whoever is gone is noticed by a process that is always late, too.
"""


class OwnStalls:
    """`heartbeat_s`: from one heartbeat to the next; one that is later than that is late."""

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self.excuse = False
        """Whether nobody's silence is to be judged until the next heartbeat."""

    def beat(self, late_s: float) -> bool:
        """A heartbeat is sent, so many seconds after it was due. Returns `excuse`."""
        self.excuse = late_s > self._heartbeat_s and not self.excuse
        return self.excuse
