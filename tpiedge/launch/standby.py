"""A node process that is started ahead of its epoch, which then does not wait for the import of torch."""

import time

from tpiedge.errors import InternalError
from tpiedge.launch.bootstrap import NodeBootstrap
from tpiedge.launch.child import Child
from tpiedge.launch.readiness import NodeReport, StandbyOrder

NODE_MODULE = "tpiedge.node.process"


def node_environment(threads: int) -> dict[str, str]:
    """Environment variables that torch's libraries read when they are loaded, before any message can arrive."""
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
        """The number of threads that it was started with; it cannot be changed later."""
        return self._order.threads

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def alive(self) -> bool:
        """Whether it can still be promoted."""
        return self._child is not None and self._child.exit_cause() is None

    def start(self) -> None:
        """Starts the process; returns at once. Raises ResourceError if it cannot be started."""
        if self._child is not None:
            raise InternalError("the standby node was started already")
        self._child = Child(
            NODE_MODULE, self._order.to_line(), node_environment(self._order.threads), reports=True
        )

    def report(self, deadline: float) -> NodeReport | None:
        """Its report; None if it is not ready by `deadline` (monotonic seconds), then call again. Blocks until then.

        Raises PeerError or OutOfMemory with the cause if the process ends before.
        """
        line = self._running.read_report(deadline)
        return None if line is None else NodeReport.from_line(line)

    def promote(self, bootstrap: NodeBootstrap) -> Child:
        """Makes it a node, ready or not; the caller owns the process from now on.

        A process that has ended is returned as well: its `exit_cause` says why.
        """
        child, self._child = self._running, None
        child.send_line(bootstrap.to_line())
        return child

    def stop(self, deadline: float | None = None) -> None:
        """Ends it, by force after `deadline` (monotonic seconds; None: now). Idempotent; no effect after `promote`."""
        child, self._child = self._child, None
        if child is not None:
            child.stop(time.monotonic() if deadline is None else deadline)

    @property
    def _running(self) -> Child:
        if self._child is None:
            raise InternalError("the standby node is not running")
        return self._child
