"""An attack: a function that abuses the target until its time is over, in a process of its own."""

import multiprocessing
import os
import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess

from tools.abusing.target import Target

# Attacks come over the network: they are not to take the cluster's processors by being on the same computer.
_NICE = 10
#: An attack that does not end by itself is killed, like a laptop that is switched off.
_GRACE_S = 10.0
_FAULTS = 20
_context: ForkServerContext = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tools.abusing.soak"])


class Bout:
    """The time that an attack has, its random numbers, and what it has seen. `size`: of a crowd, 1 at most."""

    def __init__(self, seconds: float, seed: int, size: float = 1.0) -> None:
        self.rng = random.Random(seed)
        self.size = size
        self.counts: Counter[str] = Counter()
        #: What the product did that it must not.
        self.faults: list[str] = []
        self._ends = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return max(0.0, self._ends - time.monotonic())

    def goes_on(self, pause_s: float) -> bool:
        """Wait, and say whether there is time left."""
        time.sleep(min(pause_s, self.left_s))
        return self.left_s > 0

    def fault(self, words: str) -> None:
        if len(self.faults) < _FAULTS:
            self.faults.append(words)


Attack = Callable[[Target, Bout], None]


class Attacker:
    """A process that attacks for `seconds` from its construction on."""

    def __init__(self, attack: Attack, target: Target, seconds: float, seed: int, size: float) -> None:
        self.name = attack.__name__
        self._ends = time.monotonic() + seconds + _GRACE_S
        self._results, theirs = _context.Pipe(duplex=False)
        self._process: ForkServerProcess = _context.Process(
            target=_abuse, args=(attack, target, seconds, seed, size, theirs), name=self.name, daemon=True
        )
        self._process.start()
        theirs.close()

    @property
    def runs(self) -> bool:
        return self._process.is_alive() and not self._results.poll()

    def finish(self) -> tuple[Counter[str], list[str]]:
        """Returns the counts and the faults, after its process has ended."""
        counts, faults = Counter[str](), [f"{self.name}: the attack itself failed"]
        try:
            if self._results.poll(max(0.0, self._ends - time.monotonic())):
                counts, faults = self._results.recv()
            else:
                counts, faults = Counter({"killed": 1}), []
        except EOFError:
            pass
        self.kill()
        return counts, faults

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._results.close()


def _abuse(
    attack: Attack, target: Target, seconds: float, seed: int, size: float, results: Connection
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent ends it
    os.nice(_NICE)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    bout = Bout(seconds, seed, size)
    attack(target, bout)
    results.send((bout.counts, bout.faults))
    # What it holds ends with it, without good-byes.
    os._exit(0)
