"""One accepted request, as the thread sees it that submitted it."""

import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tpiedge.errors import TpiedgeError
from tpiedge.master.journal import Journal, Paused, Resumed, TakenUp
from tpiedge.master.request_times import Reading, ReadingProgress, Timeline
from tpiedge.wire.control import AnswerPart, Finished
from tpiedge.wire.requests import GenerationRequest

_Said = AnswerPart | Paused | Resumed | TakenUp | Reading | Finished
_Event = _Said | TpiedgeError


RequestState: TypeAlias = Literal["queued", "reading", "answering", "paused"]
"""It has not begun, its prompt is computed, its answer comes, or it pauses."""


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One accepted request, `age_s` ago (None: by an earlier master). `tokens` of at most `max_tokens` are there,
    `tokens_per_s` since the first one, with its pauses; 0: not known. `why` it pauses, for `paused_s` so far;
    `attended`: whether somebody waits for it; `reading`: how far its prompt is read, while that is told; `client`:
    whose it is, as its submitter called them, empty where nobody knows that."""

    id: str
    state: RequestState
    age_s: float | None
    prompt_tokens: int
    tokens: int
    max_tokens: int
    tokens_per_s: float
    why: str
    paused_s: float
    attended: bool
    reading: Reading | None = None
    client: str = ""


class PendingAnswer:
    """One accepted request, for the thread that submitted it. Made by `RequestQueue.submit`."""

    def __init__(
        self,
        request: GenerationRequest,
        client: str,
        cancel: Callable[["PendingAnswer"], None],
        wake: Callable[[], None],
    ) -> None:
        """`client`: whose turn it is when it begins."""
        self.request = request
        self.client = client
        self.journal = Journal(request)
        self.times = Timeline()
        self.progress = ReadingProgress()
        #: Whether somebody waits for it, and whether it gives its place to one that somebody waits for, or gave it.
        self.attended = True
        self.gives_way = False
        #: Whether an earlier master accepted it, and this one has not asked for it yet.
        self.inherited = False
        #: Whether the caller has all that it wanted, and whether it wants no more.
        self.whole = False
        self.unwanted = False
        #: Whether an administrator ended it, which the caller is told.
        self.dismissed = False
        self._told = ""
        self._cancel = cancel
        self._wake = wake
        self._events: queue.Queue[_Event] = queue.Queue()

    def events(self) -> Iterator[_Said]:
        """The request's events, up to Finished. Blocks between them; raises the error that ended the request.

        Closing the iterator early cancels the request.
        """
        ended = False
        try:
            while not ended:
                event = self._events.get()  # bounded by the first law
                ended = isinstance(event, Finished | TpiedgeError)
                if isinstance(event, TpiedgeError):
                    raise event
                yield event
        finally:
            if not ended:
                self.cancel()

    def attend(self, attended: bool) -> None:
        """Says whether somebody waits for the answer. Thread-safe, does not block."""
        self.attended = attended
        self._wake()

    def cancel(self) -> None:
        """Ends the request early. Thread-safe, idempotent, does not block."""
        self._cancel(self)

    def complete(self) -> None:
        """Ends the request early as a success, because its answer is whole (a stop string). Otherwise like `cancel`."""
        self.whole = True
        self.cancel()

    def line(self, now: float, *, running: bool) -> RequestLine:
        journal, times, tokens = self.journal, self.times, len(self.journal.answer_ids)
        state: RequestState = "queued" if not running else "reading" if journal.reading else "answering"
        spent_s = now - times.first if times.first is not None else 0.0
        return RequestLine(
            self.request.id,
            state if journal.paused is None else "paused",
            None if times.accepted is None else now - times.accepted,
            len(self.request.prompt_ids),
            tokens,
            self.request.max_tokens,
            (tokens - 1) / spent_s if tokens > 1 and spent_s > 0 else 0.0,
            self._told if journal.paused is not None else "",
            now - journal.paused if journal.paused is not None else 0.0,
            self.attended,
            self.progress.reading(journal.positions) if running and journal.reading else None,
            self.client,
        )

    def read(self, done_tokens: int, now: float) -> None:
        """So much of its prompt is read; for RequestQueue alone. Its reader hears that, unless it hears of a pause."""
        if not self.journal.reading or not self.progress.take(done_tokens, now):
            return
        reading = self.progress.reading(self.journal.positions)
        if reading is not None and self.journal.paused is None:
            self.put(reading)

    def put(self, event: _Event) -> None:
        if not isinstance(event, TakenUp):  # it pauses on
            self._told = ""
        self._events.put(event)

    def pause(self, why: str) -> None:
        """Adds why it pauses, unless that is what came last; for RequestQueue alone."""
        if why != self._told:
            self.put(Paused(why))
            self._told = why
