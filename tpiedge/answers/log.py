"""The log of all events of an answer, and its life without readers.

Laws:
1. While the disk has room, an event is recorded before it enters the log. A new reader replaces the previous one.
2. An answer without a reader is deleted after LEFT_S. An unfinished answer without a record is deleted after BRIEFLY_S.
   A recorded answer waits longer after an unstreamed GET: UNFINISHED_S before its end, COLLECTED_WITHIN_S after its
   end. An earlier master's unstreamed answers have the same limits. An earlier master's streams wait `grace_s`.
3. An error of an unfinished choice fails all choices.
4. A record is deleted by `end`, by a failure while the master runs, or by an error that the client received."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, Protocol, Self, TypeAlias

from tpiedge.answers.record import RESUBMIT, FoundAnswer, Question, RecordFile, event_bytes, event_line, line
from tpiedge.errors import Cancelled, InternalError, MasterFailed, TpiedgeError
from tpiedge.master.journal import AnswerEvent, Paused, PendingAnswer, Resubmitted
from tpiedge.master.reconciler import NotServing
from tpiedge.master.request_queue import QueueFull
from tpiedge.master.request_times import Reading
from tpiedge.wire.control import AnswerPart, Finished, Token
from tpiedge.wire.requests import GenerationRequest

LEFT_S: Final = 60.0
BRIEFLY_S: Final = 5.0  # a browser connects again after three
COLLECTED_WITHIN_S: Final = 600.0
UNFINISHED_S: Final = 24 * 3600.0
ChoiceEvent: TypeAlias = tuple[int, AnswerEvent]  # an event with the number of its choice
#: Submitted and remaining choices, by number.
Choices: TypeAlias = tuple[Mapping[int, PendingAnswer], Mapping[int, GenerationRequest]]


class Queue(Protocol):
    """A queue of requests, like RequestQueue. Thread-safe; no method blocks."""

    def submit(self, request: GenerationRequest, client: str, *, has_reader: bool = True) -> PendingAnswer:
        """Queues `request`. Raises QueueFull, NotServing, UserError."""

    def postpone(self, count: int, client: str) -> None:
        """Announces `count` later requests of `client`. A negative `count` withdraws announced requests. Raises
        QueueFull."""

    def resume(self, request: GenerationRequest, said: Sequence[AnswerPart]) -> PendingAnswer:
        """Queues a request whose answer already has the parts `said`. Raises NotServing."""


class Superseded(TpiedgeError):
    """Another connection now reads the answer."""


class ServerEnds(TpiedgeError):
    def __init__(self) -> None:
        super().__init__("the server is shutting down")


DisconnectReason: TypeAlias = Literal["sent", "for good", "lost"]
"""The client got the end or an error ("sent"), cannot resume the answer ("for good"), or may reconnect ("lost")."""


class AnswerLog:
    """An accepted request and the events of its answer. Thread-safe."""

    def __init__(
        self, question: Question, record: RecordFile | None, now: Callable[[], float], client: str = ""
    ) -> None:
        """`client` is "" for a request of an earlier master."""
        self.question = question
        self.client = client
        self.held_bytes = question.nbytes  # an estimate of its memory
        self.events: list[ChoiceEvent] = []  # append-only
        self.last: dict[int, int] = {}  # the number of the last event of each choice
        self.over = False  # set after the last event is in the log
        self.error: BaseException | None = None
        self.sent = False  # whether this master sent it to its end
        self.ended = False
        self._record, self.lasting = record, record is not None
        self._now = now
        self._order = threading.Lock()  # held so that record and log have the same order
        self._lock = threading.Lock()
        self._lacking = set(range(len(question.requests)))
        self._generations: dict[int, PendingAnswer] = {}
        self._left: deque[tuple[int, GenerationRequest]] = deque()  # choices that are not submitted yet
        self._queue: Queue
        self._counted = True  # whether the choices in _left count as waiting
        self._stopped = threading.Event()
        self.threads: list[threading.Thread] = []
        self._resubmitted = self._given_up = False
        self._reader: AnswerReader | None = None
        self._left_at: float | None = None
        self._unread_since = now()
        #: The limits of law 2 before and after the answer's end.
        self._unfinished_s = self._finished_s = LEFT_S

    @classmethod
    def recovered(cls, found: FoundAnswer, now: Callable[[], float], grace_s: float) -> Self:
        """Makes the log of an earlier master's answer. A streamed answer waits `grace_s` for a reader."""
        log = cls(found.question, found.record, now)
        log._counted = False
        for choice, event in found.said:
            log._append(choice, event)
            if log._ends_with(choice, event):
                log._lacking.discard(choice)
        if not log._lacking:
            log._end_work()
            found.record.finish()
        log._unfinished_s = log._finished_s = grace_s
        if not found.question.stream:
            log._unfinished_s, log._finished_s = UNFINISHED_S, COLLECTED_WITHIN_S
        return log

    @property
    def recorded(self) -> bool:
        return self._record is not None and self._record.there

    @property
    def lacking(self) -> list[int]:
        with self._lock:
            return sorted(self._lacking)

    @property
    def left_at(self) -> float | None:
        """The time at which the last reader left; None while there is a reader."""
        with self._lock:
            return self._left_at if self._reader is None else None

    @property
    def waited_s(self) -> float | None:
        """The limit on the time without a reader if it is exceeded, else None."""
        with self._lock:
            if self._reader is not None:
                return None
            limit_s = self._finished_s if self.over else self._unfinished_s
            return limit_s if self._now() - self._unread_since > limit_s else None

    def follow(self, choices: Choices, queue: Queue) -> None:
        """Starts threads that fill the log. Call it once. Raises RuntimeError if no thread can start."""
        with self._lock:
            self._queue, self._generations, self._left = queue, dict(choices[0]), deque(choices[1].items())
            self._update_has_reader()
        for one in choices[0].items():
            name = f"answer {self.question.name}"
            thread = threading.Thread(target=self._hear, args=one, name=name, daemon=True)
            thread.start()
            self.threads.append(thread)

    def read(self, *, collects: bool = False) -> "AnswerReader":
        """Makes a reader, which replaces the previous one."""
        reader = AnswerReader(self, collects=collects)
        with self._lock:
            before, self._reader = self._reader, reader
            self._update_has_reader()
        if before is not None:
            before.end(Superseded("another connection reads this answer now"))
        return reader

    def complete(self, choice: int) -> None:
        """Stops the generation of a choice that a stop string ended. Idempotent."""
        with self._lock:
            generation = self._generations.get(choice)
        if generation is not None:
            generation.complete()

    def disconnect(self, reader: "AnswerReader", reason: DisconnectReason) -> None:
        """Detaches `reader`, unless another one has replaced it. Some reasons end the answer. Idempotent."""
        with self._lock:
            if self._reader is not reader:
                return
            self._reader, self._unread_since = None, self._now()
            self._left_at = self._unread_since
            collected = reader.collects and self.lasting
            self._finished_s = COLLECTED_WITHIN_S if collected else LEFT_S
            self._unfinished_s = UNFINISHED_S if collected else LEFT_S if self.lasting else BRIEFLY_S
            self._update_has_reader()
            over = self.over
        self.sent |= reason == "sent"
        if reason == "for good" or (reason == "sent" and not over):  # sent: an error, as of a time limit
            self.end()
        elif reason == "sent" and self._given_up and self._record is not None:
            self._record.delete()

    def interrupt(self, why: Exception) -> None:
        reader = self._reader
        if reader is not None:
            reader.end(why)

    def delete(self) -> None:
        """Ends the answer at its client's request."""
        self.interrupt(Cancelled("the answer was deleted by its client"))
        self.end()

    def end(self) -> None:
        """Cancels the work and deletes the record. Idempotent."""
        self.ended = True
        if self._record is not None:
            self._record.delete()
        self._cancel()

    def keep(self) -> None:
        """Cancels the work but keeps the record. Idempotent."""
        if self._record is not None:
            self._record.keep()
        self._cancel()

    # --- in the answer's threads

    def _hear(self, choice: int, generation: PendingAnswer) -> None:
        heard: tuple[int, PendingAnswer] | None = (choice, generation)
        try:
            while heard is not None:
                ended = False
                try:
                    for event in heard[1].events():
                        ended = self._say(heard[0], event) or ended
                except BaseException:
                    if not ended:
                        raise
                if not ended:
                    raise InternalError("the answer ended without a final event: please report it")
                with self._lock:
                    self._generations.pop(heard[0], None)
                heard = self._next()
        except BaseException as error:  # handed to the reader
            self._fail(error)

    def _next(self) -> tuple[int, PendingAnswer] | None:
        """Submits a further choice; waits while the queue refuses it. Raises UserError."""
        again_s = 0.0
        while not self._stopped.wait(again_s):
            with self._lock:
                if not self._left:
                    return None
                choice, request = self._left[0]
                try:
                    has_reader = self._reader is not None
                    generation = self._queue.submit(request, client=self.client, has_reader=has_reader)
                except QueueFull as full:
                    again_s = full.retry_after_s
                except NotServing:
                    again_s = 1.0
                else:
                    self._left.popleft()
                    self._leave_queue(1)
                    self._generations[choice] = generation
                    return choice, generation
        return None

    def _say(self, choice: int, event: AnswerEvent) -> bool:
        """Records and appends an event; returns whether its choice has ended."""
        with self._order:
            if self.over or choice not in self._lacking:
                return True
            if isinstance(event, Resubmitted):
                again, self._resubmitted = self._resubmitted, True  # one line for all choices
                if not again and self._record is not None and not self._record.write(line(RESUBMIT)):
                    self._record.delete()  # uncounted, it could kill every later master
                return False
            if self._record is not None:
                self._record.write(event_line(choice, event))
            ends = self._ends_with(choice, event)
            with self._lock:  # so that a reader that leaves after the last event finds the answer over
                self._append(choice, event)
                if ends:
                    self._given_up |= isinstance(event, Finished) and event.reason == "cancel"
                    self._lacking.discard(choice)
                    if not self._lacking:
                        self._end_work()
            reader = self._reader
            if reader is not None:
                reader.wake()
            if not self._lacking and self._record is not None:
                self._record.finish()
        if ends and isinstance(event, Token):
            self.complete(choice)
        return ends

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self.over:
                return
            if self._record is not None:
                if isinstance(error, MasterFailed):
                    error = ServerEnds()
                else:
                    self._record.delete()
            self.error = error
            self._end_work()
            reader = self._reader
        if reader is not None:
            reader.wake()
        self._cancel()

    def _append(self, choice: int, event: AnswerEvent) -> None:
        self.last[choice] = len(self.events)
        self.events.append((choice, event))
        self.held_bytes += event_bytes(event)

    def _end_work(self) -> None:
        if self._reader is None and self._finished_s != self._unfinished_s:
            self._unread_since = self._now()
        self.over = True
        self.question = replace(self.question, stops=())  # the writers hold the tokenizer

    def _ends_with(self, choice: int, event: AnswerEvent) -> bool:
        """Whether the event ends the choice. Call it once for each event."""
        if isinstance(event, Finished):
            return True
        stops = self.question.stops
        return bool(stops) and isinstance(event, Token) and stops[choice].push(event.token)[1]

    def _update_has_reader(self) -> None:
        for generation in self._generations.values():
            generation.set_has_reader(self._reader is not None)

    def _leave_queue(self, count: int) -> None:
        if self._counted:
            self._queue.postpone(-count, self.client)

    def _cancel(self) -> None:
        self._stopped.set()
        with self._lock:
            if self._left:
                self._leave_queue(len(self._left))
                self._left.clear()
            unended = [one for choice, one in self._generations.items() if choice in self._lacking]
        for generation in unended:
            generation.cancel()


