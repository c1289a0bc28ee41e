"""The requests of a serving cluster: some run, others wait, and each ends exactly once.

Laws:
1. An accepted request ends exactly once: with Finished, or with an error that says why.
2. At most `parallel` requests run at once. Clients take turns (`turns.py`), and one client's requests start in their
   order of acceptance. A request without a reader (`attend`) starts after all others, is preempted when one with a
   reader has no place, and goes on later. The queue is full for a client alone with `limit` requests that have not
   begun or were preempted, and earlier if others' requests wait.
3. When an epoch ends, its running requests wait in front of requests that never ran, whatever the limit, and go on in
   the next one: their readers see a pause. Complete and unwanted requests end. The same holds for requests of an
   earlier master (`resume`), which have no reader at first.
4. Of the waiting requests, the one with most `losses` begins first. A suspect (`journal.py`) begins before all others,
   runs alone and is not preempted, and while one waits, only what ran before begins. So a request that kills a node in
   every epoch is found, and fails alone.
5. A request with a grammar starts once that is compiled. Processor time of grammars counts as tokens in the client's
   turn.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
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

#: Requests of one client that may wait; all clients together have twice as many.
QUEUE_LIMIT: Final = 64
#: Choices of one client's requests that may wait to be submitted, four times as many as one request may have; all
#: clients together have twice as many.
POSTPONED_LIMIT: Final = 8192

#: Errors of a request that rank 0 may report; all else is a defect.
_FAULTS: Final = {kind.__name__: kind for kind in (UserError, GrammarRefused, ChildLost)}


class QueueFull(TpiedgeError):
    """The client has as many waiting requests as it may; worth another try after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Dismissed(Cancelled):
    def __init__(self) -> None:
        super().__init__("the administrator of this server ended the request")


