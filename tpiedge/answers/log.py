"""One answer as a log: its events are appended, and a reader has a position in it.

A thread follows one choice to its end and then submits a further one, retrying while the queue is full or nothing is
served. Until then further choices are counted as waiting.

Laws:
1. An event is recorded, if the answer has a record, before it is in the log, and stays there. So each reader gets the
   whole answer from the beginning. There is one reader at a time: a new one replaces the one before, whose client may
   have lost its connection without our knowing.
2. An answer whose reader's connection ended, or that was sent to its end, waits for the next reader: LEFT_S or, without
   a record and without its end, BRIEFLY_S; one that was collected as a whole COLLECTED_WITHIN_S after its end, and
   UNFINISHED_S for its end. Then it ends. An answer of the previous master waits the grace if it is a stream, else
   like collected ones. Answers without a reader are preempted by others.
3. What fails one choice fails all; an error after a choice's end fails nothing. A stop string ends the work on a choice
   even without a reader.
4. A record lasts until its answer ends or fails, or its client was told of an error, and beyond the master's end.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Literal, Self, TypeAlias

from tpiedge.answers.generation import AnswerEvent, ChoiceEvent, Generation
from tpiedge.answers.record import FoundAnswer, Question, RecordFile, event_bytes, is_recorded
from tpiedge.errors import Cancelled, InternalError, MasterFailed, TpiedgeError
from tpiedge.master.journal import Paused, TakenUp
from tpiedge.master.reconciler import NotServing
from tpiedge.master.request_queue import QueueFull
from tpiedge.master.request_times import Reading
from tpiedge.wire.control import Finished, Token
from tpiedge.wire.requests import GenerationRequest

LEFT_S: Final = 60.0
BRIEFLY_S: Final = 5.0
"""More than the three seconds after which a browser connects again."""
COLLECTED_WITHIN_S: Final = 600.0
UNFINISHED_S: Final = 24 * 3600.0


class Superseded(TpiedgeError):
    def __init__(self) -> None:
        super().__init__("another connection reads this answer now")


class ServerEnds(TpiedgeError):
    def __init__(self) -> None:
        super().__init__("the server is shutting down")


Parting: TypeAlias = Literal["sent", "for good", "lost"]
"""A client was sent the answer with its end or error, does not know the answer's id, or may come again."""


