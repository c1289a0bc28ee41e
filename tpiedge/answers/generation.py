"""What answers ask of the cluster behind them, and what they are told."""

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

from tpiedge.errors import TpiedgeError
from tpiedge.master.journal import Paused, Resumed, TakenUp
from tpiedge.master.request_times import Reading
from tpiedge.wire.control import AnswerPart, Finished
from tpiedge.wire.requests import GenerationRequest

AnswerEvent: TypeAlias = AnswerPart | Paused | Resumed | TakenUp | Reading | Finished
ChoiceEvent: TypeAlias = tuple[int, AnswerEvent]
"""An event with the number of the choice that it is of."""


class Busy(TpiedgeError):
    """The queue is full; worth another try after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(TpiedgeError):
    """The cluster cannot take requests now; the message says why (weights load, too few nodes, shutting down)."""


class Generation(Protocol):
    """A request that was taken."""

    def events(self) -> Iterator[AnswerEvent]:
        """Blocks between events; the last one is Finished. To be called once.

        Raises TpiedgeError where the answer cannot be completed: PeerError for lost nodes, UserError for what
        rank 0 refuses. Ends soon after `cancel`, with Finished("cancel"), with an error, or just so.
        """

    def attend(self, attended: bool) -> None:
        """Whether somebody waits for it, as of a new one; one for which nobody does gives way to others. From any
        thread."""

    def cancel(self) -> None:
        """Stop the work. From any thread, any number of times, also after the end."""

    def complete(self) -> None:
        """Stop the work because the answer is whole, as a stop string makes it: a success. As `cancel`."""


class Queue(Protocol):
    """Where requests are asked for. For any thread; nothing blocks."""

    def submit(self, request: GenerationRequest, client: str, *, attended: bool = True) -> Generation:
        """Queue the request of that `client`: clients take turns, however many requests one has. `attended`: whether
        somebody waits for it already, as of Generation.attend. Raises Busy, Unavailable, or UserError for what the
        cluster cannot do."""

    def postpone(self, count: int, client: str) -> None:
        """Count so many requests of that client with those that wait, which will be submitted later; fewer where it is
        negative. Raises Busy where they would be too many."""

    def resume(self, request: GenerationRequest, said: Sequence[AnswerPart]) -> Generation:
        """Queue a request that was accepted before this cluster's start, and of whose answer `said` came: its rest is
        wanted, though nobody waits for it yet. To be called before anything is submitted. Raises Unavailable."""
