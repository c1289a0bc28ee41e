"""One reader of an answer that is kept: a connection of its client."""

import asyncio
import enum
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol, Self

from tpiedge.api.errors import ApiError
from tpiedge.api.stream_bridge import ChoiceEvent, EventQueue
from tpiedge.errors import InternalError

_SLICE: Final = 64
"""So many events of the past are looked at while others wait for the answer's lock."""


class Parting(enum.Enum):
    """How a client goes."""

    #: All was handed to the system: the answer with its end, or with what it failed by. It may not have read that.
    SENT = enum.auto()
    #: It does not even know the answer's id: it does not come again.
    FOR_GOOD = enum.auto()
    #: Its connection ended: it may come again.
    LOST = enum.auto()


class ReadAnswer(Protocol):
    """What a reader asks of its answer, which is a KeptAnswer."""

    def attach(self, reader: "AnswerReader", events: EventQueue) -> None: ...

    def said_since(self, reader: "AnswerReader", start: int, count: int) -> Sequence[ChoiceEvent | None]: ...

    def detach(self, reader: "AnswerReader", *, collects: bool) -> None: ...

    def complete(self, choice: int) -> None: ...

    def was_sent(self) -> None: ...

    def acknowledge(self, reader: "AnswerReader") -> None: ...

    @property
    def recorded(self) -> bool: ...

    @property
    def over(self) -> bool: ...

    def end(self) -> None: ...


class AnswerReader:
    """An `AnswerFeed` for one connection, from `open` on.

    What was said before it takes a slice at a time: of an answer of thousands of events the event loop does no more at
    once, and nobody else waits for that.
    """

    def __init__(self, answer: ReadAnswer, *, collects: bool) -> None:
        self._answer = answer
        self._collects = collects
        #: Where it hears the answer, from `open` on; under the answer's lock.
        self.events: EventQueue | None = None
        #: Whether it has all that was said before, and is told what follows; under the answer's lock.
        self.caught_up = False
        self._taken = 0
        self._slice: deque[ChoiceEvent | None] = deque()
        self._superseded = False
        self._gone = self._sent = self._acknowledged = False

    def open(self) -> Self:
        """On the event loop that reads."""
        self._answer.attach(self, EventQueue(asyncio.get_running_loop()))
        return self

    async def next(self, within_s: float) -> ChoiceEvent | None:
        if self.events is None:
            raise InternalError("an answer is read that was not opened: report it")
        while True:
            while self._slice:
                if (event := self._slice.popleft()) is not None:
                    return event
            if self.caught_up or not self.events.empty:  # what is told before ends it
                return await self.events.next(within_s)
            self._slice.extend(self._answer.said_since(self, self._taken, _SLICE))
            self._taken += len(self._slice)

    def end(self, error: BaseException) -> None:
        self.tell(error)

    def cancel(self) -> None:
        """What becomes of the answer, `leave` says."""
        self._gone = True
        if not self._answer.over:
            self._answer.detach(self, collects=self._collects)

    def complete(self, choice: int) -> None:
        self._answer.complete(choice)

    def join(self, _limit_s: float) -> bool:
        return self._gone

    def leave(self, parting: Parting) -> None:
        """The client's parting. Idempotent."""
        self._gone = True
        self._answer.detach(self, collects=self._collects)
        if self._superseded or parting is Parting.LOST:
            return
        if parting is Parting.FOR_GOOD:
            self._answer.end()
            return
        self._sent = True
        self._answer.was_sent()
        self._end_if_read()

    def acknowledge(self) -> None:
        """Its client shows that it has read what it was sent. Idempotent."""
        self._acknowledged = True
        self._end_if_read()

    def is_recorded(self) -> bool:
        """Whether another master could go on with the answer."""
        return self._answer.recorded

    def _end_if_read(self) -> None:
        if self._sent and self._acknowledged:
            self._answer.acknowledge(self)

    # --- for its answer, from any thread

    def tell(self, item: ChoiceEvent | BaseException) -> None:
        """What comes next. Before `open` it needs not be told: everything is told then."""
        if self.events is not None:
            self.events.post(item)

    def supersede(self, why: Exception) -> None:
        """It has the place no more, and is told why."""
        self._superseded = True
        self.tell(why)


def superseded() -> ApiError:
    """Tells a reader that another one came."""
    return ApiError(409, "another connection reads this answer now", "superseded")
