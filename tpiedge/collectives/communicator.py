"""Collectives as the forward pass sees them: [tokens, hidden] tensors, tagged with their place in a step.

Every rank calls the same collectives in the same order with the same tags. The order of summation is the
order of ranks, ((p0 + p1) + p2) + ..., so a run is reproducible bit for bit. Sums of integers are exact: they have the
same bits for every split and by every collective.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from tpiedge.clock import Clock
from tpiedge.errors import InternalError, PeerLost
from tpiedge.wire.data import LeavePages, StepPlan
from tpiedge.wire.fields import CollectiveName, WirePrecision


class Tag(NamedTuple):
    """Which collective: the chunk `chunk` of block `block` of step `step`."""

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
    """What a wait is for. It becomes text only when it is read: nearly every wait ends before."""

    operation: str
    place: Tag | str

    def __str__(self) -> str:
        return f"the {self.operation} of {self.place}"


class Liveness(Protocol):
    """Knows whether waiting for a peer still makes sense; asked several times a second."""

    def check(self, rank: int, waiting_for: str) -> None:
        """Return while `rank` lives and gets on with its work; raise PeerLost otherwise."""
        ...

    def check_idle(self, rank: int, waiting_for: str) -> None:
        """As `check` where `rank` has nothing to do, for however long."""
        ...


class Communicator:
    """One rank's connection to the others: here that of a node alone, which waits for nothing; `Group` is that of
    several. Blocking; PeerLost and ProtocolError (naming the rank) end a wait.

    After any error the communicator is of no further use: a new epoch builds a new one.
    """

    rank = 0
    size = 1

    def __init__(self) -> None:
        #: Whether rank 0's last all-reduce of this step carried the cancel flag: the same on every rank.
        self.cancelled = False
        self._cancelled_step = 0
        self._begun: dict[Tag, torch.Tensor] = {}

    def announce(self, _plan: StepPlan | LeavePages) -> None:
        """Rank 0 begins a step: every other rank gets the plan. Clears `cancelled`. Steps count upwards."""
        self.cancelled = False
        self._begun.clear()

    def next_plan(self) -> StepPlan | LeavePages:
        """Other ranks: wait, for as long as the cluster is idle, for the next step's plan. Clears `cancelled`.

        What was still under way for earlier steps is dropped.
        """
        raise InternalError("rank 0 makes the plans")

    def poll(self) -> None:
        """Rank 0 only, now and then while no step runs, before the first one too: take in what peers send nevertheless,
        so that it does not pile up, and notice whose connection broke. PeerLost and ProtocolError as elsewhere.
        """

    def request_cancel(self, step: int) -> None:
        """From any thread, rank 0 only: the next all-reduce of that step carries the cancel flag, if it is under
        way."""
        self._cancelled_step = step

    def all_reduce(self, partial: torch.Tensor, tag: Tag, *, contributes: bool = True) -> torch.Tensor:
        """The sum over ranks of `partial` (contiguous, [tokens, hidden]); same bits on every rank.

        All ranks give f32, or all give integers: int32 or int64, each as its values need, within the laws of
        `summation.py`, in steps whose plan has the wire "f32". The sum is int64 where a part was, int32 otherwise.

        The caller owns the result, which may be `partial` itself: do not use `partial` afterwards. With
        `contributes=False` only its shape is used, and whether it is of f32 or of integers; it stays as it is.
        """
        self.cancelled = self._cancelled_step == tag.step
        return partial if contributes else torch.zeros_like(partial)

    def begin_all_reduce(self, partial: torch.Tensor, tag: Tag, *, contributes: bool = True) -> None:
        """The first half of `all_reduce`: the part is on its way while the caller computes something else.

        `partial` must not change before `finish_all_reduce`. Several may be under way; every rank begins and finishes
        them in the same order.
        """
        self._begun[tag] = partial if contributes else torch.zeros_like(partial)

    def finish_all_reduce(self, tag: Tag) -> torch.Tensor:
        """The second half: the sum of what was begun with `tag`, the caller's own. Sets `cancelled`."""
        self.cancelled = self._cancelled_step == tag.step
        return self._begun.pop(tag)

    def broadcast(self, hidden: torch.Tensor, _tag: Tag) -> torch.Tensor:
        """Rank 0's `hidden` (f32 [tokens, hidden]) on every rank. Elsewhere `hidden` only gives the shape."""
        return hidden

    def send_up(self, _part: torch.Tensor, rank: int, _tag: Tag) -> torch.Tensor | None:
        """At rank 0 the part (f32, 2-D) that `rank`, not 0, gave; None elsewhere. On all other ranks it has no effect,
        and at rank 0 only the shape of the part counts. A rank may not be ahead by more than PeerChannel holds."""
        raise InternalError(f"there is no rank {rank}")

    def send_down(self, _part: torch.Tensor, rank: int, _tag: Tag) -> torch.Tensor | None:
        """At `rank`, not 0, the part that rank 0 gave; None elsewhere. Otherwise as `send_up`, with the roles
        exchanged. Of the tag step and chunk count."""
        raise InternalError(f"there is no rank {rank}")


class DeadlineLiveness:
    """Gives every wait `timeout_s`; a wait is known by its rank and its words."""

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
