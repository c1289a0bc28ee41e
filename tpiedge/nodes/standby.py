"""A node process that is started before anybody knows what for, so that the next epoch does not wait for torch."""

import time

from tpiedge.errors import InternalError
from tpiedge.nodes.bootstrap import NodeBootstrap
from tpiedge.nodes.readiness import NodeReport, StandbyOrder
from tpiedge.nodes.supervise import Child

__all__ = ["NODE_MODULE", "Standby", "node_environment"]

NODE_MODULE = "tpiedge.nodes.process"


def node_environment(threads: int) -> dict[str, str]:
    """What torch's libraries read when they are loaded, before any message can arrive."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


class Standby:
    """start -> (report) -> promote or stop. It belongs to one thread; `report` may be called by another one.

    The thread that calls `start` must outlive the process: the kernel ends the child with the thread that made it.
    """

    def __init__(self, threads: int, *, measure: bool = False) -> None:
        self._order = StandbyOrder(measure, threads)
        self._child: Child | None = None

    @property
    def threads(self) -> int:
        """With how many it was started; a node with another number is better started anew."""
        return self._order.threads

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def alive(self) -> bool:
        """Whether it can still be promoted."""
        return self._child is not None and self._child.exit_cause() is None

    def start(self) -> None:
        """Start the process; returns at once."""
        if self._child is not None:
            raise InternalError("the standby node was started already")
        self._child = Child(
            NODE_MODULE, self._order.to_line(), node_environment(self._order.threads), reports=True
        )

    def report(self, deadline: float) -> NodeReport | None:
        """What it is and has measured, None if it is not ready by `deadline` (monotonic seconds). May be asked again.

        Raises PeerError with the cause if the process ends before.
        """
        line = self._running.read_report(deadline)
        return None if line is None else NodeReport.from_line(line)

    def promote(self, bootstrap: NodeBootstrap) -> Child:
        """Make it a node, ready or not; the process now belongs to the caller. A process that has ended is returned
        as well: its `exit_cause` tells why."""
        child, self._child = self._running, None
        child.send_line(bootstrap.to_line())
        return child

    def stop(self, deadline: float | None = None) -> None:
        """End it, by force from `deadline` (monotonic seconds; now if None) on. Idempotent; nothing after `promote`."""
        child, self._child = self._child, None
        if child is not None:
            child.stop(time.monotonic() if deadline is None else deadline)

    @property
    def _running(self) -> Child:
        if self._child is None:
            raise InternalError("the standby node is not running")
        return self._child
