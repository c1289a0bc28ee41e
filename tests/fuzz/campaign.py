"""Many inputs for one parser, in child processes: what kills or hangs one is a finding, too."""

import mmap
import multiprocessing
import os
import signal
import struct
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from multiprocessing.context import ForkProcess
from pathlib import Path

from tests.fuzz.examination import Examiner, Finding
from tests.fuzz.mutation import MAX_BYTES, Mutator
from tests.fuzz.parsers import PARSERS

_HEADER = struct.Struct("<QQQ")  # inputs done, inputs that were read, length of the one in hand
_HANGS_AFTER_S = 60.0
_POLL_S = 0.2
_LAST_WORDS = 2000
_MOST_WORDS = 1 << 20
_FORK = multiprocessing.get_context("fork")


@dataclass
class Report:
    """`findings`: kind -> the smallest input. `accepted`: inputs that were in order."""

    inputs: int = 0
    accepted: int = 0
    seconds: float = 0.0
    findings: dict[str, Path] = field(default_factory=dict)


@dataclass
class _Worker:
    process: ForkProcess
    shared: mmap.mmap
    count: int
    at: str
    #: What it writes to stderr.
    words: Path
    done: int = 0
    advanced: float = field(default_factory=time.monotonic)

    def look(self) -> tuple[int, int, bytes]:
        """(inputs done, accepted, the input in hand)."""
        done, accepted, length = _HEADER.unpack_from(self.shared)
        return done, accepted, self.shared[_HEADER.size : _HEADER.size + length]

    def last_words(self) -> str:
        return self.words.read_bytes()[-_LAST_WORDS:].decode(errors="replace") if self.words.exists() else ""


class Campaign:
    """A campaign against one parser; it writes findings to `folder`."""

    def __init__(self, name: str, seed: int, folder: Path) -> None:
        self._parser = PARSERS[name]
        self._seed = seed
        self._folder = folder
        self._began = time.time()
        # Of this process: those that try the inputs may be killed.
        self._scratch = tempfile.TemporaryDirectory(dir=_memory_folder())

    def run(self, inputs: int, jobs: int = 1, until: Callable[[], bool] = lambda: False) -> Report:
        """Ends early once `until` says so."""
        report, began = Report(), time.monotonic()
        shares = [inputs // jobs + (at < inputs % jobs) for at in range(jobs)]
        workers = [self._start(count, str(at)) for at, count in enumerate(shares)]
        try:
            while workers:
                time.sleep(_POLL_S)
                workers = [after for one in workers if (after := self._watched(one, report))]
                if until():
                    for worker in workers:
                        report.inputs += worker.look()[0]
                        report.accepted += worker.look()[1]
                    break
        finally:
            for worker in workers:
                worker.process.kill()
                worker.process.join()
            self._scratch.cleanup()
        self._collect(report)
        report.seconds = time.monotonic() - began
        return report

    def replay(self, files: list[Path]) -> Report:
        """The inputs in `files`, each once, together in one process."""
        datas = [path.read_bytes() for path in files]
        worker = self._start(len(datas), "0", datas)
        report, left = Report(), worker
        while left := self._watched(left, report, restart=False):
            time.sleep(_POLL_S)
        self._scratch.cleanup()
        self._collect(report)
        return report

    def _start(self, count: int, at: str, datas: list[bytes] | None = None) -> _Worker:
        shared = mmap.mmap(-1, _HEADER.size + 2 * MAX_BYTES)
        words = Path(self._scratch.name) / f"stderr.{at}"
        process = _FORK.Process(target=self._work, args=(count, at, shared, datas, words))
        process.start()
        return _Worker(process, shared, count, at, words)

    def _watched(self, worker: _Worker, report: Report, restart: bool = True) -> _Worker | None:
        """The worker that goes on; None where all is done."""
        done, accepted, data = worker.look()
        if done != worker.done:
            worker.done, worker.advanced = done, time.monotonic()
        if worker.process.is_alive():
            if time.monotonic() - worker.advanced < _HANGS_AFTER_S:
                return worker
            worker.process.kill()
            self._note(Finding(f"no end within {_HANGS_AFTER_S:g} s", ""), data)
        worker.process.join()
        done, accepted, data = worker.look()
        report.inputs += done
        report.accepted += accepted
        status = worker.process.exitcode
        if status == 0:
            return None
        if not done and not data:
            raise RuntimeError(f"{self._parser.name}: no input could be tried")
        if status != -signal.SIGKILL:
            self._note(Finding(f"the process ended with {status}", worker.last_words()), data)
        left = worker.count - done - 1
        report.inputs += 1
        return self._start(left, _successor(worker.at)) if restart and left > 0 else None

    def _work(self, count: int, at: str, shared: mmap.mmap, datas: list[bytes] | None, words: Path) -> None:
        """Runs in the child."""
        try:
            self._try(count, at, shared, datas, words)
        except Exception:
            self._note(Finding("the fuzzer failed", traceback.format_exc()), b"")
            raise

    def _try(self, count: int, at: str, shared: mmap.mmap, datas: list[bytes] | None, words: Path) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with tempfile.TemporaryDirectory(dir=self._scratch.name) as scratch:
            examiner = Examiner(self._parser, Path(scratch))
            mutator = Mutator(
                self._parser.first(),
                self._parser.words,
                self._parser.form,
                (self._seed, self._parser.name, at),
            )
            os.dup2(os.open(words, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)  # a panic of Rust says so
            os.environ["RUST_BACKTRACE"] = (
                "0"  # looking at its stack can need more memory than the limit, and then hangs
            )
            accepted, given = 0, self._parser.first() if datas is None else datas
            for done in range(count):
                data = given[done] if done < len(given) else mutator.make()
                shared[_HEADER.size : _HEADER.size + len(data)] = data
                _HEADER.pack_into(shared, 0, done, accepted, len(data))
                if os.fstat(2).st_size > _MOST_WORDS:
                    os.truncate(words, 0)
                finding, new = examiner.examine(data)
                if finding is not None:
                    self._note(finding, data)
                elif new and done >= len(given):
                    mutator.keep(data)
                accepted += examiner.accepted
                _HEADER.pack_into(shared, 0, done + 1, accepted, 0)

    def _note(self, finding: Finding, data: bytes) -> None:
        """Keeps the smallest input of each kind."""
        self._folder.mkdir(parents=True, exist_ok=True)
        mark = sha256(finding.kind.encode()).hexdigest()[:10]
        path = self._folder / f"{self._parser.name}-{mark}"
        if not path.exists() or path.stat().st_size > len(data):
            path.write_bytes(data)
            path.with_suffix(".txt").write_text(
                f"{finding.kind}\n{finding.details}\n", errors="backslashreplace"
            )

    def _collect(self, report: Report) -> None:
        for path in sorted(self._folder.glob(f"{self._parser.name}-*.txt")):
            if path.stat().st_mtime < self._began - 1:
                continue  # of an earlier run
            report.findings[path.read_text().partition("\n")[0]] = path.with_suffix("")


def _successor(at: str) -> str:
    """Returns the name of the next worker: a name stands for its inputs, the same in every run."""
    place, _, number = at.partition("+")
    return f"{place}+{int(number or 0) + 1}"


def _memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
