"""The queue of requests: limit, order and preemption.

Laws:
1. An accepted request ends exactly once: with Finished, or with an error.
2. Clients are scheduled fairly (`fair_scheduler.py`). Requests of one client start in order. Requests with a reader
   start before requests without a reader, and preempt them.
3. When an epoch ends, its requests go on in the next epoch, before new requests.
4. The waiting request with most `deaths` starts first. A quarantined request (`journal.py`) runs alone. While it waits,
   no new request starts.
5. A request starts once its grammar is compiled. Clients are charged for compile time.
6. A request starts only while its model is served (`turns.py`). A request without a `pack` fits any model."""

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
from tpiedge.master.fair_scheduler import Compiling, FairScheduler
from tpiedge.master.journal import PendingAnswer, RequestLine, Resubmitted, Resumed
from tpiedge.master.request_times import ReadingProgress, ReadingRate, RequestHistograms, Totals
from tpiedge.quotas import ClientQuotas, within_quota
from tpiedge.wire import control
from tpiedge.wire.control import AnswerPart
from tpiedge.wire.fields import Message
from tpiedge.wire.requests import GenerationRequest

#: Limits of a client's waiting requests, and of choices that the client will submit later. The limits of all clients
#: together are twice as high.
QUEUE_LIMIT: Final = 64
POSTPONED_LIMIT: Final = 8192
#: Errors of a request that rank 0 may report; any other is a defect.
_FAULTS: Final = {kind.__name__: kind for kind in (UserError, GrammarRefused, ChildLost)}


