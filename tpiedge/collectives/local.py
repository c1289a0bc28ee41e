"""What a cluster inside one process needs: collectives of one rank, and waits that a deadline bounds."""

import torch

from tpiedge.clock import Clock
from tpiedge.collectives.communicator import Tag
from tpiedge.errors import InternalError, PeerLost
from tpiedge.wire.data import LeavePages, StepPlan


class LocalCommunicator:
    """Nothing to wait for. All methods as in Communicator."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self.cancelled = False
        self._cancelled_step = 0
        self._begun: dict[Tag, torch.Tensor] = {}

    def announce(self, _plan: StepPlan | LeavePages) -> None:
        self.cancelled = False
        self._begun.clear()

    def next_plan(self) -> StepPlan | LeavePages:
        raise InternalError("rank 0 makes the plans")

    def poll(self) -> None:
        """There is no peer that could send anything."""

    def request_cancel(self, step: int) -> None:
        self._cancelled_step = step

    def all_reduce(self, partial: torch.Tensor, tag: Tag, *, contributes: bool = True) -> torch.Tensor:
        self.cancelled = self._cancelled_step == tag.step
        return partial if contributes else torch.zeros_like(partial)

    def begin_all_reduce(self, partial: torch.Tensor, tag: Tag, *, contributes: bool = True) -> None:
        self._begun[tag] = partial if contributes else torch.zeros_like(partial)

    def finish_all_reduce(self, tag: Tag) -> torch.Tensor:
        self.cancelled = self._cancelled_step == tag.step
        return self._begun.pop(tag)

    def broadcast(self, hidden: torch.Tensor, _tag: Tag) -> torch.Tensor:
        return hidden

    def gather(self, part: torch.Tensor, _tag: Tag) -> list[torch.Tensor] | None:
        return [part]

    def send_up(self, _part: torch.Tensor, rank: int, _tag: Tag) -> torch.Tensor | None:
        raise InternalError(f"there is no rank {rank}")

    def send_down(self, _part: torch.Tensor, rank: int, _tag: Tag) -> torch.Tensor | None:
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
