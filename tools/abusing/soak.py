"""The phases of a soak, one after the other and then together, and what must be true at the end of each."""

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.process.serving.serving import Serving
from tools.abusing.attack import Attack, Attacker
from tools.abusing.client import REQUESTS, AnswerKind, StreamingClient, StreamRecord, ask, canonical, classify
from tools.abusing.crowds import cancelled, connections, full_queue, requests, slow_readers
from tools.abusing.holdings import ProcessHoldings, Roles, growth, look, memory_growth, settle
from tools.abusing.members import files_bursts, imposter_nodes, imposters
from tools.abusing.target import Target
from tools.abusing.unauthenticated import empty_frames, guesses, junk, silent_callers, silent_peers
from tpiedge.errors import TpiedgeError
from tpiedge.units import KIB, MIB

NODES = 3
#: After an attack: until all is as before. A body that does not come is waited for a minute, and so is a client that
#: has not read its answer.
SETTLE_S = 90.0
#: Until the cluster serves again that a member with a part has broken.
HEALED_S = 120.0
#: What each log may grow by in a phase, and by the minute.
LOG_BYTES, LOG_BYTES_PER_MINUTE = 256 * KIB, 64 * KIB
_WARM_ANSWERS = 6
_POLL_S = 0.2
_TOLD_S = 30.0


class SoakFailure(TpiedgeError):
    """A failure that makes further phases pointless."""


@dataclass(frozen=True)
class Phase:
    """Attacks that run at the same time, each with the size of its crowds; `bears`: what the stream may meet besides
    exact answers."""

    name: str
    attacks: Sequence[tuple[Attack, float]]
    bears: frozenset[AnswerKind] = frozenset()


#: A queue that is full; connections that find no place; an epoch that ends.
_BUSY: frozenset[AnswerKind] = frozenset({"refused"})
_CROWDED: frozenset[AnswerKind] = _BUSY | {"unreachable"}
_BROKEN: frozenset[AnswerKind] = _CROWDED | {"broken off"}

_TOGETHER = (
    (silent_callers, 0.3), (silent_peers, 0.3), (junk, 0.5), (empty_frames, 0.5), (guesses, 0.5),
    (connections, 0.3), (requests, 0.3), (full_queue, 0.1), (slow_readers, 0.3), (cancelled, 0.3),
    (imposters, 0.5), (files_bursts, 0.5),
)  # fmt: skip

PHASES = (
    Phase("silent callers", [(silent_callers, 1.0)]),
    Phase("silent peers", [(silent_peers, 1.0)]),
    Phase("junk", [(junk, 1.0)]),
    Phase("empty frames", [(empty_frames, 1.0)]),
    Phase("guesses", [(guesses, 1.0)]),
    Phase("connections", [(connections, 1.0)], _CROWDED),
    Phase("absurd requests", [(requests, 1.0)], _BUSY),
    Phase("full queue", [(full_queue, 1.0)], _BUSY),
    Phase("slow readers", [(slow_readers, 1.0)]),
    Phase("cancelled", [(cancelled, 1.0)]),
    Phase("imposters", [(imposters, 1.0)]),
    Phase("bursts for files", [(files_bursts, 1.0)]),
    Phase("imposter nodes", [(imposter_nodes, 1.0)], _BROKEN),
    Phase("together", _TOGETHER, _CROWDED),
    Phase("together, with nodes", [*_TOGETHER, (imposter_nodes, 1.0)], _BROKEN),
)


@dataclass
class PhaseRecord:
    """One phase. `counts`: by the attacks; `faults`: broken promises in words."""

    name: str
    seconds: float
    stream: StreamRecord = field(default_factory=StreamRecord)
    counts: Counter[str] = field(default_factory=Counter)
    settle_s: float = 0.0
    faults: list[str] = field(default_factory=list)
    holdings: dict[str, ProcessHoldings] = field(default_factory=dict)


