"""What a node knows about its peers' health: the bound of every wait on the tensor path.

A wait for a peer goes on while the master is heard, the master hears the peer, and the peer's reported progress (step,
block, bytes read) advances. It ends in PeerLost otherwise. The control thread reports, the engine thread asks.
"""

import threading
from dataclasses import dataclass

from tpiedge.clock import Clock
from tpiedge.errors import Cancelled, PeerLost


@dataclass(frozen=True)
class Progress:
    """How far a node is. Any change counts as an advance."""

    step: int
    block: int
    bytes_read: int


class ClusterLiveness:
    """The engine's view of its peers. `timeout_s` bounds silence, `stall_s` bounds a peer that is alive but stuck."""

    def __init__(self, clock: Clock, *, timeout_s: float, stall_s: float) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._master_heard = self._listened = clock.now()
        self._lost: dict[int, str] = {}
        self._progress: dict[int, tuple[Progress, float]] = {}
        self._waits: dict[int, tuple[str, float]] = {}
        self._stopping = False

    def heard_master(self) -> None:
        """Any message of the master arrived."""
        with self._lock:
            self._master_heard = self._listened = self._clock.now()

    def heard_nothing(self) -> None:
        """Nothing of the master is waiting. Only what was listened for can be missed: silence grows by these calls."""
        with self._lock:
            self._listened = self._clock.now()

    def report(self, rank: int, progress: Progress) -> None:
        """The master passed on how far the node `rank` is."""
        with self._lock:
            known = self._progress.get(rank)
            if known is None or known[0] != progress:
                self._progress[rank] = (progress, self._clock.now())

    def lose(self, rank: int, cause: str) -> None:
        """The master declared the node `rank` lost; the first cause stays."""
        with self._lock:
            self._lost.setdefault(rank, cause)

    def stop(self) -> None:
        """The node is shutting down: every wait ends."""
        with self._lock:
            self._stopping = True

    def check(self, rank: int, waiting_for: str) -> None:
        """Return if the wait for `rank` still makes sense; raises PeerLost (or Cancelled at shutdown) if not.

        Called again and again during one wait, with the same `waiting_for`. The peer's progress counts from the first
        of these calls on, because a peer may have been idle for hours before.
        """
        with self._lock:
            now = self._clock.now()
            known = self._waits.get(rank)
            if known is None or known[0] != waiting_for:
                known = self._waits[rank] = (waiting_for, now)
            self._check_alive(rank, waiting_for)
            advanced = self._progress[rank][1] if rank in self._progress else now
            stuck_s = now - max(advanced, known[1])
            if stuck_s > self._stall_s:
                raise PeerLost(rank, waiting_for, f"alive but without progress for {stuck_s:.0f} s")

    def check_idle(self, rank: int, waiting_for: str) -> None:
        """As `check` for a wait that may last for ever while the cluster has nothing to do."""
        with self._lock:
            self._check_alive(rank, waiting_for)

    def _check_alive(self, rank: int, waiting_for: str) -> None:
        if self._stopping:
            raise Cancelled(f"the node stops during {waiting_for}")
        for lost, cause in self._lost.items():
            raise PeerLost(lost, waiting_for, cause)
        silent_s = self._listened - self._master_heard
        if silent_s > self._timeout_s:
            raise PeerLost(rank, waiting_for, f"the master has been silent for {silent_s:.1f} s")
