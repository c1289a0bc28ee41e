"""The interface of the cluster behind answers."""

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

from tpiedge.master.journal import Paused, Resumed, TakenUp
from tpiedge.master.request_times import Reading
from tpiedge.wire.control import AnswerPart, Finished
from tpiedge.wire.requests import GenerationRequest

AnswerEvent: TypeAlias = AnswerPart | Paused | Resumed | TakenUp | Reading | Finished
ChoiceEvent: TypeAlias = tuple[int, AnswerEvent]
"""An event with the number of its choice."""


class Generation(Protocol):
    """An accepted request. All methods but `events` may be called from any thread."""

    def events(self) -> Iterator[AnswerEvent]:
        """Yields events up to Finished; blocks between them. To be called once. Raises TpiedgeError if the answer
        cannot be completed. After `cancel` it ends soon: with Finished("cancel"), with an error, or silently."""

    def attend(self, attended: bool) -> None:
        """Says whether somebody waits for it, as for a new one; else it is preempted by others."""

    def cancel(self) -> None:
        """Stops the work. Idempotent, also after the end."""

    def complete(self) -> None:
        """Stops the work as a success, because a stop string made the answer whole. Otherwise like `cancel`."""


class Queue(Protocol):
    """Takes requests. For any thread; nothing blocks."""

    def submit(self, request: GenerationRequest, client: str, *, attended: bool = True) -> Generation:
        """Accepts a request of that `client`; clients take turns. `attended` as of Generation.attend. Raises QueueFull,
        NotServing, or UserError."""

    def postpone(self, count: int, client: str) -> None:
        """Counts `count` requests of that client, submitted later, as waiting; a negative number ends that. Raises
        QueueFull."""

    def resume(self, request: GenerationRequest, said: Sequence[AnswerPart]) -> Generation:
        """Accepts a request of an earlier master, for the rest after `said`; it has no reader yet. To be called before
        anything is submitted. Raises NotServing."""
