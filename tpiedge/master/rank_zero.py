"""The master's own node: rank 0 of every epoch, a child process of the master."""

from dataclasses import dataclass
from pathlib import Path

from tpiedge.launch.bootstrap import NodeBootstrap
from tpiedge.launch.slot import NodeSlot
from tpiedge.launch.standby import Standby
from tpiedge.launch.timing import Timing
from tpiedge.transport.keys import CurveKeys

__all__ = ["RankZero", "RankZeroSettings"]


@dataclass(frozen=True)
class RankZeroSettings:
    """The addresses at which the master listens for its nodes and rank 0 for the other nodes."""

    control_address: str
    master_key: str
    data_address: str
    threads: int
    #: The memory that this machine gives; None: no limit.
    memory_bytes: int | None = None
    #: As for NodeSlot.
    locker: Path | None = None


class RankZero:
    """A slot whose nodes know this machine's addresses. For the control thread alone, like the slot."""

    def __init__(self, settings: RankZeroSettings, timing: Timing) -> None:
        self._settings = settings
        self._timing = timing
        self._slot = NodeSlot(settings.threads, memory_bytes=settings.memory_bytes, locker=settings.locker)

    @property
    def threads(self) -> int:
        return self._slot.threads

    @property
    def pid(self) -> int | None:
        return self._slot.pid

    def warm(self, *, measure: bool = False) -> Standby:
        """Starts the process that `start` will use, unless it runs already. Raises as NodeSlot.warm."""
        return self._slot.warm(measure=measure)

    def warm_ahead(self) -> None:
        """See NodeSlot.warm_ahead."""
        self._slot.warm_ahead()

    def start(self, epoch: int, keys: CurveKeys, planned_bytes: int) -> None:
        """Starts the node of `epoch`, which joins with `keys`; an earlier node is ended first.

        `planned_bytes` and errors are as in NodeSlot.start.
        """
        at = self._settings
        bootstrap = NodeBootstrap.of(
            0, epoch, at.control_address, at.master_key, keys, at.threads, self._timing, at.data_address
        )
        self._slot.start(bootstrap, planned_bytes)

    def exit_cause(self) -> str | None:
        """Why the node ended; None while it runs, or if there is none."""
        return self._slot.exit_cause()

    def stop(self, grace_s: float = 0.0) -> None:
        """Ends the node; blocks up to `grace_s` for it to end by itself. Idempotent."""
        self._slot.stop(grace_s)

    def close(self) -> None:
        """Ends the node and the standby process."""
        self._slot.close()
