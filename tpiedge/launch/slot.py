"""A machine's slot for nodes: at most one node runs, and the process of the next one can stand by."""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from tpiedge.errors import InternalError
from tpiedge.launch.bootstrap import NodeBootstrap
from tpiedge.launch.child import Child
from tpiedge.launch.standby import Standby
from tpiedge.units import MIB

_log = logging.getLogger(__name__)

SETTLED_S: Final = 5.0
"""So long an epoch has served before a process stands by for the next one: its imports take a second of a core, which
the first answers need."""

_KEY_BYTES: Final = 32
_STANDBY_BYTES = 152 * MIB  # beside the libraries, which the node that runs has mapped too


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
        self._key = secrets.token_hex(_KEY_BYTES)
        self._sweep()
        #: As above; what is so from now on may be set.
        self.memory_bytes = memory_bytes
        self._standby = standby
        self._child: Child | None = None
        self._planned_bytes = 0

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def planned_bytes(self) -> int:
        """The most memory that the plan gives the node that was started last; 0 before the first."""
        return self._planned_bytes

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
        if self._has_room():
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
        self._planned_bytes = planned_bytes
        return self._child.pid

    def exit_cause(self) -> str | None:
        """Why the node ended; None while it runs, or if there is none."""
        return None if self._child is None else self._child.exit_cause()

    @property
    def out_of_memory(self) -> bool:
        """Whether the node has ended for want of memory."""
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
        """Ends the process that stands by."""
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

    def _has_room(self) -> bool:
        if self.memory_bytes is None or self._child is None:
            return True
        return self._planned_bytes + _STANDBY_BYTES <= self.memory_bytes
