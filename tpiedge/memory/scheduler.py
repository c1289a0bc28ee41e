"""The memory scheduler keeps the weights coming.

The engine thread enters and leaves blocks, reading threads report what has arrived; either makes the residency
machine decide, and carries out what it decided, under one lock (TPI-LLM, section 3.3).
"""

import functools
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
    on. After `close` no read begins; those under way are the loader's to end."""

    def __init__(self, residency: Residency, loader: PieceLoader, *, stall_s: float = 60.0) -> None:
        """`stall_s`: how long something is waited for while the disk brings nothing."""
        self.counts = Counts()
        self._residency = residency
        self._loader = loader
        self._stall_s = stall_s
        self._changed = threading.Condition()
        self._failure: TpiedgeError | None = None
        self._closing = False
        self._under_way = 0
        self._busy_since = 0.0
        self._tracer: EventSink | None = None
        self._labels: Sequence[tuple[int, int]] = ()

    def trace(self, tracer: EventSink | None, labels: Sequence[tuple[int, int]] = ()) -> None:
        """From now on, record when a block is waited for; without a tracer, do not any more. `labels`: of each block,
        its name and its layer."""
        self._tracer, self._labels = tracer, labels

    def enter(self, block: int) -> None:
        """Return once the block is in memory, where it stays until `leave`. Raises what made a read fail; then the
        block is not entered."""
        with self._changed:
            self._carry_out(self._residency.enter(block))
            try:
                if self._residency.ready(block) and self._failure is None:
                    self.counts.hits += self._residency.streams(block)
                    return
                started = time.perf_counter()
                self._await(lambda: self._residency.ready(block))
            except BaseException:
                self._carry_out(self._residency.leave())
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
            self._carry_out(self._residency.leave())

    def repin(self, pinned: Set[int]) -> None:
        """As Residency.repin."""
        with self._changed:
            self._carry_out(self._residency.repin(pinned))

    def place(self, piece: int) -> int | None:
        """As Residency.place."""
        with self._changed:
            return self._residency.place(piece)

    def settle(self, progress: Callable[[], None]) -> None:
        """Return once everything is read that can be read ahead, with the counts at zero; `progress` is called
        meanwhile. Raises as `enter`."""
        with self._changed:
            self._carry_out(self._residency.start())
            self._await(lambda: self._residency.idle, progress)
            self.counts = Counts()

    def close(self) -> None:
        """Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

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

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        try:
            for instruction in instructions if not self._closing else ():
                match instruction:
                    case Drop(piece=piece):
                        self._loader.drop(piece)
                    case ReleasePages():
                        self._loader.release()
                    case Read(ticket=ticket):
                        if not self._under_way:
                            self._busy_since = time.perf_counter()
                        self._under_way += 1
                        self._loader.read(instruction, functools.partial(self._arrived, ticket))
        except (OSError, RuntimeError) as failure:  # no room for another thread, or for its pages
            raise _failed(failure) from failure

    def _arrived(self, ticket: int, error: TpiedgeError | None) -> None:
        """Called by reading threads."""
        with self._changed:
            try:
                if error is not None:
                    raise error
                now = time.perf_counter()
                self.counts.reads += 1
                self.counts.load_s += now - self._busy_since  # a disk that never rests is counted as it goes
                self._busy_since = now
                self._under_way -= 1
                self._carry_out(self._residency.loaded(ticket))
            except TpiedgeError as failure:
                self._failure = self._failure or failure  # the first is the cause of the others
            except Exception as failure:  # would be lost in this thread otherwise
                self._failure = self._failure or _failed(failure)
            self._changed.notify_all()


def _failed(error: Exception) -> InternalError:
    return InternalError(f"the memory scheduler failed: {type(error).__name__}: {error}")
