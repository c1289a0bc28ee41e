"""A machine's slot for nodes: at most one node runs, and the process of the next one can stand by. It is started
ahead of its epoch, which then does not wait for the import of torch.
"""

import logging
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tpiedge.clock import Clock
from tpiedge.errors import ResourceError
from tpiedge.launch.bootstrap import NodeBootstrap, NodeReport, StandbyOrder, from_line, to_line
from tpiedge.launch.child import Child
from tpiedge.launch.offer import LOOK_S, MemoryOffer
from tpiedge.units import MIB

NODE_MODULE = "tpiedge.node.process"


def node_environment(threads: int) -> dict[str, str]:
    """Environment variables that torch's libraries read when they are loaded, before any message can arrive."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


class Standby(Child):
    """A node's process that imports, measures its machine if it is to `measure`, and waits for its bootstrap."""

    def __init__(self, threads: int, *, measure: bool = False) -> None:
        order = to_line(StandbyOrder(measure, threads))
        super().__init__(NODE_MODULE, order, node_environment(threads), reports=True)

    def report(self, deadline: float) -> NodeReport | None:
        """Its report; None if it is not ready by `deadline` (monotonic seconds), then call again. Blocks until then.

        Raises PeerError or OutOfMemory with the cause if the process ends before.
        """
        line = self.read_report(deadline)
        return None if line is None else from_line(line, NodeReport)


_log = logging.getLogger(__name__)

SETTLED_S: Final = 5.0
"""So long an epoch has served before a process stands by for the next one: its imports take a second of a core, which
the first answers need."""


@dataclass(eq=False)
class NodeSlot:
    """One thread must make all calls, and outlive the node: the kernel ends a child with the thread that started it.

    `usable_memory` says how many bytes this machine may use now, without waiting; `say` gets a line when `memory`, what
    it gives, changes. `locker` is a folder in which a node leaves keys and values for the next one, None: it does not;
    it is another process's, perhaps, until `own_locker` is called.
    """

    threads: int
    memory: MemoryOffer
    _usable_memory: Callable[[], int]
    _clock: Clock
    _say: Callable[[str], None]
    _locker: Path | None = None
    _standby: Standby | None = None
    _key: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    _child: Child | None = None
    #: The most memory that the plan gives the node that was started last; 0 before the first.
    _planned_bytes: int = 0
    #: Since when its epoch serves; endless once a process was made to stand by.
    _served: float | None = None
    _has_locker: bool = False

    def __post_init__(self) -> None:
        self._weighed = self._clock.now()  # when it last looked how much memory it may use

    def own_locker(self) -> None:
        """No other process has the locker now: deletes what earlier nodes have left there."""
        self._has_locker = True
        self._sweep()

    @property
    def memory_bytes(self) -> int:
        """How much memory this machine gives now."""
        return self.memory.offered_bytes

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def weigh(self) -> None:
        """Now and then looks how much memory this machine may use, and says what has changed."""
        now = self._clock.now()
        if now - self._weighed >= LOOK_S:
            self._weighed = now
            self._tell(self.memory.look(self._usable_memory(), now))

    def _tell(self, changed: str) -> None:
        if changed:
            self._say(changed)

    def warm(self, *, measure: bool = False) -> Standby:
        """Starts the process that `start` will use, unless it runs already. Raises ResourceError if that fails."""
        if self._standby is None or self._standby.exit_cause() is not None:
            self._cool()
            self._standby = Standby(self.threads, measure=measure)
        return self._standby

    def warm_ahead(self) -> None:
        """Calls `warm` if the memory has room for that process beside the running node; else `start` will start it.

        Raises ResourceError.
        """
        # 152 MiB beside the libraries, which the node that runs has mapped too.
        if self._child is None or self._planned_bytes + 152 * MIB <= self.memory_bytes:
            self.warm()

    def warm_if_possible(self) -> None:
        """As `warm_ahead`, but logs failures."""
        try:
            self.warm_ahead()
        except (OSError, ResourceError) as error:
            _log.warning("cannot start a node ahead of its use: %s", error)

    def serves(self) -> None:
        """The node's epoch serves: once that has lasted for SETTLED_S, has a process stand by for the next one."""
        now = self._clock.now()
        if self._served is None:
            self._served = now
        if now - self._served >= SETTLED_S:
            self._served = math.inf
            self.warm_if_possible()

    def start(self, bootstrap: NodeBootstrap, planned_bytes: int) -> int:
        """Starts the node and returns its pid; an earlier node is killed first. Raises ResourceError.

        `planned_bytes` is the most memory that the plan gives the node, with the process that starts it.
        """
        self.stop()
        self._child, self._standby = self.warm(), None
        if self._locker is not None:
            bootstrap = replace(bootstrap, locker=str(self._locker), locker_key=self._key)
        self._child.send_line(to_line(bootstrap))
        self._planned_bytes, self._served = planned_bytes, None
        return self._child.pid

    def exit_cause(self) -> str | None:
        """Why the node ended; None while it runs, or if there is none."""
        return None if self._child is None else self._child.exit_cause()

    def log_tail(self) -> str:
        """The end of the node's log; "" if there is no node."""
        return "" if self._child is None else self._child.log_tail()

    def stop(self, grace_s: float = 0.0, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Ends the node; blocks up to `grace_s` for it to end by itself. Idempotent. `meanwhile`: as for Child.stop.
        Where it has ended for want of memory, the machine may give less from now on."""
        if self._child is not None:
            if self._child.out_of_memory:
                now = self._clock.now()
                self._tell(self.memory.ran_out(self._planned_bytes, self._usable_memory(), now))
            self._child.stop(time.monotonic() + grace_s, meanwhile)
            self._child = None

    def close(self) -> None:
        """Ends the node and the standby process at once."""
        self.stop()
        self._cool()
        self._sweep()

    def _cool(self) -> None:
        if self._standby is not None:
            self._standby.stop(0.0)
            self._standby = None

    def _sweep(self) -> None:
        """Deletes what nodes have left: each clears the locker itself, but for the last one, or if it ends early."""
        if self._locker is None or not self._has_locker:
            return
        try:
            for path in self._locker.glob("*"):
                path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("cannot delete what lies in %s: %s", self._locker, error.strerror)
