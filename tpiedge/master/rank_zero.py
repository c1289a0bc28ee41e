"""The master's own node: rank 0 of every epoch, a child process of the master."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tpiedge.clock import Clock
from tpiedge.launch.bootstrap import NodeBootstrap
from tpiedge.launch.memory_offer import LOOK_S, MemoryOffer
from tpiedge.launch.slot import NodeSlot
from tpiedge.launch.standby import Standby
from tpiedge.launch.timing import Timing
from tpiedge.transport.keys import CurveKeys

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RankZeroSettings:
    """The addresses at which the master listens for its nodes and rank 0 for the other nodes."""

    control_address: str
    master_key: str
    data_address: str
    threads: int
    #: As for NodeSlot.
    locker: Path | None = None


class RankZero:
    """A slot whose nodes know this machine's addresses. For the control thread alone, like the slot."""

    def __init__(
        self,
        settings: RankZeroSettings,
        timing: Timing,
        clock: Clock,
        memory: MemoryOffer,
        usable_memory: Callable[[], int],
    ) -> None:
        """`usable_memory` says how many bytes this machine may use now, without waiting."""
        self._settings = settings
        self._timing = timing
        self._clock = clock
        self._memory = memory
        self._usable_memory = usable_memory
        self._weighed = clock.now()  # when it last looked how much memory it may use
        self._slot = NodeSlot(settings.threads, memory_bytes=memory.offered_bytes, locker=settings.locker)

    @property
    def memory_bytes(self) -> int:
        """The memory that this machine gives."""
        return self._memory.offered_bytes

    def weigh(self) -> None:
        """A heartbeat: sometimes looks how much memory this machine may use, and says what has changed."""
        now = self._clock.now()
        if now - self._weighed >= LOOK_S:
            self._weighed = now
            self._gives(self._memory.look(self._usable_memory(), now))

    @property
    def threads(self) -> int:
        return self._slot.threads

    @property
    def pid(self) -> int | None:
        return self._slot.pid

    def insist(self) -> bool:
        """There is no plan with so little of this machine; returns whether it gives more now."""
        before = self.memory_bytes
        self._gives(self._memory.insist(self._usable_memory(), self._clock.now()))
        return self.memory_bytes > before

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
        """Ends the node; blocks up to `grace_s` for it to end by itself. Idempotent. Where it has ended for want of
        memory, the machine may give less from now on."""
        if self._slot.out_of_memory:
            planned, now = self._slot.planned_bytes, self._clock.now()
            self._gives(self._memory.ran_out(planned, self._usable_memory(), now))
        self._slot.stop(grace_s)

    def close(self) -> None:
        """Ends the node and the standby process."""
        self._slot.close()

    def _gives(self, changed: str) -> None:
        if changed:
            _log.warning("%s", changed)
            self._slot.memory_bytes = self._memory.offered_bytes
