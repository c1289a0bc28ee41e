"""Answers whose readers come and go: what `tpiedge master --journal` makes of accepted requests.

Laws:

1. What is said of an answer is recorded before anybody hears it.
2. A reader gets its answer from the beginning on, whatever others had of it. There is one at a time: a new one takes
   the place of the one before, whose client may have lost its connection without our knowing.
3. Who leaves cancels the answer, unless another took the place, or it came for the whole of it and may come again.
4. An answer of the master before this one goes on without a reader. As a stream it waits for one for the grace, as a
   whole for COLLECTED_WITHIN_S after its end; then it is cancelled.
5. A stop string ends the work also where nobody reads.
6. A record lasts until its answer was delivered, failed, or was cancelled by its client, and beyond the master's end.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Self

from tpiedge.api.answering import ServerEnds
from tpiedge.api.errors import ApiError
from tpiedge.api.record_folder import RecordFile, RecordFolder
from tpiedge.api.records import AcceptedRequest, key_mark, marks
from tpiedge.api.schema import Reply
from tpiedge.api.service import AnswerEvent, Generation, Service
from tpiedge.api.stream_bridge import EventQueue
from tpiedge.errors import Cancelled, InternalError, MasterFailed
from tpiedge.master.journal import Paused
from tpiedge.model.text import TextWriter
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.units import format_seconds
from tpiedge.wire.control import Token
from tpiedge.wire.requests import GenerationRequest

__all__ = ["COLLECTED_WITHIN_S", "AnswerReader", "KeptAnswer", "KeptAnswers"]

_log = logging.getLogger(__name__)

COLLECTED_WITHIN_S: Final = 600.0
"""For how long a whole answer of the master before is kept after its end."""

Now = Callable[[], float]


class KeptAnswer:
    """One accepted request, and all that was said of its answer. For any thread."""

    def __init__(
        self,
        accepted: AcceptedRequest,
        file: RecordFile,
        tokenizer: Tokenizer | None,
        now: Now,
        said: Sequence[Token] = (),
    ) -> None:
        """`said`: what `file` holds already."""
        self.accepted = accepted
        self._file = file
        self._now = now
        self._stops = TextWriter(tokenizer, accepted.reply.stops) if accepted.reply.stops else None
        self._said: list[AnswerEvent] = list(said)
        self._lock = threading.Lock()
        self._stopped = any(self._stops_at(event) for event in said)
        self._over = self._stopped
        self._error: BaseException | None = None
        self._reader: AnswerReader | None = None
        self._unread_since = now()
        self._generation: Generation | None = None
        self._thread: threading.Thread | None = None
        #: Whether it was delivered, or nobody wants it any more.
        self.ended = False

    @property
    def whole(self) -> bool:
        """Whether a stop string has ended it: nothing is missing."""
        return self._stopped

    def follow(self, generation: Generation) -> None:
        """Keeps what `generation` says. To be called once, unless it is whole already."""
        self._generation = generation
        name = f"kept {self.accepted.request.id}"
        self._thread = threading.Thread(target=self._run, args=(generation,), name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the system has no thread left
            self._thread = None
            self.end()
            raise

    def read(self, *, collects: bool) -> "AnswerReader":
        """A new reader, who takes the place of the one before. `collects`: by GET, for the whole of the answer."""
        reader = AnswerReader(self, collects=collects)
        with self._lock:
            before, self._reader = self._reader, reader
            if before is not None:
                before.supersede()
        return reader

    def lapsed(self, grace_s: float) -> bool:
        """Whether nobody came for it in time."""
        with self._lock:
            if self._reader is not None or not (self._over or self.accepted.reply.stream):
                return False
            limit_s = grace_s if self.accepted.reply.stream else COLLECTED_WITHIN_S
            return self._now() - self._unread_since > limit_s

    def end(self) -> None:
        """It was delivered, or nobody wants it any more: the work and the record end. Idempotent."""
        self.ended = True
        self._file.delete()
        self._cancel()

    def keep(self) -> None:
        """The master ends: the work ends too, but the record stays. Idempotent."""
        self._file.keep()
        self._cancel()

    def join(self, limit_s: float) -> None:
        """Waits for its thread, at most that long."""
        if self._thread is not None:
            self._thread.join(limit_s)

    # --- for its reader

    def complete(self) -> None:
        """The reader has all of it, by a stop string."""
        if self._generation is not None:
            self._generation.complete()

    def attach(self, reader: "AnswerReader", events: EventQueue) -> None:
        """Tells the reader what was said so far, but for pauses that are over, and then what follows."""
        with self._lock:
            reader.events = events
            if self._reader is not reader:
                reader.tell(_superseded())
                return
            for number, event in enumerate(self._said, 1):
                if not isinstance(event, Paused) or number == len(self._said):
                    reader.tell(event)
            if self._over:
                reader.tell(self._last_word())

    def detach(self, reader: "AnswerReader") -> None:
        """The reader reads no more. Idempotent."""
        with self._lock:
            if self._reader is reader:
                self._reader, self._unread_since = None, self._now()

    # --- its thread

    def _run(self, generation: Generation) -> None:
        error: BaseException | None = None
        try:
            for event in generation.events():
                if not self._stopped:
                    self._say(event)
        except BaseException as raised:  # handed to the reader
            error = raised
        # Cancelled: by whoever deletes the record, too, or by the master's end, which it survives.
        if isinstance(error, MasterFailed):
            self._file.keep()
            error = ServerEnds()
        elif error is not None and not self._stopped and not isinstance(error, Cancelled):
            self._file.delete()
        with self._lock:
            self._over, self._error = True, error
            if self._reader is None:
                self._unread_since = self._now()
            else:
                self._reader.tell(self._last_word())

    def _say(self, event: AnswerEvent) -> None:
        if isinstance(event, Token):
            self._file.add(event)
        stopped = self._stops_at(event)
        with self._lock:
            self._said.append(event)
            self._stopped = stopped
            if self._reader is not None:
                self._reader.tell(event)
        if stopped:
            self.complete()

    def _last_word(self) -> BaseException:
        """What a reader hears who still waits."""
        return self._error or InternalError("the answer ended without its end: report it")

    def _stops_at(self, event: AnswerEvent) -> bool:
        """Whether a stop string is complete with it."""
        return self._stops is not None and isinstance(event, Token) and self._stops.push(event.token)[1]

    def _cancel(self) -> None:
        if self._generation is not None and not self._over and not self._stopped:
            self._generation.cancel()


class AnswerReader:
    """An `AnswerFeed` for one connection, from `open` on."""

    def __init__(self, answer: KeptAnswer, *, collects: bool) -> None:
        self._answer = answer
        self._collects = collects
        #: Where it hears the answer, from `open` on; under the answer's lock.
        self.events: EventQueue | None = None
        self._superseded = False
        self._gone = False

    def open(self) -> Self:
        """On the event loop that reads."""
        self._answer.attach(self, EventQueue())
        return self

    async def next(self, within_s: float) -> AnswerEvent | None:
        if self.events is None:
            raise InternalError("an answer is read that was not opened: report it")
        return await self.events.next(within_s)

    def end(self, error: BaseException) -> None:
        self.tell(error)

    def cancel(self) -> None:
        """What becomes of the answer, `leave` says."""
        self._gone = True
        self._answer.detach(self)

    def complete(self) -> None:
        self._answer.complete()

    def join(self, _limit_s: float) -> bool:
        return self._gone

    def leave(self, delivered: bool) -> None:
        """The connection's end, after the whole answer or before. Idempotent."""
        self.cancel()
        if not self._superseded and (delivered or not self._collects):
            self._answer.end()

    # --- for its answer, from any thread

    def tell(self, item: AnswerEvent | BaseException) -> None:
        """What comes next. Before `open` it needs not be told: everything is told then."""
        if self.events is not None:
            self.events.post(item)

    def supersede(self) -> None:
        """Another reader took the place."""
        self._superseded = True
        self.tell(_superseded())


