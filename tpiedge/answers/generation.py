"""The interface of the cluster behind answers; `master/journal.py` and `master/request_queue.py` implement it."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from tpiedge.master.journal import AnswerEvent
from tpiedge.wire.control import AnswerPart
from tpiedge.wire.requests import GenerationRequest


class Generation(Protocol):
    """An accepted request, like PendingAnswer. All methods but `events` are thread-safe. After `cancel`, events end
    soon, perhaps with an error or silently."""

    def events(self) -> Iterator[AnswerEvent]: ...

    def attend(self, attended: bool) -> None: ...

    def cancel(self) -> None: ...

    def complete(self) -> None: ...


class Queue(Protocol):
    """Takes requests, like RequestQueue. Thread-safe; nothing blocks."""

    def submit(self, request: GenerationRequest, client: str, *, attended: bool = True) -> Generation:
        """Raises QueueFull, NotServing, or UserError."""

    def postpone(self, count: int, client: str) -> None:
        """Raises QueueFull."""

    def resume(self, request: GenerationRequest, said: Sequence[AnswerPart]) -> Generation:
        """Raises NotServing."""
