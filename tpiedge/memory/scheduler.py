"""The memory scheduler: the daemon thread that keeps the weights coming, and what the engine thread sees of it.

The engine thread enters and leaves blocks, reading threads report what has arrived; either makes the residency
machine decide, under one lock, and the daemon thread carries out what it decided (TPI-LLM, section 3.3).
"""

import threading
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from tpiedge.errors import InternalError, ResourceError, TpiedgeError
from tpiedge.memory.loader import PieceLoader
from tpiedge.memory.residency import Drop, Instruction, Read, ReleasePages, Residency
from tpiedge.tracing.tracer import WAIT, EventSink


@dataclass(slots=True)
class Counts:
    """`hits`: blocks that were there when they were entered because they were read ahead (those that are pinned are not
    counted); `stalls`: those that were waited for, `stall_s` in all; `reads` of pieces, and `load_s`, while at least
    one was under way."""

    hits: int = 0
    stalls: int = 0
    stall_s: float = 0.0
    reads: int = 0
    load_s: float = 0.0


class Scheduler:
    """`enter` and `leave` are the engine thread's. The first failed read is raised there, by every `enter` from then
    on. `close` ends the daemon thread; reads under way are the loader's to end, after it."""

    def __init__(self, residency: Residency, loader: PieceLoader, *, stall_s: float = 60.0) -> None:
        """`stall_s`: how long something is waited for while the disk brings nothing."""
        self.counts = Counts()
        self._residency = residency
        self._loader = loader
        self._stall_s = stall_s
        self._changed = threading.Condition()
        self._todo: list[Instruction] = residency.start()
        self._failure: TpiedgeError | None = None
        self._closing = False
        self._under_way = 0
        self._busy_since = 0.0
        self._tracer: EventSink | None = None
        self._labels: Sequence[tuple[int, int]] = ()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self._thread.start()

    def trace(self, tracer: EventSink | None, labels: Sequence[tuple[int, int]] = ()) -> None:
        """From now on, record when a block is waited for; without a tracer, do not any more. `labels`: of each block,
        its name and its layer."""
        self._tracer, self._labels = tracer, labels

    def enter(self, block: int) -> None:
        """Return once the block is in memory, where it stays until `leave`. Raises what made a read fail; then the
        block is not entered."""
        with self._changed:
            self._plan(self._residency.enter(block))
            try:
                if self._residency.ready(block) and self._failure is None:
                    self.counts.hits += self._residency.streams(block)
                    return
                started = time.perf_counter()
                self._await(lambda: self._residency.ready(block))
            except BaseException:
                self._plan(self._residency.leave())
                raise
            ended = time.perf_counter()
            self.counts.stalls += 1
            self.counts.stall_s += ended - started
            if self._tracer is not None:
                name, layer = self._labels[block]
                self._tracer.add(WAIT, name, started, ended, layer)

    def leave(self) -> None:
        """The block that was entered may go."""
        with self._changed:
            self._plan(self._residency.leave())

    def repin(self, pinned: Set[int]) -> None:
        """As Residency.repin."""
        with self._changed:
            self._plan(self._residency.repin(pinned))

    def place(self, piece: int) -> int | None:
        """As Residency.place."""
        with self._changed:
            return self._residency.place(piece)

    def settle(self, progress: Callable[[], None]) -> None:
        """Return once everything is read that can be read ahead, with the counts at zero; `progress` is called
        meanwhile. Raises as `enter`."""
        with self._changed:
            self._await(lambda: self._residency.idle and not self._todo, progress)
            self.counts = Counts()

    def close(self) -> None:
        """Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _await(self, reached: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Raises what made a read fail, and ResourceError where the disk has brought nothing for so long."""
        seen, since = -1, 0.0
        while True:
            meanwhile()
            if self._failure is not None:
                raise self._failure
            if self._closing:
                raise InternalError("the weights were closed while they were waited for")
            if reached():
                return
            now = time.monotonic()
            if self._loader.bytes_read != seen:
                seen, since = self._loader.bytes_read, now
            elif now - since > self._stall_s:
                raise ResourceError(
                    f"the disk brought nothing for {self._stall_s:.0f} s: is it broken, or gone?"
                )
            self._changed.wait(0.5)

    def _plan(self, instructions: list[Instruction]) -> None:
        if instructions:
            self._todo += instructions
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._todo and not self._closing:
                    self._changed.wait(0.5)
                if self._closing:
                    return
                todo, self._todo = self._todo, []
            try:
                for instruction in todo:
                    match instruction:
                        case Drop(piece=piece):
                            self._loader.drop(piece)
                        case ReleasePages():
                            self._loader.release()
                        case Read():
                            self._read(instruction)
            except Exception as error:  # would be lost in this thread otherwise
                self._fail(InternalError(f"the memory scheduler failed: {type(error).__name__}: {error}"))
                return

    def _read(self, order: Read) -> None:
        with self._changed:
            if not self._under_way:
                self._busy_since = time.perf_counter()
            self._under_way += 1
        self._loader.read(order, lambda error: self._arrived(order.ticket, error))

    def _arrived(self, ticket: int, error: TpiedgeError | None) -> None:
        """Called by reading threads."""
        if error is not None:
            self._fail(error)
            return
        with self._changed:
            now = time.perf_counter()
            self.counts.reads += 1
            self.counts.load_s += now - self._busy_since  # a disk that never rests is counted as it goes
            self._busy_since = now
            self._under_way -= 1
            self._todo += self._residency.loaded(ticket)
            self._changed.notify_all()

    def _fail(self, error: TpiedgeError) -> None:
        """The first failure is the cause of the others."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
