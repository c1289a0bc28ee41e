"""The place of a machine's node: at most one runs at a time, and the process of the next one can be made ready."""

import time

from tpiedge.errors import InternalError
from tpiedge.nodes.bootstrap import NodeBootstrap
from tpiedge.nodes.standby import Standby
from tpiedge.nodes.supervise import Child
from tpiedge.units import MIB

__all__ = ["NodeSlot"]

_STANDBY_BYTES = 152 * MIB  # beside the libraries, which the node that runs has mapped too


class NodeSlot:
    """For one thread alone: the kernel ends a child with the thread that started it."""

    def __init__(self, threads: int, standby: Standby | None = None, memory_bytes: int | None = None) -> None:
        """`standby`: a process that was started already; this slot's from now on. `memory_bytes`: what this machine
        gives; None: no limit."""
        self.threads = threads
        self._memory_bytes = memory_bytes
        self._standby = standby
        self._child: Child | None = None
        self._planned_bytes = 0

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def warm(self, *, measure: bool = False) -> Standby:
        """The process that `start` will use, started now where it is not yet. Raises ResourceError if it cannot be."""
        if self._standby is None or not self._standby.alive:
            self._drop_standby()
            self._standby = Standby(self.threads, measure=measure)
            self._standby.start()
        return self._standby

    def warm_ahead(self) -> None:
        """As `warm`, if there is room for that process beside the node that runs: else it is started once that has
        ended. Raises ResourceError."""
        if self._has_room():
            self.warm()

    def start(self, bootstrap: NodeBootstrap, planned_bytes: int) -> int:
        """Start the node, and give its pid. An earlier one is ended first. `planned_bytes`: what the node may grow to,
        with the process that starts it. Raises ResourceError."""
        self.stop()
        standby, self._standby = self.warm(), None
        self._child = standby.promote(bootstrap)
        self._planned_bytes = planned_bytes
        return self._child.pid

    def exit_cause(self) -> str | None:
        """Why it ended; None while it runs or where there is none."""
        return None if self._child is None else self._child.exit_cause()

    def log_tail(self) -> str:
        """The end of what the node wrote to its log."""
        if self._child is None:
            raise InternalError("there is no node whose log could be read")
        return self._child.log_tail()

    def stop(self, grace_s: float = 0.0) -> None:
        """End the node; it has `grace_s` to do so by itself. Idempotent."""
        if self._child is not None:
            self._child.stop(time.monotonic() + grace_s)
            self._child = None

    def close(self, grace_s: float = 0.0) -> None:
        """End what is left: the node as `stop` does, the one in waiting at once."""
        self.stop(grace_s)
        self._drop_standby()

    def _has_room(self) -> bool:
        if self._memory_bytes is None or self._child is None:
            return True
        return self._planned_bytes + _STANDBY_BYTES <= self._memory_bytes

    def _drop_standby(self) -> None:
        if self._standby is not None:
            self._standby.stop()
            self._standby = None
