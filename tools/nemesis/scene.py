"""Victims drawn from a seed, and what is to be mended later."""

import contextlib
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager

import psutil

from tests.process.serving.machines import Worker
from tools.nemesis.breaking import Breaks
from tools.nemesis.stage import Stage

#: From, to.
Seconds = tuple[float, float]

_AWAY_S: Seconds = (0.0, 5.0)
#: An agent may end, in words, so long after a fault of its machine.
_AFTERMATH_S = 30.0


class Scene:
    """Everything is a function of the seed but the instants."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.cluster = stage.cluster
        self.draws = random.Random(seed)
        #: Agents that ended by themselves, in words; and those for which no fault of their machine was the reason.
        self.ended: list[str] = []
        self.unexplained: list[str] = []
        #: When, by the monotonic clock, and what broke or was mended.
        self.changes: list[tuple[float, str]] = [(time.monotonic(), "nothing")]
        self.breaks = Breaks(seed)
        self._due: list[tuple[float, str, Callable[[], object]]] = []
        self._away: set[str] = set()  # workers without an agent, or that stand still
        self._broken: set[tuple[str, str]] = set()  # kind, machine
        self._explained_until: dict[str, float] = {}

    # --- time

    def wait(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.mend()
            time.sleep(0.02)

    def mend(self, *, everything: bool = False) -> None:
        """Mends what is due, or `everything`, and restarts agents that have ended by themselves."""
        self._look_after_agents()
        now = time.monotonic()
        for one in sorted(self._due, key=lambda due: due[0]):
            due, name, act = one
            if everything or due <= now:
                self._due.remove(one)
                self.changes.append((time.monotonic(), name))
                act()

    def later(self, seconds: Seconds, name: str, act: Callable[[], object]) -> None:
        """Some time from now on."""
        self._due.append((time.monotonic() + self.draws.uniform(*seconds), name, act))

    # --- who

    def worker(self, among: Collection[str] | None = None) -> Worker | None:
        """Returns one that is not away, of all or `among` these names."""
        names = self.cluster.workers if among is None else among
        there = [worker for name, worker in self.cluster.workers.items() if name in names]
        there = [worker for worker in there if worker.name not in self._away]
        return self.draws.choice(there) if there else None

    def node(self, among: Collection[str] | None = None) -> psutil.Process | None:
        worker = self.worker(among)
        children = worker.agent.children(recursive=True) if worker is not None else []
        return self.draws.choice(children) if children else None

    def rank_zero(self) -> psutil.Process | None:
        """Returns None between two epochs, and while the master is away."""
        if self.cluster.master.popen.poll() is not None:
            return None
        pid = self.cluster.node("master")["pid"]
        return psutil.Process(pid) if pid is not None else None

    # --- what lasts for a while

    def stand_still(self, processes: Sequence[psutil.Process], seconds: Seconds, name: str = "") -> None:
        """`name`: of the worker that stands still with all of them."""
        for process in processes:
            process.suspend()
        self._away.add(name)

        def go_on() -> None:
            self._away.discard(name)
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()

        self.later(seconds, "moves again", go_on)

    def come_back(self, worker: Worker) -> None:
        self._away.add(worker.name)

        def start() -> None:
            self._away.discard(worker.name)
            self.stage.start_worker(worker.name, token=False)

        self.later(_AWAY_S, "agent started", start)

    def restart_master(self, seconds: Seconds) -> bool:
        """Killed, and started after so long. False while it is away already."""
        if self.cluster.master.popen.poll() is not None:
            return False
        self.cluster.master.popen.kill()
        self.cluster.master.wait()
        self.later(seconds, "master started", lambda: self.cluster.start_master(wait=False))
        return True

    def end_later(self, worker: Worker, seconds: Seconds) -> None:
        """Ends an extra worker after `seconds`; nothing else happens to it."""
        self._away.add(worker.name)

        def leave() -> None:
            worker.process.end()
            self._away.discard(worker.name)
            del self.cluster.workers[worker.name]

        self.later(seconds, "extra worker left", leave)

    def break_one(
        self,
        kind: str,
        machines: Iterable[str],
        fault: Callable[[str], AbstractContextManager[None]],
        seconds: Seconds,
    ) -> bool:
        """Breaks one of the `machines` that has no fault of this `kind`, for a while. Returns False without one, or if
        the system refuses."""
        free = [name for name in machines if (kind, name) not in self._broken]
        if not free:
            return False
        name = self.draws.choice(free)
        stack = contextlib.ExitStack()
        try:
            stack.enter_context(fault(name))
        except OSError:
            return False
        self._broken.add((kind, name))

        def mend() -> None:
            stack.close()
            self._broken.discard((kind, name))
            self._explained_until[name] = time.monotonic() + _AFTERMATH_S

        self.later(seconds, f"{kind} mended", mend)
        return True

    def _look_after_agents(self) -> None:
        for name in self.stage.names:
            worker = self.cluster.workers[name]
            if name in self._away or worker.process.popen.poll() is None:
                continue
            last = (worker.log.splitlines() or [""])[-1]
            words = f"{name} ended with {worker.process.popen.returncode}: {last}"
            self.ended.append(words)
            broken = any(machine == name for _, machine in self._broken)
            if not broken and time.monotonic() > self._explained_until.get(name, 0.0):
                self.unexplained.append(words)
            self.come_back(worker)
