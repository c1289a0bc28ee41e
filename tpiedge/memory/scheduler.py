"""Carries out a Residency's decisions under one lock, and lets the engine wait for weights. The engine thread enters
and leaves blocks. Reading threads report arrivals."""

import functools
import threading
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from tpiedge.errors import InternalError, ResourceError, TpiedgeError
from tpiedge.memory.loader import PieceLoader
from tpiedge.memory.residency import Drop, Instruction, Read, Residency
from tpiedge.memory.sweep import Block
from tpiedge.tracing.tracer import WAIT, EventSink


@dataclass(slots=True)
class Counts:
    #: Streamed blocks that were read ahead.
    hits: int = 0
    #: Streamed blocks that were waited for.
    stalls: int = 0
    stall_s: float = 0.0
    #: Pieces read.
    reads: int = 0


class Scheduler:
    """Carries out a Residency's instructions. After a failed read, `enter` always raises. `tracer` records waits."""

    def __init__(
        self,
        residency: Residency,
        loader: PieceLoader,
        blocks: Sequence[Block] = (),
        *,
        stall_s: float = 60.0,
    ) -> None:
        """`stall_s` limits a wait while the disk brings no bytes."""
        self.counts = Counts()
        self.loader = loader
        self.tracer: EventSink | None = None
        self._residency = residency
        self._blocks = blocks
        self._stall_s = stall_s
        self._changed = threading.Condition()
        self._failure: TpiedgeError | None = None
        self._closing = False

    def enter(self, block: int) -> Sequence[int | None]:
        """Waits until the block is ready, and keeps it until `leave`. Returns `Residency.places`. Raises a read's
        error, or ResourceError after `stall_s`."""
        with self._changed:
            self._carry_out(self._residency.enter(block))
            try:
                places = self._residency.places(block)
                if places is not None and self._failure is None:
                    self.counts.hits += any(place is not None for place in places)
                    return places
                started = time.perf_counter()
                self._await(lambda: self._residency.places(block) is not None)
            except BaseException:
                self._carry_out(self._residency.leave())
                raise
            ended = time.perf_counter()
            self.counts.stalls += 1
            self.counts.stall_s += ended - started
            if self.tracer is not None:
                waited = self._blocks[block]
                layer = -1 if waited.kind == "head" else waited.layer
                self.tracer.add(WAIT, self.tracer.name(waited.kind), started, ended, layer)
            places = self._residency.places(block)
            assert places is not None  # as the wait ended
            return places

    def leave(self) -> None:
        with self._changed:
            self._carry_out(self._residency.leave())

    def repin(self, pinned: Set[int]) -> None:
        with self._changed:
            self._carry_out(self._residency.repin(pinned))

    def preload(self, progress: Callable[[], None]) -> None:
        """Waits until nothing more can be read ahead, and calls `progress` meanwhile. Raises as `enter` does."""
        with self._changed:
            self._carry_out(self._residency.start())
            self._await(lambda: self._residency.idle, progress)
            self.counts = Counts()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _await(self, reached: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
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
            if self.loader.bytes_read != seen:
                seen, since = self.loader.bytes_read, now
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
                        self.loader.drop(piece)
                    case Read(ticket=ticket):
                        self.loader.read(instruction, functools.partial(self._arrived, ticket))
        except (OSError, RuntimeError) as failure:  # no room for another thread, or for its pages
            raise _failed(failure) from failure

    def _arrived(self, ticket: int, error: Exception | None) -> None:
        with self._changed:
            if self._closing:
                return
            try:
                if error is not None:
                    raise error
                self.counts.reads += 1
                self._carry_out(self._residency.loaded(ticket))
            except TpiedgeError as failure:
                self._failure = self._failure or failure  # the first is the cause of the others
            except Exception as failure:  # would be lost in this thread otherwise
                self._failure = self._failure or _failed(failure)
            self._changed.notify_all()


def _failed(error: Exception) -> InternalError:
    return InternalError(f"the memory scheduler failed: {type(error).__name__}: {error}")
