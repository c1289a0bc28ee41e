"""Defines collectives as the forward pass sees them: [tokens, hidden] tensors, tagged with their place in a step.

Every rank calls the same collectives in the same order with the same tags. Parts are summed in the order of ranks;
integer sums are exact.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from tpiedge.clock import Clock
from tpiedge.errors import InternalError, PeerLost
from tpiedge.wire.data import SavePages, StepPlan
from tpiedge.wire.fields import CollectiveName, WirePrecision


class Tag(NamedTuple):
    step: int
    block: int
    chunk: int

    def __str__(self) -> str:
        return f"step {self.step}, block {self.block}, chunk {self.chunk}"


@dataclass(frozen=True, slots=True)
class Route:
    """All-reduces of at most `small_bytes` (as f32) go by `small`, larger ones by `bulk`; parts travel as `wire`."""

    small: CollectiveName = "star"
    bulk: CollectiveName = "star"
    small_bytes: int = 0
    wire: WirePrecision = "f32"


class Doing(NamedTuple):
    """The reason for a wait; formatted only when read."""

    operation: str
    place: Tag | str

    def __str__(self) -> str:
        return f"the {self.operation} of {self.place}"


class Liveness(Protocol):
    """Knows whether waiting for a peer still makes sense. Callers ask several times a second."""

    def check(self, rank: int, waiting_for: str) -> None:
        """Raises PeerLost unless `rank` lives and gets on with its work."""
        ...

    def check_idle(self, rank: int, waiting_for: str) -> None:
        """Raises PeerLost unless `rank` lives. Unlike `check`, accepts that the rank makes no progress."""
        ...


class Communicator:
    """The connection of one rank to the others; this class serves a lone node. Calls block, and raise PeerLost and
    ProtocolError; after an error a new epoch needs a new communicator."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        #: Whether rank 0's last all-reduce of this step carried the cancel flag: the same on every rank.
        self.cancelled = False
        self._cancelled_step = 0
        self._begun: dict[Tag, torch.Tensor] = {}

    def announce(self, _plan: StepPlan | SavePages) -> None:
        """Begins a step on rank 0: sends the plan to the other ranks. Clears `cancelled`. Step numbers grow."""
        self.cancelled = False
        self._begun.clear()

    def next_plan(self) -> StepPlan | SavePages:
        """Waits, perhaps for long, for the next plan. Drops messages of earlier steps. Clears `cancelled`."""
        raise InternalError("rank 0 makes the plans")

    def poll(self) -> None:
        """Receives on rank 0 what peers send while no step runs, and notices broken connections."""

    def request_cancel(self, step: int) -> None:
        """Sends the cancel flag with the next all-reduce of `step`. Any thread of rank 0 may call it."""
        self._cancelled_step = step

    def all_reduce(self, partial: torch.Tensor, tag: Tag, *, contributes: bool = True) -> torch.Tensor:
        """Returns the sum over ranks of `partial` (contiguous, [tokens, hidden]), perhaps in `partial`. All ranks give
        f32, or all give integers (`summation.py`). With `contributes=False`, `partial` only gives the shape and the
        kind of numbers."""
        self.cancelled = self._cancelled_step == tag.step
        return partial if contributes else torch.zeros_like(partial)

    def begin_all_reduce(self, partial: torch.Tensor, tag: Tag, *, contributes: bool = True) -> None:
        """Starts an all-reduce that travels while the caller computes. `partial` must not change before
        `finish_all_reduce`. Several all-reduces may be under way, begun in the same order on every rank."""
        self._begun[tag] = partial if contributes else torch.zeros_like(partial)

    def finish_all_reduce(self, tag: Tag) -> torch.Tensor:
        """Returns the sum begun with `tag`, in memory of its own. Sets `cancelled`."""
        self.cancelled = self._cancelled_step == tag.step
        return self._begun.pop(tag)

    def broadcast(self, hidden: torch.Tensor, _tag: Tag) -> torch.Tensor:
        """Returns rank 0's `hidden` (f32 [tokens, hidden]). On other ranks `hidden` only gives the shape."""
        return hidden

    def send_up(self, _part: torch.Tensor, rank: int, _tag: Tag) -> torch.Tensor | None:
        """Sends the part (f32, 2-D) of `rank` (never 0) to rank 0. Returns the part on rank 0, None on others. Rank 0's
        own part only gives the shape. A rank may send as much in advance as PeerChannel holds."""
        raise InternalError(f"there is no rank {rank}")

    def send_down(self, _part: torch.Tensor, rank: int, _tag: Tag) -> torch.Tensor | None:
        """Sends rank 0's part to `rank` (never 0). Returns the part on that rank, None on others. The tag's block has
        no effect."""
        raise InternalError(f"there is no rank {rank}")


class DeadlineLiveness:
    """Lets every wait last `timeout_s`; a new `waiting_for` begins a new wait."""

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
