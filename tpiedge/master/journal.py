"""One accepted request, as the thread sees it that submitted it, and what was said of its answer, so that another epoch
can go on with it.

Laws:
1. A token, a score and an embedding are passed on once, in their order, whatever the epochs say of them twice.
2. What another epoch is asked continues prompt and answer exactly: the next token has the next position, whose random
   number depends on nothing but the seed and that position (`engine/sampler.py`).
3. A request is a suspect after SUSPECT deaths in a row in whose epochs nothing was passed on of it, and guilty after
   GUILTY, one of which came while nothing else ran. Three deaths after one thing count as one: that comes of reading
   the prompt, and a node may die of what follows. A death is a loss in which a node ended by itself or hung
   (`blame.py`), not one in which a node fell silent, a link broke or a machine was lost.
"""

import queue
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from tpiedge.errors import TpiedgeError
from tpiedge.master.request_times import PauseCause, Reading, ReadingProgress, Timeline
from tpiedge.wire.control import AnswerPart, Embedding, Finished, FinishReason, PromptScores, Token
from tpiedge.wire.requests import GenerationRequest

SUSPECT: Final = 2
GUILTY: Final = 3


@dataclass(frozen=True, slots=True)
class Paused:
    """The answer pauses; `why`, in one line. It comes again where the reason changes during the pause."""

    why: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """The next token comes `paused_s` seconds after the pause began."""

    paused_s: float


@dataclass(frozen=True, slots=True)
class TakenUp:
    """Rank 0 is asked for the rest of an earlier master's answer, for the first time by this master."""


@dataclass(eq=False)
class Journal:
    """`answer_ids`: the tokens that were passed on. `begun`: whether rank 0 of any epoch was asked."""

    request: GenerationRequest
    answer_ids: list[int] = field(default_factory=list)
    begun: bool = False
    #: Epochs that ended under it, for whatever reason.
    interruptions: int = 0
    #: When the pause began that lasts; None while it gets on.
    paused: float | None = None
    #: Why the latest pause began.
    paused_by: PauseCause = "plan"
    _scored: int = 1  # the first position of the prompt without a score
    _embedded: bool = False  # whether its embedding was passed on
    _passed_on: int = 0  # in this epoch
    #: Thirds of deaths in a row, as the third law counts them, and whether nothing else ran in one of them.
    _thirds: int = 0
    _alone: bool = False

    @property
    def losses(self) -> int:
        """Deaths in a row in which it did not get on."""
        return self._thirds // 3

    @property
    def suspect(self) -> bool:
        """Whether nothing else is to begin beside it."""
        return self.losses >= SUSPECT

    @property
    def guilty(self) -> bool:
        """Whether it is not tried again."""
        return self._alone and self.losses >= GUILTY

    @property
    def reading(self) -> bool:
        """Whether nothing has come of it in this epoch: what is computed of it would be lost with the epoch."""
        return self._passed_on == 0

    @property
    def positions(self) -> int:
        """How many tokens another epoch would read."""
        return len(self.request.prompt_ids) + len(self.answer_ids)

    @property
    def rest(self) -> GenerationRequest:
        """The request for what is missing of the answer."""
        if not self.answer_ids:
            return self.request
        return replace(self.request, answer_ids=tuple(self.answer_ids))

    @property
    def complete(self) -> FinishReason | None:
        """The finish reason if all came and only rank 0's Finished is missing; else None."""
        request = self.request
        if request.pooling != "none":
            return "stop" if self._embedded else None
        if self.answer_ids and self.answer_ids[-1] in request.stop_ids and not request.ignore_eos:
            return "stop"
        return "length" if self.answer_ids and len(self.answer_ids) >= request.max_tokens else None

    def restore(self, said: Iterable[AnswerPart], now: float) -> None:
        """Takes what an earlier master passed on, in its order. The answer pauses."""
        for message in said:
            self.take(message)
        self.begun = True
        self.interrupted(now, "restart")

    def interrupted(self, now: float, cause: PauseCause = "plan") -> None:
        """Its part in an epoch ended. A pause that lasts goes on."""
        self.interruptions += 1
        self._passed_on = 0
        if self.paused is None:
            self.paused, self.paused_by = now, cause

    def died(self, *, alone: bool) -> None:
        """A node died in its epoch, which is about to be `interrupted`. `alone`: no other request ran."""
        if self._passed_on <= 1:
            self._thirds += 3 if self._passed_on == 0 else 1
            self._alone |= alone

    def take(self, message: AnswerPart) -> AnswerPart | None:
        """What of the message is to be passed on, if anything."""
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
        """Whether the answer that ended is the one that was passed on."""
        embedded = self._embedded or self.request.pooling == "none"
        return finished.tokens == len(self.answer_ids) and embedded


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


@dataclass(eq=False)
class PendingAnswer:
    """One accepted request, for the thread that submitted it. Made by `RequestQueue.submit`. `client`: whose turn it is
    when it begins."""

    request: GenerationRequest
    client: str
    _cancel: Callable[["PendingAnswer"], None]
    _wake: Callable[[], None]
    #: Whether somebody waits for it, and whether it gives its place to one that somebody waits for, or gave it.
    attended: bool = True
    gives_way: bool = False
    #: Whether an earlier master accepted it, and this one has not asked for it yet.
    inherited: bool = False
    #: Whether the caller has all that it wanted, and whether it wants no more.
    whole: bool = False
    unwanted: bool = False
    #: Whether an administrator ended it, which the caller is told.
    dismissed: bool = False
    #: Of its grammar in this epoch: rank 0 is to say whether it is compiled; it is; its request has begun; or ended
    #: before that, which rank 0 is told.
    compiling: Literal["asked", "compiled", "begun", "left"] = "asked"
    times: Timeline = field(default_factory=Timeline)
    progress: ReadingProgress = field(default_factory=ReadingProgress)
    _told: str = ""
    _events: "queue.Queue[_Event]" = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        self.journal = Journal(self.request)

    def events(self) -> Iterator[_Said]:
        """The request's events, up to Finished. Blocks between them; raises the error that ended the request. Closing
        the iterator early cancels the request."""
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
