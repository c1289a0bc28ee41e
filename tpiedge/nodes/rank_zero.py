"""The master's own node: rank 0 of every epoch, a child process of the master."""

from dataclasses import dataclass

from tpiedge.nodes.bootstrap import NodeBootstrap
from tpiedge.nodes.session import node_name
from tpiedge.nodes.slot import NodeSlot
from tpiedge.nodes.standby import Standby
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
    #: What this machine gives; None: no limit.
    memory_bytes: int | None = None


class RankZero:
    """A slot whose nodes know this machine's addresses. For the control thread alone, as the slot."""

    def __init__(self, settings: RankZeroSettings, timing: Timing) -> None:
        self._settings = settings
        self._timing = timing
        self._slot = NodeSlot(settings.threads, memory_bytes=settings.memory_bytes)

    @property
    def threads(self) -> int:
        return self._slot.threads

    @property
    def pid(self) -> int | None:
        return self._slot.pid

    def warm(self, *, measure: bool = False) -> Standby:
        """The process that `start` will use, started now where it is not yet."""
        return self._slot.warm(measure=measure)

    def warm_ahead(self) -> None:
        """As NodeSlot.warm_ahead."""
        self._slot.warm_ahead()

    def start(self, epoch: int, keys: CurveKeys, planned_bytes: int) -> None:
        """Start the node of `epoch`, which joins with `keys`. An earlier one is ended first. `planned_bytes` as in
        NodeSlot.start."""
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
        self._slot.start(bootstrap, planned_bytes)

    def exit_cause(self) -> str | None:
        """Why it ended; None while it runs or where there is none."""
        return self._slot.exit_cause()

    def stop(self, grace_s: float = 0.0) -> None:
        """End the node; it has `grace_s` to do so by itself. Idempotent."""
        self._slot.stop(grace_s)

    def close(self) -> None:
        """End what is left."""
        self._slot.close()
