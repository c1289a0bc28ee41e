"""Collectives as the forward pass sees them.

Every rank calls the same collectives in the same order with the same tags. Parts are summed in the order of ranks.
Integer sums are exact.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from tpiedge.clock import Clock
from tpiedge.errors import InternalError, PeerLost
from tpiedge.wire.data import PageOrders, StepPlan
from tpiedge.wire.fields import CollectiveName, WirePrecision


class Tag(NamedTuple):
    """A place in a step. `choices`: as in BlockMessage."""

    step: int
    block: int
    chunk: int
    choices: int = 0

    @property
    def place(self) -> tuple[int, int, int]:
        return self.step, self.block, self.chunk

    def __str__(self) -> str:
        return f"step {self.step}, block {self.block}, chunk {self.chunk}"


@dataclass(frozen=True, slots=True)
class Route:
    """A step's collectives. All-reduces up to `small_bytes`, counted as f32, use `small`. Larger ones use `bulk`."""

    small: CollectiveName = "star"
    bulk: CollectiveName = "star"
    small_bytes: int = 0
    wire: WirePrecision = "f32"


class Doing(NamedTuple):
    """Names an operation that waits, for error messages."""

    operation: str
    place: Tag | str

    def __str__(self) -> str:
        return f"the {self.operation} of {self.place}"


class Liveness(Protocol):
    """Knows whether waiting for a peer still makes sense."""

    def check(self, rank: int, waiting_for: str) -> None:
        """Raises PeerLost unless `rank` lives and makes progress."""
        ...

    def check_idle(self, rank: int, waiting_for: str) -> None:
        """Raises PeerLost unless `rank` lives."""
        ...


class Communicator:
    """The connection of one rank to the other ranks. This base class serves a lone node. After an error (PeerLost,
    ProtocolError) a new epoch needs a new communicator. Calls block."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        #: Whether rank 0's last all-reduce of this step carried the cancel flag: the same on every rank.
        self.cancelled = False
        self._cancelled_step = 0
        self._begun: dict[Tag, torch.Tensor] = {}

    def announce(self, _plan: StepPlan | PageOrders) -> None:
        """Sends rank 0's plan to the other ranks. Clears `cancelled`. Step numbers must grow."""
        self.cancelled = False
        self._begun.clear()

    def next_plan(self) -> StepPlan | PageOrders:
        """Waits for the next plan, without a time limit. Clears `cancelled`."""
        raise InternalError("rank 0 makes the plans")

    def poll(self) -> None:
        """Receives the messages that wait at rank 0 between steps. Notices broken connections."""

    def request_cancel(self, step: int) -> None:
        """Sends the cancel flag with the next all-reduce of `step`. Thread-safe."""
        self._cancelled_step = step

    def all_reduce(self, partial: torch.Tensor, tag: Tag, *, contributes: bool = True) -> torch.Tensor:
        """Returns the sum over ranks. The sum may overwrite `partial` (contiguous, [tokens, hidden]). All ranks give
        f32, or all ranks give integers. With `contributes=False`, `partial` gives only its shape and its kind of
        numbers."""
        self.cancelled = self._cancelled_step == tag.step
        return partial if contributes else torch.zeros_like(partial)

    def begin_all_reduce(self, partial: torch.Tensor, tag: Tag, *, contributes: bool = True) -> None:
        """Starts an all-reduce. `partial` must not change before `finish_all_reduce`."""
        self._begun[tag] = partial if contributes else torch.zeros_like(partial)

    def finish_all_reduce(self, tag: Tag) -> torch.Tensor:
        """Returns the sum, in new memory. Sets `cancelled`."""
        self.cancelled = self._cancelled_step == tag.step
        return self._begun.pop(tag)

    def broadcast(self, hidden: torch.Tensor, _tag: Tag) -> torch.Tensor:
        """Returns rank 0's `hidden` (f32 [tokens, hidden]). Other ranks' `hidden` gives only the shape."""
        return hidden

    def send_up(self, _part: torch.Tensor, rank: int, _tag: Tag) -> torch.Tensor | None:
        """Sends a part (f32, 2-D) from `rank` to rank 0. Returns it on rank 0, else None. Rank 0's `_part` gives the
        shape."""
        raise InternalError(f"there is no rank {rank}")

    def send_down(self, _part: torch.Tensor, rank: int, _tag: Tag) -> torch.Tensor | None:
        """Sends a part from rank 0 to `rank`. Returns it on `rank`, else None."""
        raise InternalError(f"there is no rank {rank}")


class DeadlineLiveness:
    """Limits every wait to `timeout_s`. A new `waiting_for` begins a new wait."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._wait: tuple[str, float] = ("", 0.0)

    def check(self, rank: int, waiting_for: str) -> None:
        now = self._clock.now()
        if self._wait[0] != waiting_for:
            self._wait = (waiting_for, now)
        if now - self._wait[1] > self._timeout_s:
            raise PeerLost(rank, waiting_for, f"no answer for {self._timeout_s:.1f} s")

    def check_idle(self, _rank: int, _waiting_for: str) -> None:
        self._wait = ("", 0.0)