def _superseded() -> ApiError:
    return ApiError(409, "another connection reads this answer now", "superseded")


class KeptAnswers:
    """All of them, with the folder of their records. For any thread."""

    def __init__(
        self, folder: RecordFolder, service: Service, grace_s: float, now: Now = time.monotonic
    ) -> None:
        """`grace_s`: for how long a stream of the master before waits for its reader."""
        self._folder = folder
        self._service = service
        self._grace_s = grace_s
        self._now = now
        self._lock = threading.Lock()
        self._answers: dict[str, KeptAnswer] = {}

    def recover(self) -> int:
        """Goes on with the answers of the master before; returns how many. To be called before anything is accepted.

        Raises UserError for records that cannot be read.
        """
        found = self._folder.found()
        for one in found:
            record = one.record
            answer = KeptAnswer(record.accepted, one.file, self._service.tokenizer, self._now, record.said)
            self._add(answer)
            if not answer.whole:
                answer.follow(self._service.resume(record.accepted.request, record.said))
        return len(found)

    def accept(
        self, request: GenerationRequest, reply: Reply, created: int, model: str, key: bytes
    ) -> AnswerReader:
        """Submits the request of a client with that API key (empty where it needs none), which is the answer's reader;
        the rest as in AcceptedRequest. Raises as Service.submit."""
        generation = self._service.submit(request)
        accepted = AcceptedRequest(request, reply, created, model, self._folder.pack, key_mark(key))
        answer = KeptAnswer(accepted, self._folder.begin(accepted), self._service.tokenizer, self._now)
        reader = answer.read(collects=False)
        answer.follow(generation)
        self._add(answer)
        return reader

    def find(self, name: str, *, chat: bool, key: bytes) -> KeptAnswer | None:
        """The answer with this id, if the client with that API key may have it."""
        with self._lock:
            answer = self._answers.get(name)
        if answer is None or answer.ended or answer.accepted.reply.chat != chat:
            return None
        return answer if marks(answer.accepted.key, key) else None

    def sweep(self) -> None:
        """Forgets what has ended, and cancels what nobody came for. To be called now and then; does not block."""
        for answer in self._all():
            if answer.lapsed(self._grace_s):
                reply, limit_s = answer.accepted.reply, self._grace_s
                _log.warning(
                    "nobody came for the answer %s within %s: it was deleted",
                    answer.accepted.request.id,
                    format_seconds(limit_s if reply.stream else COLLECTED_WITHIN_S),
                )
                answer.end()
        with self._lock:
            self._answers = {name: one for name, one in self._answers.items() if not one.ended}

    def close(self) -> None:
        """The master ends: what was not delivered stays recorded. Idempotent."""
        for answer in self._all():
            answer.keep()

    def join(self, limit_s: float) -> None:
        """Waits for the threads, in all at most that long."""
        deadline = time.monotonic() + limit_s
        for answer in self._all():
            answer.join(max(0.0, deadline - time.monotonic()))
        self._folder.close(max(0.0, deadline - time.monotonic()))

    def _add(self, answer: KeptAnswer) -> None:
        with self._lock:
            self._answers[answer.accepted.request.id] = answer

    def _all(self) -> list[KeptAnswer]:
        with self._lock:
            return list(self._answers.values())