class Soak:
    """`tell` is called with lines of progress. The cluster serves with NODES nodes."""

    def __init__(self, cluster: Serving, target: Target, seed: int, tell: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._target = target
        self._seed = seed
        self._attackers: list[Attacker] = []
        self._tell = tell
        references = {name: self._reference(name) for name in REQUESTS}
        self._references: Mapping[str, bytes] = references
        self.baseline = self._at_rest()
        self.memory: Mapping[str, ProcessHoldings] = {}  #: compared with from the end of the warm-up
        self._client = StreamingClient(target, references)

    def warm_up(self, phases: Iterable[Phase], seconds: float) -> None:
        """A short while of everything: the memory that this needs is kept by the allocator, and no leak. Raises
        SoakFailure."""
        attacks = {attack: (attack, 1.0) for phase in phases for attack, _ in phase.attacks}
        self._tell("a little of everything first, for the memory that is kept afterwards")
        record = self.run(Phase("warm-up", list(attacks.values())), seconds)
        if record.stream.judgements["wrong"]:
            raise SoakFailure(f"wrong during the warm-up: {'; '.join(record.stream.words)}")
        self.memory = look(self._roles)
        held = ", ".join(f"{role} {one.rss / MIB:.0f}" for role, one in self.memory.items())
        self._tell(f"memory is compared with that of now, in MiB: {held}")

    def run(self, phase: Phase, seconds: float) -> PhaseRecord:
        """Abuse for `seconds`, then wait until all is as before. Raises SoakFailure where the cluster has gone."""
        record = PhaseRecord(phase.name, seconds)
        epoch, logs = self._cluster.status()["epoch"], self._logs()
        self._client.resume()
        try:
            self._abuse(phase, record)
        finally:
            self._kill_attackers()
            self._client.pause()
        record.stream = self._client.take()
        unborne = record.stream.judgements.keys() - phase.bears - {"exact"}
        for kind in unborne:
            record.faults.append(f"the stream was {kind}, {record.stream.judgements[kind]} times")
        if unborne:
            record.faults += [f"{count} times {words}" for words, count in record.stream.words.most_common()]
        self._recover(phase, record, epoch)
        record.settle_s, left, record.holdings = settle(
            lambda now: [*growth(self.baseline, now), *memory_growth(self.memory, now)], self._roles, SETTLE_S
        )
        record.faults += [*left, *self._log_growth(logs, seconds)]
        return record

    def close(self) -> None:
        self._kill_attackers()
        self._client.close()

    def _kill_attackers(self) -> None:
        for attacker in self._attackers:
            attacker.kill()
        self._attackers.clear()

    def _abuse(self, phase: Phase, record: PhaseRecord) -> None:
        for place, (attack, size) in enumerate(phase.attacks):
            with _uninterrupted():  # or an attacker might be forgotten
                self._attackers.append(
                    Attacker(attack, self._target, record.seconds, self._seed + place, size)
                )
        told = time.monotonic()
        while any(attacker.runs for attacker in self._attackers):
            self._check_master()
            if time.monotonic() > told + _TOLD_S:
                told = time.monotonic()
                self._tell(f"{phase.name}: goes on")
            time.sleep(_POLL_S)
        for attacker in self._attackers:
            counts, faults = attacker.finish()
            record.counts.update({f"{attacker.name}: {what}": count for what, count in counts.items()})
            record.faults += faults
        self._check_master()

    def _recover(self, phase: Phase, record: PhaseRecord, epoch: int) -> None:
        """A fresh request succeeds without human action."""
        if "broken off" in phase.bears:
            self._cluster.wait_ready(NODES, HEALED_S)
        elif self._cluster.status()["epoch"] != epoch:
            events = self._cluster.picture()["events"][-6:]
            record.faults.append(f"the cluster planned anew: {events}")
            self._cluster.wait_ready(NODES, HEALED_S)
        for name, reference in self._references.items():
            kind, words = classify(ask(self._target, name), reference)
            if kind != "exact":
                record.faults.append(f"afterwards the stream is {kind}: {words}")

    def _reference(self, name: str) -> bytes:
        """The answer without abuse: the same some times in a row."""
        found = set()
        for _ in range(_WARM_ANSWERS):
            heard = ask(self._target, name)
            if heard.status != 200 or not heard.whole or b"[DONE]" not in heard.body:
                raise SoakFailure(f"no answer before any abuse: {heard}")
            found.add(canonical(heard.body))
        if len(found) > 1:
            raise SoakFailure(f"without abuse, {len(found)} answers to the same question ({name})")
        return found.pop()

    def _at_rest(self) -> dict[str, ProcessHoldings]:
        before, deadline = look(self._roles), time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            time.sleep(1.0)
            now = look(self._roles)
            if not growth(before, now):
                return now
            before = now
        raise SoakFailure("the cluster does not come to rest")

    def _roles(self) -> Roles:
        started = {
            "master": self._cluster.master,
            **{name: one.process for name, one in self._cluster.workers.items()},
        }
        roles: dict[str, list[int]] = {}
        for name, process in started.items():
            roles[name] = [process.pid]
            roles[f"{name}'s children"] = [child.pid for child in process.children()]
        return roles

    def _check_master(self) -> None:
        for name, process in (
            ("master", self._cluster.master),
            *((n, w.process) for n, w in self._cluster.workers.items()),
        ):
            status = process.popen.poll()
            if status is not None:
                raise SoakFailure(f"{name} has ended with status {status}:\n{process.log[-2000:]}")

    def _logs(self) -> dict[Path, int]:
        return {path: path.stat().st_size for path in self._cluster.folder.glob("*.log")}

    def _log_growth(self, before: Mapping[Path, int], seconds: float) -> list[str]:
        allowed = LOG_BYTES + LOG_BYTES_PER_MINUTE * seconds / 60
        return [
            f"{path.name} has grown by {(size - before.get(path, 0)) / KIB:.0f} KiB"
            for path, size in self._logs().items()
            if size - before.get(path, 0) > allowed
        ]


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Signals that end the soak come afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
