"""One accepted request: its events for the thread that submitted it, and its answer so far for the next epoch.

Laws:
1. A token, a score and an embedding are passed on once and in order, even if epochs repeat them.
2. The next epoch continues the answer exactly. A random number depends only on the seed and the token's position
   (`engine/sampler.py`).
3. Deaths of nodes (`died` in `blame.py`) count until the request makes progress. The request is quarantined after
   QUARANTINE_AFTER deaths. It is poison after POISON_AFTER deaths if it ran alone at one of them. A death after a
   single event counts as a third of a death, because this event shows only that the prompt was read."""

import queue
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from tpiedge.errors import TpiedgeError
from tpiedge.master.request_times import PauseCause, Reading, ReadingProgress, Timeline
from tpiedge.wire.control import AnswerPart, Embedding, Finished, FinishReason, PromptScores, Token
from tpiedge.wire.requests import GenerationRequest

QUARANTINE_AFTER: Final = 2
POISON_AFTER: Final = 3


@dataclass(frozen=True, slots=True)
class Paused:
    """The answer pauses. This event comes again when the reason changes."""

    why: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """The answer goes on, `paused_s` seconds after the pause began."""

    paused_s: float


@dataclass(frozen=True, slots=True)
class Resubmitted:
    """Says that rank 0 now finishes an earlier master's answer."""


AnswerEvent: TypeAlias = AnswerPart | Paused | Resumed | Resubmitted | Reading | Finished
_Event = AnswerEvent | TpiedgeError
RequestState: TypeAlias = Literal["queued", "reading", "answering", "paused"]


@dataclass(frozen=True, slots=True)
class RequestLine:
    """State of one request. `age_s`: None if an earlier master accepted it. `tokens_per_s`: since the first token; 0:
    unknown. `paused_s`, `why`: the current pause."""

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


