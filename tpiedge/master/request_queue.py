"""The requests of a serving cluster: some run, others wait, and each ends exactly once.

Laws:
1. A request that was accepted ends exactly once: with Finished, or with an error that says why.
2. At most `parallel` requests run at once. Clients take turns, and one client's requests start in the order in which
   they were accepted (`turns.py`). One for which nobody waits (`attend`) starts after all others, gives its place back
   where one of them has none, and goes on later. The queue is full for a client alone with `limit` that have not begun
   or gave their place back, and earlier where others' requests wait.
3. When an epoch ends, those that run wait in front of those that never ran, whatever the limit, and go on in the next
   one: their readers see a pause. Those of which nothing is missing, or which nobody wants any more, end. So do those
   of an earlier master (`resume`), for which nobody waits until it is said.
4. Of those that wait, the one with most `losses` begins first, suspects (`journal.py`) before all others, if nothing
   runs. Beside a suspect nothing begins, and it gives its place to nobody: so one that kills a node in every epoch is
   found, and it alone fails. While one waits, only what ran begins.
5. A request with a grammar takes a place once that is compiled. What its processes take of a processor counts in its
   client's turn as tokens do.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import InitVar, dataclass, field, replace
from typing import Final, NoReturn

from msgspec import structs

from tpiedge.errors import (
    Cancelled,
    ChildLost,
    GrammarRefused,
    InternalError,
    ProtocolError,
    TpiedgeError,
    UserError,
)
from tpiedge.master.journal import PendingAnswer, RequestLine, Resumed, TakenUp
from tpiedge.master.request_times import ReadingProgress, ReadingRate, RequestHistograms, Totals
from tpiedge.master.turns import Compiling, Turns
from tpiedge.portions import Portions, may_have
from tpiedge.wire.control import (
    AnswerPart,
    Compiled,
    Embedding,
    Failed,
    Finished,
    Heartbeat,
    PromptScores,
    Token,
)
from tpiedge.wire.fields import Message
from tpiedge.wire.requests import GenerationRequest

#: Requests of one client that may wait, and half of those of all; more are refused.
QUEUE_LIMIT: Final = 64
#: Choices of one client's requests that may wait until they are submitted, and half of those of all: four times as many
#: as one request may have.
POSTPONED_LIMIT: Final = 8192

_FAULTS: Final[Mapping[str, type[TpiedgeError]]] = {
    "UserError": UserError,
    "GrammarRefused": GrammarRefused,
    "ChildLost": ChildLost,
}
"""What rank 0 may find of a request, or what befalls it; all else is a defect."""


class QueueFull(TpiedgeError):
    """As many requests wait as the master admits of this client."""


class Dismissed(Cancelled):
    """An administrator ended the request."""

    def __init__(self) -> None:
        super().__init__("the administrator of this server ended the request")


@dataclass(eq=False)
class RequestQueue:
    """Up to `limit` requests of a client wait, twice as many of all, and up to `parallel` run; their ids must differ.
    Thread-safe; nothing blocks. `on_cancel(id)` is called when a running request is cancelled, `on_submit()` after each
    accepted one. `on_cancel` must not call back. `now` gives seconds. `compiles`: so many grammars are compiled at a
    time."""

    limit: InitVar[int]
    _parallel: int
    _on_cancel: Callable[[str], None]
    _on_submit: Callable[[], None]
    _now: Callable[[], float] = time.monotonic
    compiles: InitVar[int] = 1
    #: Counts of the requests so far, by how they ended. Replaced as a whole, so readers need no lock.
    totals: Totals = field(default_factory=Totals)
    _turns: Turns = field(default_factory=Turns)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: deque[PendingAnswer] = field(default_factory=deque)
    _running: dict[str, PendingAnswer] = field(default_factory=dict)  # by id, in the order of their start
    _closed: TpiedgeError | None = None
    _rate: ReadingRate = field(default_factory=ReadingRate)
    _times: RequestHistograms = field(default_factory=RequestHistograms)

    def __post_init__(self, limit: int, compiles: int) -> None:
        self._places = 2 * limit
        self._postponed = Portions(2 * POSTPONED_LIMIT)
        self._compiling = Compiling(compiles, self._parallel)

    @property
    def histograms(self) -> RequestHistograms:
        with self._lock:
            return deepcopy(self._times)

    @property
    def waiting(self) -> int:
        """How many wait, with those that are postponed."""
        return len(self._waiting) + self._postponed.taken

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def idle(self) -> bool:
        with self._lock:
            return not self._running and not self._waiting

    @property
    def lines(self) -> tuple[RequestLine, ...]:
        """How each one gets on: those that run, then those that wait, in the order in which they came."""
        with self._lock:
            now = self._now()
            running = [one.line(now, running=True) for one in self._running.values()]
            return (*running, *(one.line(now, running=False) for one in self._waiting))

    def dismiss(self, name: str) -> bool:
        """Ends the request of that id early, with Dismissed. Returns whether there is one."""
        with self._lock:
            one = self._running.get(name) or next((w for w in self._waiting if w.request.id == name), None)
            if one is not None:
                one.dismissed = True
        if one is not None:
            one.cancel()
        return one is not None

    def refuse(self, error: TpiedgeError) -> NoReturn:
        """Counts a request that the caller does not accept, and raises `error`."""
        with self._lock:
            self._count(refused=1)
        raise error

    def submit(self, request: GenerationRequest, client: str = "", *, attended: bool = True) -> PendingAnswer:
        """Accepts a request of that `client`; `attended`: whether somebody waits for it. Raises QueueFull, or the error
        that `close` was given."""
        answering = PendingAnswer(request, client, self._cancelled, self._on_submit, attended)
        with self._lock:
            if self._closed is not None:
                self._count(refused=1)
                raise self._closed.with_traceback(None)  # or each refusal would lengthen its traceback
            waiting = [one.client for one in self._waiting if one.gives_way or not one.journal.begun]
            own = waiting.count(client)
            if not may_have(own, len(waiting), self._places):
                self._count(refused=1)
                raise QueueFull(
                    f"{len(waiting)} requests are waiting already, {own} of this client: try again later"
                )
            answering.times.accepted = self._now()
            self._waiting.append(answering)
        self._on_submit()
        return answering

    def postpone(self, count: int, client: str) -> None:
        """So many more requests of that client will be submitted later, or fewer where it is negative. Raises
        QueueFull."""
        with self._lock:
            if count < 0:
                self._postponed.leave(client, -count)
            elif not self._postponed.take(client, count):
                own = self._postponed.of(client)
                self._count(refused=1)
                raise QueueFull(
                    f"{self._postponed.taken} choices of requests are waiting already, {own} of this client: "
                    "try again later"
                )

    def resume(self, request: GenerationRequest, said: Sequence[AnswerPart], why: str) -> PendingAnswer:
        """Accepts a request that an earlier master had accepted, of whose answer `said` was passed on already: the
        rest follows, and first of all that it pauses, and `why`, and TakenUp once rank 0 is asked. To be called in the
        order in which they were accepted, and before anything is submitted. Raises the error that `close` was given."""
        cancel, wake = self._cancelled, self._on_submit
        answering = PendingAnswer(request, "", cancel, wake, attended=False, inherited=True)
        with self._lock:
            if self._closed is not None:
                raise self._closed.with_traceback(None)
            answering.journal.restore(said, self._now())
            answering.pause(why)
            if not self._settled(answering):
                self._waiting.append(answering)
        self._on_submit()
        return answering

    def prepare(self, compile_next: Callable[[GenerationRequest, str], None]) -> bool:
        """Has rank 0 compile the next grammar: hands its request to `compile_next`, with the name of the group that
        shares it, as `start` does. Returns False where none waits for that, or as many are compiled as may be."""
        with self._lock:
            one = self._compiling.next(self._waiting, self._turns)
            if one is None:
                return False
            try:
                compile_next(one.request, self._compiling.ask(one))
            except ProtocolError as error:
                self._waiting.remove(one)
                self._fail([one], UserError(f"the request cannot be served: {error}"))
        return True

    def start(self, ask: Callable[[GenerationRequest], None]) -> bool:
        """Starts the next request: hands it to `ask`, which sends it to rank 0 and must neither block nor call back.
        Returns False if as many run as may, a suspect runs, or none waits; then running ones that nobody waits for are
        cancelled at rank 0, as many as have to give way. A request for which `ask` raises ProtocolError ends there."""
        with self._lock:  # held while asking, so that no cancellation overtakes the request
            if len(self._running) >= self._parallel or any(
                one.journal.suspect for one in self._running.values()
            ):
                self._make_way(sum(one.attended and self._compiling.may_begin(one) for one in self._waiting))
                return False
            starting = self._first(self._able())
            if starting is None:
                return False
            self._waiting.remove(starting)
            if not starting.journal.begun:
                self._turns.give(starting.client, len(starting.request.prompt_ids))
            starting.gives_way = False
            if (entry := self._compiling.entries.get(starting.request.id)) is not None:
                entry.compiling = "begun"
            self._running[starting.request.id] = starting
            starting.journal.begun = True
            starting.progress = ReadingProgress()
            if starting.inherited:
                starting.inherited = False
                starting.put(TakenUp())
            now = self._now()
            self._rate.begin(now)
            self._times.started(starting.times, now)
            try:
                ask(starting.journal.rest)
            except ProtocolError as error:
                self._fail([starting], UserError(f"the request cannot be served: {error}"))
        return True

    def tell(self, message: Message) -> None:
        """Passes on a message of rank 0 about a running request, or about those whose prompts it reads."""
        name = getattr(message, "request", None)
        with self._lock:
            for reading, done_tokens in message.reading if isinstance(message, Heartbeat) else ():
                if reading in self._running:
                    self._running[reading].read(done_tokens, self._now())
            if not isinstance(name, str):
                return
            running, spent_s = self._running.get(name), 0.0
            if isinstance(message, Compiled | Failed | Finished):
                spent_s = message.processor_s
            known = self._compiling.entries.get(name) if running is None else running
            if known is not None and spent_s > 0.0:
                # A slow machine computes fewer tokens in a second.
                self._turns.give(known.client, math.ceil(100 * spent_s))
            if running is None:
                if isinstance(message, Compiled | Failed | Finished):
                    self._tell_compiling(message, name)
                return
            match message:
                case Token() | PromptScores() | Embedding():
                    self._pass_on(message, running)
                case Finished():
                    self._finish(message, running)
                case Failed(kind=kind, message=text):
                    self._fail([running], _FAULTS.get(kind, InternalError)(text))

    @property
    def positions(self) -> tuple[int, float]:
        """How many that runs has, all requests together, and in how many seconds another epoch would read them."""
        with self._lock:
            positions = sum(one.journal.positions for one in self._running.values())
            return positions, self._rate.token_s * positions

    def interrupt(
        self,
        why: str,
        lost: TpiedgeError | None = None,
        since: float | None = None,
        *,
        died: bool = False,
    ) -> None:
        """The epoch of all running requests ends: by a plan, or because it was `lost` by nobody's will. They go on in
        the next one, but for one that is guilty (`journal.py`) where a node `died`: it fails with the loss. `since`:
        when they were told to pause, if that was before now."""
        with self._lock:
            running, now = list(self._running.values()), self._now() if since is None else since
            going_on = [one for one in running if not self._settled(one)]
            for one in going_on:
                if died:
                    one.journal.died(alone=len(running) == 1)
                one.journal.interrupted(now, "plan" if lost is None else "loss")
            if died and lost is not None:
                guilty = [one for one in going_on if one.journal.guilty]
                self._fail(guilty, lost)
                going_on = [one for one in going_on if one not in guilty]
            self._running.clear()
            self._compiling.entries.clear()
            self._look_at_readers()
            for one in going_on:
                one.gives_way = False
                one.pause(why)
            again = sorted([*going_on, *self._waiting], key=lambda one: -one.journal.losses)
            self._waiting = deque(again)

    def pause(self, why: str, since: float) -> None:
        """Those that run have paused `since` then, though their epoch lasts; they are told `why`."""
        with self._lock:
            for one in self._running.values():
                if one.journal.paused is None:
                    one.journal.paused, one.journal.paused_by = since, "plan"
                one.pause(why)

    def explain(self, why: str, *, serving: bool) -> None:
        """Those that pause are told why they still do, where that has changed, unless they gave way; where nothing is
        `serving`, so are those that have not begun, and nothing more once something is."""
        with self._lock:
            for one in (*self._running.values(), *self._waiting):
                if one.journal.paused is None:
                    one.pause("" if serving or one.journal.begun else why)
                elif not one.gives_way:
                    one.pause(why)

    def fail_all(self, error: TpiedgeError) -> None:
        """Ends all requests, those that run and those that wait, with `error`."""
        with self._lock:
            self._fail([*self._running.values(), *self._waiting], error)
            self._waiting.clear()
            self._compiling.entries.clear()

    def close(self, error: TpiedgeError) -> None:
        """Accepts no more requests: `submit` raises `error`. Accepted ones may still be served."""
        with self._lock:
            self._closed = error

    def _cancelled(self, answering: PendingAnswer) -> None:
        with self._lock:
            if self._running.get(answering.request.id) is answering:
                # It ends with rank 0's Finished, or with the epoch.
                answering.unwanted = True
                self._on_cancel(answering.request.id)
                return
            if answering not in self._waiting:
                return
            self._waiting.remove(answering)
            if (entry := self._compiling.entries.get(answering.request.id)) is not None:
                entry.compiling = "left"
                self._on_cancel(answering.request.id)  # rank 0 forgets the grammar
            self._count(finished=answering.whole, cancelled=not answering.whole)
        when = "while it paused" if answering.journal.begun else "before it began"
        error = Cancelled(f"request {answering.request.id} was cancelled {when}")
        answering.put(Dismissed() if answering.dismissed else error)

    # --- under the lock

    def _able(self) -> Sequence[PendingAnswer]:
        """Those that may start now. A suspect starts alone; while one waits, what had not begun waits, too, so that
        what runs comes to its end."""
        suspects = [one for one in self._waiting if one.journal.suspect]
        if not self._running and suspects:
            return suspects
        able = [one for one in self._waiting if not one.journal.suspect and self._compiling.may_begin(one)]
        if suspects:
            able = [one for one in able if one.journal.begun]
        return [one for one in able if one.attended] or able

    def _first(self, able: Sequence[PendingAnswer]) -> PendingAnswer | None:
        """Who of them starts. Those that ran are in front and go on in their order; clients take turns with the
        others."""
        if not able or able[0].journal.begun:
            return able[0] if able else None
        running = [one.client for one in self._running.values()]
        attended = [one.client for one in self._waiting if one.attended]
        turn = self._turns.next([one.client for one in able], running, attended)
        return next(one for one in able if one.client == turn)

    def _make_way(self, awaited: int) -> None:
        """So many need a place: as many of those that run give it up for which nobody waits, the latest first."""
        missing = awaited - sum(one.gives_way or one.unwanted for one in self._running.values())
        absent = (one for one in reversed(self._running.values()) if not one.attended)
        able = [one for one in absent if not (one.gives_way or one.unwanted or one.journal.suspect)]
        for one in able[: max(0, missing)]:
            one.gives_way = True
            self._on_cancel(one.request.id)

    def _tell_compiling(self, message: Compiled | Failed | Finished, name: str) -> None:
        entry = self._compiling.entries.get(name)
        if entry is None:
            return
        if isinstance(message, Compiled):
            entry.compiling = "compiled" if entry.compiling == "asked" else entry.compiling
            return
        del self._compiling.entries[name]
        if isinstance(message, Failed) and entry in self._waiting:
            self._waiting.remove(entry)
            self._fail([entry], _FAULTS.get(message.kind, InternalError)(message.message))

    def _pass_on(self, message: AnswerPart, answering: PendingAnswer) -> None:
        journal = answering.journal
        reading, positions = journal.reading, journal.positions
        new = journal.take(message)
        if new is None:
            return
        if reading:
            self._rate.read(positions)
            self._look_at_readers()
        if journal.paused is not None:
            paused_s, journal.paused = self._now() - journal.paused, None
            self._count(resumed=1, paused_s=paused_s)
            self._times.resumed(journal.paused_by, paused_s)
            answering.put(Resumed(paused_s))
        if isinstance(new, Token):
            self._count(tokens=1)
            self._turns.give(answering.client, 1)
            self._times.token(answering.times, self._now())
        answering.put(new)

    def _leave(self, answering: PendingAnswer) -> None:
        """Rank 0 has nothing of it any more."""
        self._running.pop(answering.request.id, None)
        self._compiling.entries.pop(answering.request.id, None)
        self._look_at_readers()

    def _look_at_readers(self) -> None:
        if not any(one.journal.reading for one in self._running.values()):
            self._rate.rest(self._now())

    def _finish(self, message: Finished, answering: PendingAnswer) -> None:
        """Ends a running request with rank 0's word, unless something of the answer is missing."""
        cancelled = message.reason == "cancel"
        if cancelled and answering.gives_way and not answering.unwanted:
            if not self._settled(answering):  # the first to go on of those that nobody waits for
                self._leave(answering)
                answering.journal.interrupted(self._now(), "priority")
                answering.pause("requests that somebody waits for come first")
                self._waiting.appendleft(answering)
            return
        if not cancelled and not answering.journal.agrees(message):
            told = len(answering.journal.answer_ids)
            missing = f"{told} of the answer's {message.tokens} tokens came: report it"
            self._fail([answering], InternalError(missing))
            return
        self._leave(answering)
        unfinished = int(cancelled and not answering.whole)
        self._count(
            finished=1 - unfinished,
            cut=int(message.reason == "length"),
            cancelled=unfinished,
            prompt_tokens=message.prompt_tokens,
            cached_tokens=message.cached_tokens,
        )
        if not unfinished:
            tokens = len(answering.journal.answer_ids)
            self._times.finished(answering.times, self._now(), message.prompt_tokens, tokens)
        # The steps of the epochs before were not told.
        last = structs.replace(message, steps=0) if answering.journal.interruptions else message
        answering.put(Dismissed() if cancelled and answering.dismissed else last)

    def _settled(self, answering: PendingAnswer) -> bool:
        """Ends a running request of which nothing is missing, or that nobody wants any more. Returns whether it is
        one."""
        request, journal = answering.request, answering.journal
        reason = "cancel" if answering.unwanted else journal.complete
        if reason is None:
            return False
        journal.interruptions += 1
        prompt, tokens = len(request.prompt_ids), len(journal.answer_ids)
        self._finish(Finished(0, request.id, reason, prompt, tokens, 0, 0), answering)
        return True

    def _fail(self, failed: Sequence[PendingAnswer], error: TpiedgeError) -> None:
        """Ends them. One whose caller has the whole answer counts as finished, even if its end fails."""
        for answering in failed:
            self._leave(answering)
        whole = sum(answering.whole for answering in failed)
        self._count(failed=len(failed) - whole, finished=whole)
        for answering in failed:
            answering.put(error)

    def _count(self, **more: float) -> None:
        """Adds to the totals, under the lock."""
        sums = {name: getattr(self.totals, name) + count for name, count in more.items()}
        self.totals = replace(self.totals, **sums)