class AnswerReader:
    def __init__(self, log: AnswerLog, *, collects: bool) -> None:
        self.log = log
        self.collects = collects  # whether a GET collects the whole answer
        self._position = 0
        #: How many events are older than the reader, which skips old pauses and old reports of reading.
        self._old = len(log.events)
        self._why: BaseException | None = None
        # No lock: all answers would wait while a thread that holds it gets no processor.
        self._waits = False
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def next(self, within_s: float) -> ChoiceEvent | None:
        """Returns the next event, or None if none comes within `within_s`. Raises the error that ended the reading."""
        found = self._next_event()
        if found is not None:
            return found
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(within_s):
                while True:
                    self._woken.clear()
                    self._waits = True
                    found = self._next_event()  # an append after this look sees _waits
                    if found is not None:
                        return found
                    await self._woken.wait()
        except TimeoutError:
            return None
        finally:
            self._waits = False

    def end(self, why: BaseException) -> None:
        """Makes `next` raise `why` from now on. Thread-safe."""
        self._why = self._why or why
        self.wake()

    def wake(self) -> None:
        """Wakes `next` after an append. Thread-safe."""
        if self._waits and self._loop is not None:
            self._waits = False
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._woken.set)

    def disconnect(self, reason: DisconnectReason) -> None:
        self.log.disconnect(self, reason)

    def _next_event(self) -> ChoiceEvent | None:
        if self._why is not None:
            raise self._why
        log, over = self.log, self.log.over  # `over` is read first: then all events are there
        while self._position < len(log.events):
            number, self._position = self._position, self._position + 1
            choice, event = log.events[number]
            if number >= self._old or not isinstance(event, Paused | Reading) or number == log.last[choice]:
                return choice, event
        if over:
            raise log.error or InternalError("the answer ended without a final event: please report it")
        return None
