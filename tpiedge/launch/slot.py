"""A machine's slot for nodes: at most one node runs, and the process of the next one can stand by. It is started
ahead of its epoch, which then does not wait for the import of torch.
"""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from tpiedge.errors import InternalError
from tpiedge.launch.bootstrap import NodeBootstrap, NodeReport, StandbyOrder
from tpiedge.launch.child import Child
from tpiedge.units import MIB

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
    def pid(self) -> int:
        return self._running.pid

    @property
    def alive(self) -> bool:
        """Whether it can still be promoted."""
        return self._child is not None and self._child.exit_cause() is None

    def start(self) -> None:
        """Starts the process; returns at once. Raises ResourceError if it cannot be started."""
        environment = node_environment(self._order.threads)
        self._child = Child(NODE_MODULE, self._order.to_line(), environment, reports=True)

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


_log = logging.getLogger(__name__)

SETTLED_S: Final = 5.0
"""So long an epoch has served before a process stands by for the next one: its imports take a second of a core, which
the first answers need."""


class NodeSlot:
    """One thread must make all calls, and outlive the node: the kernel ends a child with the thread that started it."""

    def __init__(
        self,
        threads: int,
        standby: Standby | None = None,
        memory_bytes: int | None = None,
        locker: Path | None = None,
    ) -> None:
        """`standby` is a process that was started already; the slot owns it from now on. `memory_bytes` is the memory
        that this machine gives; None: no limit. `locker` is a folder of this slot alone, in which a node leaves keys
        and values for the next one; None: it does not."""
        self.threads = threads
        self._locker = locker
        self._key = secrets.token_hex(32)
        self._sweep()
        self.memory_bytes = memory_bytes
        self._standby = standby
        self._child: Child | None = None
        self.planned_bytes = 0
        """The most memory that the plan gives the node that was started last; 0 before the first."""

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def warm(self, *, measure: bool = False) -> Standby:
        """Starts the process that `start` will use, unless it runs already. Raises ResourceError if that fails."""
        if self._standby is None or not self._standby.alive:
            self._cool()
            self._standby = Standby(self.threads, measure=measure)
            self._standby.start()
        return self._standby

    def warm_ahead(self) -> None:
        """Calls `warm` if the memory has room for that process beside the running node; else `start` will start it.

        Raises ResourceError.
        """
        # 152 MiB beside the libraries, which the node that runs has mapped too.
        busy = self.memory_bytes is not None and self._child is not None
        if not busy or self.planned_bytes + 152 * MIB <= (self.memory_bytes or 0):
            self.warm()

    def start(self, bootstrap: NodeBootstrap, planned_bytes: int) -> int:
        """Starts the node and returns its pid; an earlier node is killed first. Raises ResourceError.

        `planned_bytes` is the most memory that the plan gives the node, with the process that starts it.
        """
        self.stop()
        standby, self._standby = self.warm(), None
        if self._locker is not None:
            bootstrap = replace(bootstrap, locker=str(self._locker), locker_key=self._key)
        self._child = standby.promote(bootstrap)
        self.planned_bytes = planned_bytes
        return self._child.pid

    def exit_cause(self) -> str | None:
        """Why the node ended; None while it runs, or if there is none."""
        return None if self._child is None else self._child.exit_cause()

    @property
    def out_of_memory(self) -> bool:
        return self._child is not None and self._child.out_of_memory

    def log_tail(self) -> str:
        """The end of the node's log. Raises InternalError if there is no node."""
        if self._child is None:
            raise InternalError("there is no node whose log could be read")
        return self._child.log_tail()

    def stop(self, grace_s: float = 0.0, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Ends the node; blocks up to `grace_s` for it to end by itself. Idempotent. `meanwhile`: as for Child.stop."""
        if self._child is not None:
            self._child.stop(time.monotonic() + grace_s, meanwhile)
            self._child = None

    def close(self, grace_s: float = 0.0) -> None:
        """Ends the node as `stop` does, then the standby process at once."""
        self.stop(grace_s)
        self._cool()
        self._sweep()

    def _cool(self) -> None:
        if self._standby is not None:
            self._standby.stop()
            self._standby = None

    def _sweep(self) -> None:
        """Deletes what nodes have left: each clears the locker itself, but for the last one, or if it ends early."""
        if self._locker is None:
            return
        try:
            for path in self._locker.glob("*"):
                path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("cannot delete what lies in %s: %s", self._locker, error.strerror)