@dataclass(eq=False)
class PendingAnswer:
    """A request in a queue. Without the queue's lock, call only `events`, `set_has_reader`, `cancel`, `complete`."""

    request: GenerationRequest
    client: str
    _cancel: Callable[["PendingAnswer"], None]
    _wake: Callable[[], None]
    has_reader: bool = True
    preempted: bool = False  # since its last start
    recovered: bool = False  # of an earlier master, and not resubmitted yet
    whole: bool = False  # the caller has the whole answer
    unwanted: bool = False  # cancelled while it ran
    dismissed: bool = False  # an administrator ended it
    #: State of the grammar in this epoch. "left": the request ended before it began.
    compiling: Literal["asked", "compiled", "begun", "left"] = "asked"
    times: Timeline = field(default_factory=Timeline)
    progress: ReadingProgress = field(default_factory=ReadingProgress)
    answer_ids: list[int] = field(default_factory=list)  # tokens that were passed on
    begun: bool = False  # rank 0 was asked for it, in any epoch
    interruptions: int = 0  # ends of its epochs, and preemptions
    paused: float | None = None  # since when
    paused_by: PauseCause = "plan"  # the cause of the latest pause
    travels: bool = False  # machines send each other its part of the KV cache, in the latest pause
    _scored: int = 1  # the first position of the prompt without a score
    _embedded: bool = False  # whether its embedding was passed on
    _passed_on: int = 0  # events in this epoch
    _thirds: int = 0  # thirds of deaths in a row (law 3)
    _alone: bool = False  # ran alone during one of them
    _told: str = ""
    _events: "queue.Queue[_Event]" = field(default_factory=queue.Queue)

    def events(self) -> Iterator[AnswerEvent]:
        """Yields events up to Finished; blocks. Raises the request's error. Closing cancels the request."""
        ended = False
        try:
            while not ended:
                event = self._events.get()  # bounded by law 1 of request_queue.py
                ended = isinstance(event, Finished | TpiedgeError)
                if isinstance(event, TpiedgeError):
                    raise event
                yield event
        finally:
            if not ended:
                self.cancel()

    def set_has_reader(self, has_reader: bool) -> None:
        """Says whether the answer has a reader. Thread-safe, does not block."""
        self.has_reader = has_reader
        self._wake()

    def cancel(self) -> None:
        """Ends the request early. Thread-safe, idempotent, does not block."""
        self._cancel(self)

    def complete(self) -> None:
        """Ends the request early as `cancel` does, but as a success."""
        self.whole = True
        self.cancel()

    def of(self, pack: str) -> bool:
        """Whether it may run while the model `pack` is served. True if `pack` is ""."""
        return not pack or self.request.pack in ("", pack)

    @property
    def deaths(self) -> int:
        return self._thirds // 3

    @property
    def quarantined(self) -> bool:
        return self.deaths >= QUARANTINE_AFTER

    @property
    def poison(self) -> bool:
        return self._alone and self.deaths >= POISON_AFTER

    @property
    def reading(self) -> bool:
        """Whether the caller has got no event from this epoch yet."""
        return self._passed_on == 0

    @property
    def positions(self) -> int:
        return len(self.request.prompt_ids) + len(self.answer_ids)

    @property
    def rest(self) -> GenerationRequest:
        if not self.answer_ids:
            return self.request
        return replace(self.request, answer_ids=tuple(self.answer_ids))

    @property
    def finish_reason(self) -> FinishReason | None:
        """The finish reason if only rank 0's Finished is missing; else None."""
        request = self.request
        if request.pooling != "none":
            return "stop" if self._embedded else None
        if self.answer_ids and self.answer_ids[-1] in request.stop_ids and not request.ignore_eos:
            return "stop"
        return "length" if self.answer_ids and len(self.answer_ids) >= request.max_tokens else None

    def restore(self, said: Iterable[AnswerPart], now: float) -> None:
        for message in said:
            self.append(message)
        self.begun = True
        self.interrupted(now, "restart")

    def interrupted(self, now: float, cause: PauseCause) -> None:
        """Notes that the epoch ended, or that the request was preempted. An earlier pause goes on."""
        self.interruptions += 1
        self._passed_on = 0
        if self.paused is None:
            self.paused, self.paused_by = now, cause

    def died(self, *, alone: bool) -> None:
        """Notes that a node died. Call it before `interrupted`. `alone`: no other request ran."""
        if self._passed_on <= 1:
            self._thirds += 3 if self._passed_on == 0 else 1
            self._alone |= alone

    def append(self, message: AnswerPart) -> AnswerPart | None:
        new: AnswerPart | None = None
        match message:
            case Token() if message.index == len(self.answer_ids):
                self.answer_ids.append(message.token)
                new = message
            case PromptScores() if 0 <= self._scored - message.first < len(message.scores):
                new = message.since(self._scored)
                self._scored += len(new.scores)
            case Embedding() if not self._embedded:
                new, self._embedded = message, True
        if new is not None:
            self._passed_on += 1
            if self._passed_on > 1:
                self._thirds, self._alone = 0, False
        return new

    def agrees(self, finished: Finished) -> bool:
        embedded = self._embedded or self.request.pooling == "none"
        return finished.tokens == len(self.answer_ids) and embedded

    def line(self, now: float, *, running: bool) -> RequestLine:
        times, tokens, paused = self.times, len(self.answer_ids), self.paused
        state: RequestState = "queued" if not running else "reading" if self.reading else "answering"
        spent_s = now - times.first if times.first is not None else 0.0
        return RequestLine(
            self.request.id,
            state if paused is None else "paused",
            None if times.accepted is None else now - times.accepted,
            len(self.request.prompt_ids),
            tokens,
            self.request.max_tokens,
            (tokens - 1) / spent_s if tokens > 1 and spent_s > 0 else 0.0,
            self._told if paused is not None else "",
            now - paused if paused is not None else 0.0,
            self.has_reader,
            self.progress.reading(self.positions) if running and self.reading else None,
            self.client,
        )

    def read(self, done_tokens: int, now: float) -> None:
        """Notes how much of the prompt is computed; tells the reader."""
        if self.reading and self.progress.update(done_tokens, now) and self.paused is None:
            reading = self.progress.reading(self.positions)
            if reading is not None:
                self.put(reading)

    def put(self, event: _Event) -> None:
        if not isinstance(event, Resubmitted):  # it ends no pause
            self._told = ""
        self._events.put(event)

    def pause(self, why: str) -> None:
        if why != self._told:
            self.put(Paused(why))
            self._told = why
