"""The master's own node: rank 0 of every epoch, a child process of the master."""

import time
from dataclasses import dataclass

from tpiedge.nodes.bootstrap import NodeBootstrap
from tpiedge.nodes.session import node_name
from tpiedge.nodes.standby import Standby
from tpiedge.nodes.supervise import Child
from tpiedge.nodes.timing import Timing
from tpiedge.transport.keys import CurveKeys

__all__ = ["RankZero", "RankZeroSettings"]


@dataclass(frozen=True)
class RankZeroSettings:
    """Where the master listens for its nodes and where rank 0 shall listen for the others."""

    control_address: str
    master_key: str
    data_address: str
    threads: int


class RankZero:
    """At most one node at a time, and one that is imported ahead of use. For the control thread alone: the kernel ends
    a child with the thread that started it."""

    def __init__(self, settings: RankZeroSettings, timing: Timing) -> None:
        self._settings = settings
        self._timing = timing
        self._child: Child | None = None
        self._standby: Standby | None = None

    @property
    def threads(self) -> int:
        return self._settings.threads

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def warm(self, *, measure: bool = False) -> Standby:
        """The process that `start` will use, started now where it is not yet."""
        if self._standby is None or not self._standby.alive:
            self._drop_standby()
            self._standby = Standby(self._settings.threads, measure=measure)
            self._standby.start()
        return self._standby

    def start(self, epoch: int, keys: CurveKeys) -> None:
        """Start the node of `epoch`, which joins with `keys`. An earlier one is ended first."""
        self.stop()
        settings, timing = self._settings, self._timing
        bootstrap = NodeBootstrap(
            rank=0,
            control_address=settings.control_address,
            master_key=settings.master_key,
            public_key=keys.public,
            secret_key=keys.secret,
            threads=settings.threads,
            heartbeat_s=timing.heartbeat_s,
            timeout_s=timing.timeout_s,
            stall_s=timing.stall_s,
            name=node_name(0, epoch),
            data_address=settings.data_address,
        )
        standby, self._standby = self.warm(), None
        self._child = standby.promote(bootstrap)

    def exit_cause(self) -> str | None:
        """Why it ended; None while it runs or where there is none."""
        return None if self._child is None else self._child.exit_cause()

    def stop(self, grace_s: float = 0.0) -> None:
        """End the node; it has `grace_s` to do so by itself. Idempotent."""
        if self._child is not None:
            self._child.stop(time.monotonic() + grace_s)
            self._child = None

    def close(self) -> None:
        """End what is left."""
        self.stop()
        self._drop_standby()

    def _drop_standby(self) -> None:
        if self._standby is not None:
            self._standby.stop()
            self._standby = None