class QueueFull(TpiedgeError):
    """The client has too many waiting requests. It may retry after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Dismissed(Cancelled):
    def __init__(self) -> None:
        super().__init__("the administrator of this server ended the request")


@dataclass(eq=False)
class RequestQueue:
    """Thread-safe. No method blocks. At most `limit` requests of a client, and twice as many of all clients, may wait.
    Interrupted requests do not count. At most `parallel` requests run. At most `compiles` grammars are compiled at a
    time. Requests' ids must differ. `on_cancel(id)` stops a running request and must not call back. `on_submit()` is
    called after a request is accepted."""

    limit: InitVar[int]
    _parallel: int
    _on_cancel: Callable[[str], None]
    _on_submit: Callable[[], None]
    _now: Callable[[], float] = time.monotonic
    compiles: InitVar[int] = 1
    totals: Totals = field(default_factory=Totals)  # replaced as a whole: readers need no lock
    _scheduler: FairScheduler = field(default_factory=FairScheduler)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: deque[PendingAnswer] = field(default_factory=deque)
    _running: dict[str, PendingAnswer] = field(default_factory=dict)  # by id, in the order of their start
    _closed: TpiedgeError | None = None
    _rate: ReadingRate = field(default_factory=ReadingRate)
    _times: RequestHistograms = field(default_factory=RequestHistograms)

    def __post_init__(self, limit: int, compiles: int) -> None:
        self._places = 2 * limit
        self._postponed = ClientQuotas(2 * POSTPONED_LIMIT)
        self._compiling = Compiling(compiles, self._parallel)

    @property
    def histograms(self) -> RequestHistograms:
        with self._lock:
            return deepcopy(self._times)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + self._postponed.used

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def idle(self) -> bool:
        with self._lock:
            return not self._running and not self._waiting

    @property
    def models(self) -> dict[str, str]:
        """The packs that requests wait for, each with the client of its first request. If a waiting request has a
        reader, requests without a reader do not count."""
        with self._lock:
            named = [one for one in self._waiting if one.request.pack]
            read = [one for one in named if one.has_reader]
            return {one.request.pack: one.client for one in reversed(read or named)}

    @property
    def packs(self) -> set[str]:
        """The packs that running and waiting requests name."""
        with self._lock:
            return {one.request.pack for one in (*self._running.values(), *self._waiting)}

    def has(self, pack: str) -> bool:
        """Whether a request of this model runs or waits."""
        with self._lock:
            return any(one.of(pack) for one in (*self._running.values(), *self._waiting))

    def charge(self, client: str, seconds: float) -> None:
        """Charges the client for `seconds` of the cluster's time."""
        with self._lock:
            self._scheduler.charge(client, _cost(seconds))

    @property
    def lines(self) -> tuple[RequestLine, ...]:
        with self._lock:
            now = self._now()
            running = [one.line(now, running=True) for one in self._running.values()]
            return (*running, *(one.line(now, running=False) for one in self._waiting))

    def dismiss(self, name: str) -> bool:
        """Ends a request with Dismissed. Returns whether the request exists."""
        return self._dismiss(lambda one: one.request.id == name)

    def dismiss_others(self, pack: str) -> None:
        """Ends the requests of other models than `pack` with Dismissed."""
        self._dismiss(lambda one: not one.of(pack))

    def _dismiss(self, chosen: Callable[[PendingAnswer], bool]) -> bool:
        with self._lock:
            found = [one for one in (*self._running.values(), *self._waiting) if chosen(one)]
            for one in found:
                one.dismissed = True
        for one in found:
            one.cancel()
        return bool(found)

    def refuse(self, error: TpiedgeError) -> NoReturn:
        with self._lock:
            raise self._refused(error)

    def submit(
        self, request: GenerationRequest, client: str = "", *, has_reader: bool = True
    ) -> PendingAnswer:
        """Accepts a request. Raises QueueFull, or the error of `close`."""
        answering = PendingAnswer(request, client, self._cancelled, self._on_submit, has_reader)
        with self._lock:
            if self._closed is not None:
                raise self._refused(self._closed)
            waiting = [one.client for one in self._waiting if one.preempted or not one.begun]
            own = waiting.count(client)
            if not within_quota(own, len(waiting), self._places):
                raise self._full(f"{len(waiting)} requests", own)
            answering.times.accepted = self._now()
            self._waiting.append(answering)
        self._on_submit()
        return answering

    def postpone(self, count: int, client: str) -> None:
        """Adds `count` requests, which are submitted later, to `waiting`. A negative `count` removes some. Raises
        QueueFull."""
        with self._lock:
            if count < 0:
                self._postponed.release(client, -count)
            elif not self._postponed.acquire(client, count):
                choices = f"{self._postponed.used} choices of requests"
                raise self._full(choices, self._postponed.used_by(client))

    def resume(self, request: GenerationRequest, said: Sequence[AnswerPart], why: str) -> PendingAnswer:
        """Accepts an earlier master's request. `said`: the part of the answer that the earlier master passed on. `why`:
        the reason of the first pause. Call this method before `submit`. Raises the error of `close`."""
        answering = PendingAnswer(request, "", self._cancelled, self._on_submit, False, recovered=True)
        with self._lock:
            if self._closed is not None:
                raise self._closed.with_traceback(None)
            answering.restore(said, self._now())
            answering.pause(why)
            if not self._finish_if_complete(answering):
                self._waiting.append(answering)
        self._on_submit()
        return answering

    def prepare(self, compile_next: Callable[[GenerationRequest, str], None], pack: str = "") -> bool:
        """Passes a request of the model `pack`, and the name from `Compiling.start`, to `compile_next`. Returns False
        if no grammar may be compiled now."""
        with self._lock:
            one = self._compiling.next([one for one in self._waiting if one.of(pack)], self._scheduler)
            if one is None:
                return False
            try:
                compile_next(one.request, self._compiling.start(one))
            except ProtocolError as error:
                self._waiting.remove(one)
                self._fail([one], UserError(f"the request cannot be served: {error}"))
        return True

    def start(self, generate: Callable[[GenerationRequest], None], pack: str = "") -> bool:
        """Passes the next request of the model `pack` to `generate`, which must neither block nor call back. Returns
        False if no request can start."""
        with self._lock:  # held while asking, so that no cancellation overtakes the request
            waiting = [one for one in self._waiting if one.of(pack)]
            if len(self._running) >= self._parallel or any(one.quarantined for one in self._running.values()):
                self._preempt(sum(one.has_reader and self._compiling.may_begin(one) for one in waiting))
                return False
            starting = self._next(waiting)
            if starting is None:
                return False
            self._waiting.remove(starting)
            if not starting.begun:
                self._scheduler.charge(starting.client, len(starting.request.prompt_ids))
            self._running[starting.request.id] = starting
            starting.begun, starting.preempted = True, False
            starting.compiling = "begun"
            starting.progress = ReadingProgress()
            if starting.recovered:
                starting.recovered = False
                starting.put(Resubmitted())
            now = self._now()
            self._rate.start(now)
            self._times.started(starting.times, now)
            try:
                generate(starting.rest)
            except ProtocolError as error:
                self._fail([starting], UserError(f"the request cannot be served: {error}"))
        return True

    def handle(self, message: Message) -> None:
        """Handles a message of rank 0."""
        name = getattr(message, "request", None)
        with self._lock:
            for reading, done_tokens in message.reading if isinstance(message, control.Heartbeat) else ():
                if reading in self._running:
                    self._running[reading].read(done_tokens, self._now())
            if not isinstance(name, str):
                return
            running = self._running.get(name)
            known = self._compiling.entries.get(name) if running is None else running
            if known is None:
                return
            processor_s = getattr(message, "processor_s", 0.0)
            if processor_s > 0.0:
                self._scheduler.charge(known.client, _cost(processor_s))
            match message:
                case control.Token() | control.PromptScores() | control.Embedding() if running is not None:
                    self._pass_on(message, running)
                case control.Finished() if running is not None:
                    self._finish(message, running)
                case control.Failed(kind=kind, message=text) if running is not None or known in self._waiting:
                    if running is None:
                        self._waiting.remove(known)
                    self._fail([known], _FAULTS.get(kind, InternalError)(text))
                case control.Compiled() if known.compiling == "asked":
                    known.compiling = "compiled"
                case control.Finished() | control.Failed():
                    del self._compiling.entries[name]

    @property
    def positions(self) -> tuple[int, float]:
        """The tokens that running requests have in the KV cache, and the seconds to compute them again."""
        with self._lock:
            positions = sum(one.positions for one in self._running.values())
            return positions, self._rate.token_s * positions

    def interrupt(
        self,
        why: str,
        lost: TpiedgeError | None = None,
        since: float | None = None,
        *,
        died: bool = False,
        travels: bool = False,
    ) -> None:
        """Ends the running requests' epoch. `lost`: the loss, if any. `died`: a node died; poison requests fail with
        `lost`. `since`: start of the pause. `travels`: machines send each other parts of the KV cache."""
        with self._lock:
            running, now = list(self._running.values()), self._now() if since is None else since
            going_on = [one for one in running if not self._finish_if_complete(one)]
            for one in going_on:
                if died:
                    one.died(alone=len(running) == 1)
                one.interrupted(now, "plan" if lost is None else "loss")
                one.travels = travels
            if died and lost is not None:
                poison = [one for one in going_on if one.poison]
                self._fail(poison, lost)
                going_on = [one for one in going_on if one not in poison]
            self._running.clear()
            self._compiling.entries.clear()
            self._look_at_readers()
            for one in going_on:
                one.preempted = False
                one.pause(why)
            self._waiting = deque(sorted([*going_on, *self._waiting], key=lambda one: -one.deaths))

    def pause(self, why: str, since: float) -> None:
        """Pauses running requests, whose epoch goes on. `why`: for readers."""
        with self._lock:
            for one in self._running.values():
                if one.paused is None:
                    one.paused, one.paused_by = since, "plan"
                one.pause(why)

    def explain(self, why: str, *, serving: bool, pack: str = "", other: str = "") -> None:
        """Tells readers why their requests wait. `why`: the reason for paused requests of the model `pack`. Unless
        `serving` is true, requests that have not begun get it too. `other`: the reason for requests of other models."""
        with self._lock:
            for one in (*self._running.values(), *self._waiting):
                if not one.of(pack):
                    one.pause(other)
                elif one.paused is None:
                    one.pause("" if serving or one.begun else why)
                elif not one.preempted:
                    one.pause(why)

    def fail_all(self, error: TpiedgeError, pack: str = "") -> None:
        """Fails all requests, or those of the model `pack`."""
        with self._lock:
            failing = [one for one in (*self._running.values(), *self._waiting) if one.of(pack)]
            self._waiting = deque(one for one in self._waiting if one not in failing)
            self._fail(failing, error)

    def close(self, error: TpiedgeError) -> None:
        """Makes `submit` and `resume` raise `error` from now on."""
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

    def _full(self, what: str, own: int) -> TpiedgeError:
        return self._refused(QueueFull(f"{what} are waiting already, {own} of this client: try again later"))

    def _refused(self, error: TpiedgeError) -> TpiedgeError:
        self._count(refused=1)
        return error.with_traceback(None)  # one error, raised often, would lengthen its traceback

    def _next(self, waiting: Sequence[PendingAnswer]) -> PendingAnswer | None:
        """Picks the request that starts. Interrupted requests are picked first."""
        quarantined = [one for one in waiting if one.quarantined]
        if not self._running and quarantined:
            return quarantined[0]
        able = [one for one in waiting if not one.quarantined and self._compiling.may_begin(one)]
        if quarantined:
            able = [one for one in able if one.begun]
        able = [one for one in able if one.has_reader] or able
        if not able or able[0].begun:
            return able[0] if able else None
        return self._scheduler.pick(able, self._running.values(), waiting)

    def _preempt(self, awaited: int) -> None:
        missing = awaited - sum(one.preempted or one.unwanted for one in self._running.values())
        absent = (one for one in reversed(self._running.values()) if not one.has_reader)
        able = [one for one in absent if not (one.preempted or one.unwanted or one.quarantined)]
        for one in able[: max(0, missing)]:
            one.preempted = True
            self._on_cancel(one.request.id)

    def _pass_on(self, message: AnswerPart, answering: PendingAnswer) -> None:
        reading, positions = answering.reading, answering.positions
        new = answering.append(message)
        if new is None:
            return
        if reading:
            self._rate.read(positions)
            self._look_at_readers()
        if answering.paused is not None:
            paused_s, answering.paused = self._now() - answering.paused, None
            brought = isinstance(new, control.Token) and new.brought > 0
            travelled, answering.travels = brought and answering.travels, False
            self._count(resumed=1, paused_s=paused_s, travelled=travelled, brought=brought and not travelled)
            self._times.pauses[answering.paused_by].observe(paused_s)
            answering.put(Resumed(paused_s))
        if isinstance(new, control.Token):
            self._count(tokens=1)
            self._scheduler.charge(answering.client, 1)
            self._times.token(answering.times, self._now())
        answering.put(new)

    def _leave(self, answering: PendingAnswer) -> None:
        self._running.pop(answering.request.id, None)
        self._compiling.entries.pop(answering.request.id, None)
        self._look_at_readers()

    def _look_at_readers(self) -> None:
        if not any(one.reading for one in self._running.values()):
            self._rate.stop(self._now())

    def _finish(self, message: control.Finished, answering: PendingAnswer) -> None:
        """Ends a running request. Fails it if tokens are missing. A preempted request waits again."""
        cancelled = message.reason == "cancel"
        if cancelled and answering.preempted and not answering.unwanted:
            if not self._finish_if_complete(answering):
                self._leave(answering)
                answering.interrupted(self._now(), "priority")
                answering.pause("requests that somebody waits for come first")
                self._waiting.appendleft(answering)
            return
        if not cancelled and not answering.agrees(message):
            words = f"{len(answering.answer_ids)} of the answer's {message.tokens} tokens came: report it"
            self._fail([answering], InternalError(words))
            return
        self._leave(answering)
        unfinished = int(cancelled and not answering.whole)
        self._count(
            finished=1 - unfinished,
            cut=int(message.reason == "length"),
            cancelled=unfinished,
            prompt_tokens=message.prompt_tokens,
            cached_tokens=message.cached_tokens,
            brought_tokens=message.brought_tokens,
        )
        if not unfinished:
            tokens = len(answering.answer_ids)
            self._times.finished(answering.times, self._now(), message.prompt_tokens, tokens)
        # Steps of earlier epochs are not known.
        last = structs.replace(message, steps=0) if answering.interruptions else message
        answering.put(Dismissed() if cancelled and answering.dismissed else last)

    def _finish_if_complete(self, answering: PendingAnswer) -> bool:
        reason = "cancel" if answering.unwanted else answering.finish_reason
        if reason is None:
            return False
        request, tokens = answering.request, len(answering.answer_ids)
        prompt = len(request.prompt_ids)
        self._finish(control.Finished(0, request.id, reason, prompt, tokens, 0, 0), answering)
        return True

    def _fail(self, failed: Sequence[PendingAnswer], error: TpiedgeError) -> None:
        """Fails requests. A request that already has its whole answer counts as finished."""
        for answering in failed:
            self._leave(answering)
        whole = sum(answering.whole for answering in failed)
        self._count(failed=len(failed) - whole, finished=whole)
        for answering in failed:
            answering.put(error)

    def _count(self, **more: float) -> None:
        sums = {name: getattr(self.totals, name) + count for name, count in more.items()}
        self.totals = replace(self.totals, **sums)


def _cost(seconds: float) -> int:
    """Returns tokens to charge for time: 100 per second. A slow machine computes fewer."""
    return math.ceil(100 * seconds)