class AnswerLog:
    """One accepted request and the events of its answer. For any thread."""

    def __init__(
        self, question: Question, record: RecordFile | None, now: Callable[[], float], client: str = ""
    ) -> None:
        """`record`: with it, the answer survives the master. `client` is "" for a request of an earlier master."""
        self.question = question
        self.client = client
        #: Memory that it takes, about.
        self.held_bytes = question.nbytes
        #: Only appended to.
        self.events: list[ChoiceEvent] = []
        #: The number of the last event of each choice.
        self.last: dict[int, int] = {}
        #: Whether nothing more comes; set after the last event is in the log.
        self.over = False
        self.error: BaseException | None = None
        #: Whether this master sent it to its end.
        self.sent = False
        self.ended = False
        self._record = record
        self._now = now
        #: Held while the record is written, so that it has the order of the log.
        self._order = threading.Lock()
        self._lock = threading.Lock()
        self._lacking = set(range(len(question.requests)))
        #: Submitted choices, by number, and choices that are still to be submitted.
        self._generations: dict[int, Generation] = {}
        self._left: deque[tuple[int, GenerationRequest]] = deque()
        self._submit: Callable[..., Generation]
        self._postpone: Callable[[int], None]
        self._stopped = threading.Event()
        self.threads: list[threading.Thread] = []
        self._taken_up = self._given_up = False
        self._reader: AnswerReader | None = None
        self._left_at: float | None = None
        self._unread_since = now()
        #: How long it waits for a reader before its end, and after it.
        self._unfinished_s = self._finished_s = LEFT_S

    @classmethod
    def recovered(cls, found: FoundAnswer, now: Callable[[], float], grace_s: float) -> Self:
        """Makes the log of an answer of the previous master; `grace_s`: how long a stream waits for its first
        reader."""
        log = cls(found.question, found.record, now)
        for choice, event in found.said:
            log._append(choice, event)
            if log._ends_with(choice, event):
                log._lacking.discard(choice)
        log.over = not log._lacking
        if log.over:
            found.record.finish()
        log._unfinished_s = log._finished_s = grace_s
        if not found.question.stream:
            log._unfinished_s, log._finished_s = UNFINISHED_S, COLLECTED_WITHIN_S
        return log

    @property
    def lasting(self) -> bool:
        """Whether it is to survive the master."""
        return self._record is not None

    @property
    def recorded(self) -> bool:
        return self._record is not None and self._record.there

    @property
    def lacking(self) -> list[int]:
        with self._lock:
            return sorted(self._lacking)

    @property
    def left_at(self) -> float | None:
        """Time at which its reader left, if it waits for that client; else None."""
        with self._lock:
            return self._left_at if self._reader is None else None

    @property
    def waited_s(self) -> float | None:
        """Seconds that it waited for a reader, if they are too many; else None."""
        with self._lock:
            if self._reader is not None:
                return None
            limit_s = self._finished_s if self.over else self._unfinished_s
            return limit_s if self._now() - self._unread_since > limit_s else None

    def follow(
        self,
        generations: Mapping[int, Generation],
        left: Mapping[int, GenerationRequest],
        submit: Callable[..., Generation],
        postpone: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Appends the events of `generations` and of the choices `left`, which `submit` (request, attended) takes
        later; `postpone` counts them. To be called once. Raises RuntimeError if the system has no thread left: then it
        must be ended or kept."""
        with self._lock:
            self._generations, self._left = dict(generations), deque(left.items())
            self._submit, self._postpone = submit, postpone
            self._attend()
        for one in generations.items():
            thread = threading.Thread(
                target=self._hear, args=one, name=f"answer {self.question.name}", daemon=True
            )
            thread.start()
            self.threads.append(thread)

    def read(self, *, collects: bool = False) -> "AnswerReader":
        """Makes a new reader, which replaces the one before."""
        reader = AnswerReader(self, collects=collects)
        with self._lock:
            before, self._reader = self._reader, reader
            self._attend()
        if before is not None:
            before.end(Superseded())
        return reader

    def complete(self, choice: int) -> None:
        """Ends the work on a choice because a stop string ended it. Idempotent."""
        with self._lock:
            generation = self._generations.get(choice)
        if generation is not None:
            generation.complete()

    def leave(self, reader: "AnswerReader", parting: Parting) -> None:
        """Ends the reading and, if the parting says so, the answer; no effect for a replaced reader. Idempotent."""
        with self._lock:
            if self._reader is not reader:
                return
            self._reader, self._unread_since = None, self._now()
            self._left_at = self._unread_since
            collected = reader.collects and self.lasting
            self._finished_s = COLLECTED_WITHIN_S if collected else LEFT_S
            self._unfinished_s = UNFINISHED_S if collected else LEFT_S if self.lasting else BRIEFLY_S
            self._attend()
        self.sent |= parting == "sent"
        if parting == "for good" or (parting == "sent" and not self.over):  # a time limit ended the latter
            self.end()
        elif parting == "sent" and self._given_up and self._record is not None:
            self._record.delete()

    def interrupt(self, why: Exception) -> None:
        with self._lock:
            reader = self._reader
        if reader is not None:
            reader.end(why)

    def delete(self) -> None:
        """Deletes it for its client."""
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.end(Cancelled("the answer was deleted by its client"))
        self.end()

    def end(self) -> None:
        """Ends the work and the record. Idempotent."""
        self.ended = True
        if self._record is not None:
            self._record.delete()
        self._cancel()

    def keep(self) -> None:
        """Ends the work but keeps the record: the master ends. Idempotent."""
        if self._record is not None:
            self._record.keep()
        self._cancel()

    # --- in its threads

    def _hear(self, choice: int, generation: Generation) -> None:
        heard: tuple[int, Generation] | None = (choice, generation)
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
                    raise InternalError("the answer ended without its end: report it")
                with self._lock:
                    self._generations.pop(heard[0], None)
                heard = self._next()
        except BaseException as error:  # handed to the reader
            self._fail(error)

    def _next(self) -> tuple[int, Generation] | None:
        """Submits a further choice, if any. Raises as Queue.submit, except for what is worth another try."""
        again_s = 0.0
        while not self._stopped.wait(again_s):
            with self._lock:
                if not self._left:
                    return None
                choice, request = self._left[0]
                try:
                    generation = self._submit(request, attended=self._reader is not None)
                except QueueFull as full:
                    again_s = full.retry_after_s
                except NotServing:
                    again_s = 1.0
                else:
                    self._left.popleft()
                    self._postpone(-1)
                    self._generations[choice] = generation
                    return choice, generation
        return None

    def _say(self, choice: int, event: AnswerEvent) -> bool:
        """Handles an event of a choice; returns whether the choice has ended."""
        with self._order:
            if self.over or choice not in self._lacking:
                return True
            if isinstance(event, TakenUp):
                if not self._taken_up and self._record is not None:  # once, however many choices there are
                    self._record.take_up()
                self._taken_up = True
                return False
            if self._record is not None and is_recorded(event):
                self._record.add(choice, event)
            ends = self._ends_with(choice, event)
            self._append(choice, event)
            if ends:
                with self._lock:
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

    def _ends_with(self, choice: int, event: AnswerEvent) -> bool:
        """Whether the event ends the choice. To be called once for each event."""
        if isinstance(event, Finished):
            return True
        stops = self.question.stops
        return bool(stops) and isinstance(event, Token) and stops[choice].push(event.token)[1]

    def _attend(self) -> None:
        for generation in self._generations.values():
            generation.attend(self._reader is not None)

    def _cancel(self) -> None:
        self._stopped.set()
        with self._lock:
            if self._left:
                self._postpone(-len(self._left))
                self._left.clear()
            unended = [one for choice, one in self._generations.items() if choice in self._lacking]
        for generation in unended:
            generation.cancel()


class AnswerReader:
    def __init__(self, log: AnswerLog, *, collects: bool) -> None:
        self.log = log
        self.collects = collects  # the whole answer, by GET
        self._position = 0
        #: Events before it came; it hears of no pause among them that is over.
        self._old = len(log.events)
        self._why: BaseException | None = None
        # No lock: its holder could be kept from a busy processor, and the event loop, with all answers, would wait.
        self._waits = False
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def next(self, within_s: float) -> ChoiceEvent | None:
        """Returns the next event, or None `within_s`. Raises the error that ended the answer or the reading."""
        found = self._take()
        if found is not None:
            return found
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(within_s):
                while True:
                    self._woken.clear()
                    self._waits = True
                    found = self._take()  # who appends from now on sees that this one waits
                    if found is not None:
                        return found
                    await self._woken.wait()
        except TimeoutError:
            return None
        finally:
            self._waits = False

    def end(self, why: BaseException) -> None:
        """Has `next` raise `why` from now on. For any thread."""
        self._why = self._why or why
        self.wake()

    def wake(self) -> None:
        """Says that something was appended. For any thread."""
        if self._waits and self._loop is not None:
            self._waits = False
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._woken.set)

    def leave(self, parting: Parting) -> None:
        self.log.leave(self, parting)

    def _take(self) -> ChoiceEvent | None:
        if self._why is not None:
            raise self._why
        log, over = self.log, self.log.over  # looked at first: then all events are there
        while self._position < len(log.events):
            number, self._position = self._position, self._position + 1
            choice, event = log.events[number]
            if number >= self._old or not isinstance(event, Paused | Reading) or number == log.last[choice]:
                return choice, event
        if over:
            raise log.error or InternalError("the answer ended without its end: report it")
        return None