@dataclass(eq=False)
class RequestQueue:
    """Up to `limit` requests of a client wait, twice as many of all, and up to `parallel` run; their ids must differ.
    Thread-safe; nothing blocks. `on_cancel(id)` is called when a running request is cancelled and must not call back,
    `on_submit()` after each accepted request. `now` gives seconds. `compiles`: grammars that are compiled at a time."""

    limit: InitVar[int]
    _parallel: int
    _on_cancel: Callable[[str], None]
    _on_submit: Callable[[], None]
    _now: Callable[[], float] = time.monotonic
    compiles: InitVar[int] = 1
    #: Replaced as a whole, so readers need no lock.
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
        with self._lock:
            now = self._now()
            running = [one.line(now, running=True) for one in self._running.values()]
            return (*running, *(one.line(now, running=False) for one in self._waiting))

    def dismiss(self, name: str) -> bool:
        """Ends the request early, with Dismissed. Returns whether there is one with this id."""
        with self._lock:
            one = self._running.get(name) or next((w for w in self._waiting if w.request.id == name), None)
            if one is not None:
                one.dismissed = True
        if one is not None:
            one.cancel()
        return one is not None

    def refuse(self, error: TpiedgeError) -> NoReturn:
        with self._lock:
            raise self._refused(error)

    def submit(self, request: GenerationRequest, client: str = "", *, attended: bool = True) -> PendingAnswer:
        """Accepts a request of that `client`; `attended`: whether somebody waits for it. Raises QueueFull, or the error
        that `close` was given."""
        answering = PendingAnswer(request, client, self._cancelled, self._on_submit, attended)
        with self._lock:
            if self._closed is not None:
                raise self._refused(self._closed)
            waiting = [one.client for one in self._waiting if one.gives_way or not one.begun]
            own = waiting.count(client)
            if not may_have(own, len(waiting), self._places):
                raise self._full(f"{len(waiting)} requests", own)
            answering.times.accepted = self._now()
            self._waiting.append(answering)
        self._on_submit()
        return answering

    def postpone(self, count: int, client: str) -> None:
        """Counts `count` requests of that client that will be submitted later; a negative number ends that. Raises
        QueueFull."""
        with self._lock:
            if count < 0:
                self._postponed.leave(client, -count)
            elif not self._postponed.take(client, count):
                choices = f"{self._postponed.taken} choices of requests"
                raise self._full(choices, self._postponed.of(client))

    def resume(self, request: GenerationRequest, said: Sequence[AnswerPart], why: str) -> PendingAnswer:
        """Accepts a request that an earlier master accepted; `said` was passed on already. Its events begin with a
        pause because of `why`, and TakenUp when rank 0 is asked. To be called in the order of acceptance, before
        anything is submitted. Raises the error that `close` was given."""
        answering = PendingAnswer(
            request, "", self._cancelled, self._on_submit, attended=False, inherited=True
        )
        with self._lock:
            if self._closed is not None:
                raise self._closed.with_traceback(None)
            answering.restore(said, self._now())
            answering.pause(why)
            if not self._settled(answering):
                self._waiting.append(answering)
        self._on_submit()
        return answering

    def prepare(self, compile_next: Callable[[GenerationRequest, str], None]) -> bool:
        """Has rank 0 compile the next grammar: hands its request to `compile_next`, with the name of the group that
        shares the grammar, as `start` does. Returns False if no grammar waits, or as many are compiled as may be."""
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
        Returns False if as many run as may, a suspect runs, or none can start; then running requests without a reader
        are preempted for waiting ones with a reader. A request for which `ask` raises ProtocolError ends there."""
        with self._lock:  # held while asking, so that no cancellation overtakes the request
            if len(self._running) >= self._parallel or any(one.suspect for one in self._running.values()):
                self._make_way(sum(one.attended and self._compiling.may_begin(one) for one in self._waiting))
                return False
            starting = self._first(self._able())
            if starting is None:
                return False
            self._waiting.remove(starting)
            if not starting.begun:
                self._turns.give(starting.client, len(starting.request.prompt_ids))
            self._running[starting.request.id] = starting
            starting.begun, starting.gives_way = True, False
            starting.compiling = "begun"
            starting.progress = ReadingProgress()
            if starting.inherited:
                starting.inherited = False
                starting.put(TakenUp())
            now = self._now()
            self._rate.begin(now)
            self._times.started(starting.times, now)
            try:
                ask(starting.rest)
            except ProtocolError as error:
                self._fail([starting], UserError(f"the request cannot be served: {error}"))
        return True

    def tell(self, message: Message) -> None:
        """Handles a message of rank 0 about a running request, a grammar, or prompts that it reads."""
        name = getattr(message, "request", None)
        with self._lock:
            for reading, done_tokens in message.reading if isinstance(message, Heartbeat) else ():
                if reading in self._running:
                    self._running[reading].read(done_tokens, self._now())
            if not isinstance(name, str):
                return
            running = self._running.get(name)
            known = self._compiling.entries.get(name) if running is None else running
            if known is None:
                return
            if isinstance(message, Compiled | Failed | Finished) and message.processor_s > 0.0:
                # A slow machine computes fewer tokens in a second.
                self._turns.give(known.client, math.ceil(100 * message.processor_s))
            if running is None:
                self._tell_compiling(message, known)
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
        """Positions of all running requests, and the seconds in which another epoch would read them."""
        with self._lock:
            positions = sum(one.positions for one in self._running.values())
            return positions, self._rate.token_s * positions

    def interrupt(
        self, why: str, lost: TpiedgeError | None = None, since: float | None = None, *, died: bool = False
    ) -> None:
        """Ends the epoch of all running requests: by a plan, or because it was `lost`. They go on in the next epoch,
        except a guilty one (`journal.py`) if a node `died`: it fails with the loss. `since`: when they were told to
        pause, if before now."""
        with self._lock:
            running, now = list(self._running.values()), self._now() if since is None else since
            going_on = [one for one in running if not self._settled(one)]
            for one in going_on:
                if died:
                    one.died(alone=len(running) == 1)
                one.interrupted(now, "plan" if lost is None else "loss")
            if died and lost is not None:
                guilty = [one for one in going_on if one.guilty]
                self._fail(guilty, lost)
                going_on = [one for one in going_on if one not in guilty]
            self._running.clear()
            self._compiling.entries.clear()
            self._look_at_readers()
            for one in going_on:
                one.gives_way = False
                one.pause(why)
            again = sorted([*going_on, *self._waiting], key=lambda one: -one.losses)
            self._waiting = deque(again)

    def pause(self, why: str, since: float) -> None:
        """Notes that running requests have paused `since` then, though their epoch lasts; they are told `why`."""
        with self._lock:
            for one in self._running.values():
                if one.paused is None:
                    one.paused, one.paused_by = since, "plan"
                one.pause(why)

    def explain(self, why: str, *, serving: bool) -> None:
        """Tells paused requests `why` they pause, if that has changed and they were not preempted. While nothing is
        `serving`, requests that have not begun are told, too."""
        with self._lock:
            for one in (*self._running.values(), *self._waiting):
                if one.paused is None:
                    one.pause("" if serving or one.begun else why)
                elif not one.gives_way:
                    one.pause(why)

    def fail_all(self, error: TpiedgeError) -> None:
        with self._lock:
            self._fail([*self._running.values(), *self._waiting], error)
            self._waiting.clear()
            self._compiling.entries.clear()

    def close(self, error: TpiedgeError) -> None:
        """Has `submit` and `resume` raise `error` from now on. Accepted requests may still be served."""
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
            if answering.request.id in self._compiling.entries:
                answering.compiling = "left"
                self._on_cancel(answering.request.id)  # rank 0 forgets the grammar
            self._count(finished=answering.whole, cancelled=not answering.whole)
        when = "while it paused" if answering.begun else "before it began"
        error = Cancelled(f"request {answering.request.id} was cancelled {when}")
        answering.put(Dismissed() if answering.dismissed else error)

    # --- under the lock

    def _full(self, waiting: str, own: int) -> TpiedgeError:
        words = f"{waiting} are waiting already, {own} of this client: try again later"
        return self._refused(QueueFull(words))

    def _refused(self, error: TpiedgeError) -> TpiedgeError:
        self._count(refused=1)
        return error.with_traceback(None)  # raised again and again, it would lengthen its traceback

    def _able(self) -> Sequence[PendingAnswer]:
        """Returns the requests that may start now: a suspect alone (fourth law), requests with a reader before
        others."""
        suspects = [one for one in self._waiting if one.suspect]
        if not self._running and suspects:
            return suspects
        able = [one for one in self._waiting if not one.suspect and self._compiling.may_begin(one)]
        if suspects:
            able = [one for one in able if one.begun]
        return [one for one in able if one.attended] or able

    def _first(self, able: Sequence[PendingAnswer]) -> PendingAnswer | None:
        """Picks the request that starts. Requests that ran are in front and go on in order; clients take turns with the
        others."""
        if not able or able[0].begun:
            return able[0] if able else None
        running = [one.client for one in self._running.values()]
        attended = [one.client for one in self._waiting if one.attended]
        turn = self._turns.next([one.client for one in able], running, attended)
        return next(one for one in able if one.client == turn)

    def _make_way(self, awaited: int) -> None:
        """Preempts as many running requests without a reader, the latest first, as the `awaited` ones lack places."""
        missing = awaited - sum(one.gives_way or one.unwanted for one in self._running.values())
        absent = (one for one in reversed(self._running.values()) if not one.attended)
        able = [one for one in absent if not (one.gives_way or one.unwanted or one.suspect)]
        for one in able[: max(0, missing)]:
            one.gives_way = True
            self._on_cancel(one.request.id)

    def _tell_compiling(self, message: Message, entry: PendingAnswer) -> None:
        if isinstance(message, Compiled) and entry.compiling == "asked":
            entry.compiling = "compiled"
        if isinstance(message, Failed | Finished):
            del self._compiling.entries[entry.request.id]
        if isinstance(message, Failed) and entry in self._waiting:
            self._waiting.remove(entry)
            self._fail([entry], _FAULTS.get(message.kind, InternalError)(message.message))

    def _pass_on(self, message: AnswerPart, answering: PendingAnswer) -> None:
        reading, positions = answering.reading, answering.positions
        new = answering.take(message)
        if new is None:
            return
        if reading:
            self._rate.read(positions)
            self._look_at_readers()
        if answering.paused is not None:
            paused_s, answering.paused = self._now() - answering.paused, None
            self._count(resumed=1, paused_s=paused_s)
            self._times.pauses[answering.paused_by].observe(paused_s)
            answering.put(Resumed(paused_s))
        if isinstance(new, Token):
            self._count(tokens=1)
            self._turns.give(answering.client, 1)
            self._times.token(answering.times, self._now())
        answering.put(new)

    def _leave(self, answering: PendingAnswer) -> None:
        self._running.pop(answering.request.id, None)
        self._compiling.entries.pop(answering.request.id, None)
        self._look_at_readers()

    def _look_at_readers(self) -> None:
        if not any(one.reading for one in self._running.values()):
            self._rate.rest(self._now())

    def _finish(self, message: Finished, answering: PendingAnswer) -> None:
        """Ends a running request with rank 0's word, unless part of the answer is missing."""
        cancelled = message.reason == "cancel"
        if cancelled and answering.gives_way and not answering.unwanted:
            if not self._settled(answering):  # the first to go on of those that nobody waits for
                self._leave(answering)
                answering.interrupted(self._now(), "priority")
                answering.pause("requests that somebody waits for come first")
                self._waiting.appendleft(answering)
            return
        if not cancelled and not answering.agrees(message):
            told = len(answering.answer_ids)
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
            tokens = len(answering.answer_ids)
            self._times.finished(answering.times, self._now(), message.prompt_tokens, tokens)
        # The steps of the epochs before were not told.
        last = structs.replace(message, steps=0) if answering.interruptions else message
        answering.put(Dismissed() if cancelled and answering.dismissed else last)

    def _settled(self, answering: PendingAnswer) -> bool:
        reason = "cancel" if answering.unwanted else answering.finish_reason
        if reason is None:
            return False
        request, tokens = answering.request, len(answering.answer_ids)
        prompt = len(request.prompt_ids)
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
        sums = {name: getattr(self.totals, name) + count for name, count in more.items()}
        self.totals = replace(self.totals, **sums)
