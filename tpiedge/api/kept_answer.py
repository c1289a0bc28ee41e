"""One answer whose readers come and go.

Laws:

1. What is said of an answer is recorded before anybody hears it.
2. A reader gets its answer from the beginning on, whatever others had of it. There is one at a time: a new one takes
   the place of the one before, whose client may have lost its connection without our knowing.
3. An answer whose reader's connection ends goes on without one and waits for the next: for LEFT_S or, of a reader that
   came for the whole of it, as those of law 4. Then it ends; at once, where its client says so or cannot come again.
   One that was sent to its end waits in the same way: what the system has taken, nobody need have read. It ends once
   its client acknowledges it (`acknowledgement.py`).
4. An answer of the master before this one goes on without a reader. As a stream it waits for one for the grace, as a
   whole for COLLECTED_WITHIN_S after its end, and for that UNFINISHED_S at most. The latter counts from the request on,
   however many masters there were since.
5. What nobody reads gives way to what somebody waits for (`Generation.attend`).
6. A stop string ends the work on a choice also where nobody reads.
7. What fails one choice fails all.
8. A record lasts as long as its answer, or until that failed or its client was told of an error, and beyond the
   master's end. Where that was in order, and nothing came of the answer, the master has not taken it up.
9. A record that the disk had no room for is made anew, as a whole, once it has (`record_again`).
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from tpiedge.api.answer_reader import AnswerReader, superseded
from tpiedge.api.answering import ServerEnds
from tpiedge.api.further_choices import FurtherChoices
from tpiedge.api.heard_choices import HeardChoices
from tpiedge.api.held_bytes import event_bytes, request_bytes
from tpiedge.api.record_file import RecordFile
from tpiedge.api.records import (
    AcceptedRequest,
    RecordedEvent,
    accepted_lines,
    event_line,
    taken_up_line,
)
from tpiedge.api.service import AnswerEvent, Generation
from tpiedge.api.stream_bridge import ChoiceEvent, EventQueue
from tpiedge.errors import Cancelled, InternalError, MasterFailed
from tpiedge.master.journal import Paused, TakenUp
from tpiedge.master.reading_progress import Reading
from tpiedge.model.text import TextWriter
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.control import Finished, PromptScores, Token

COLLECTED_WITHIN_S: Final = 600.0
"""For how long a whole answer of the master before is kept after its end."""
UNFINISHED_S: Final = 24 * 3600.0
"""For how long it may lack its end, while nobody comes for it and others come first."""
LEFT_S: Final = 60.0
"""For how long an answer waits for a client whose connection ended."""


@dataclass(frozen=True, slots=True)
class _Patience:
    """For how long an answer waits for a reader; with `unfinished_s` from its end on, and so long for that."""

    within_s: float
    unfinished_s: float | None = None

    def limit_s(self, over: bool) -> float:
        """For how long now; `over`: whether the answer has its end."""
        return self.within_s if over or self.unfinished_s is None else self.unfinished_s


_LEFT: Final = _Patience(LEFT_S)
_COLLECTED: Final = _Patience(COLLECTED_WITHIN_S, UNFINISHED_S)


class KeptAnswer:
    """One accepted request, and all that was said of its answer. For any thread."""

    def __init__(
        self,
        accepted: AcceptedRequest,
        file: RecordFile,
        tokenizer: Tokenizer | None,
        now: Callable[[], float],
        said: Sequence[RecordedEvent] = (),
        grace_s: float = 0.0,
        age_s: float = 0.0,
        client: str = "",
        taken_up: int = 0,
    ) -> None:
        """`said`: what `file` holds already; `grace_s`: for how long it waits for its first reader, if it is a stream
        of the master before; `age_s`: how long ago that accepted it; `client`: whose it is, as of Guard, empty where
        that one accepted it; `taken_up` as of AnswerRecord."""
        self.accepted = accepted
        self.client = client
        #: How much memory it takes, about.
        self.held_bytes = request_bytes(accepted) + sum(event_bytes(event) for _, event in said)
        self._file = file
        self._now = now
        self._stops = _stop_writers(accepted, tokenizer)
        self._said: list[ChoiceEvent] = list(said)
        #: The number of the last event of each choice.
        self._last = {choice: number for number, (choice, _) in enumerate(said)}
        #: Held while the record is written: so it has the order in which readers hear of the choices.
        self._order = threading.Lock()
        self._lock = threading.Lock()
        self._lacking = set(range(accepted.each * len(accepted.prompts)))
        for choice, event in said:
            if self._ends_with(choice, event):
                self._lacking.discard(choice)
        self._taken_up = False
        #: By how many masters since something was said last, this one included.
        self._tries = taken_up
        self._over = not self._lacking
        if self._over:
            file.finish()
        self._error: BaseException | None = None
        self._given_up = False
        self._reader: AnswerReader | None = None
        #: The one that came last, whether it still reads or not.
        self._latest: AnswerReader | None = None
        self._patience = _Patience(grace_s) if accepted.reply.stream else _COLLECTED
        self._unread_since = now()
        #: Of a whole answer, until it has a reader.
        self._accepted_at = None if accepted.reply.stream else self._unread_since - age_s
        self._left_at: float | None = None
        self._heard: HeardChoices | None = None
        #: Whether this master sent it to its end.
        self.sent = False
        #: Whether it was read, or nobody wants it any more.
        self.ended = False

    @property
    def lacking(self) -> list[int]:
        """The choices that have not ended, in their order."""
        with self._lock:
            return sorted(self._lacking)

    def follow(self, generations: Mapping[int, Generation], further: FurtherChoices) -> None:
        """Keeps what these say of choices that are `lacking`, and `further` of the others. To be called once. Raises
        RuntimeError where the system has no thread left: then it is to be ended or kept."""
        numbers = [choice for choice in self.lacking if choice not in generations]
        heard = HeardChoices(self.accepted.name, generations, further, numbers, self._say, self._fail)
        with self._lock:
            self._heard = heard
            self._attend(self._reader is not None)
        heard.start()

    def read(self, *, collects: bool) -> AnswerReader:
        """A new reader, who takes the place of the one before. `collects`: by GET, for the whole of the answer."""
        reader = AnswerReader(self, collects=collects)
        with self._lock:
            before, self._reader, self._accepted_at = self._reader, reader, None
            self._latest = reader
            if before is not None:
                before.supersede(superseded())
            self._attend(True)
        return reader

    @property
    def over(self) -> bool:
        """Whether nothing more comes of it."""
        return self._over

    @property
    def recorded(self) -> bool:
        """Whether another master could go on with it."""
        return self._file.there

    @property
    def lost_record(self) -> bool:
        """Whether it is to be recorded, and the disk had no room."""
        return self._file.lost

    @property
    def left_at(self) -> float | None:
        """When the connection of its client ended, or it was sent to its end, if it waits for that client; None while
        it does not."""
        with self._lock:
            return self._left_at if self._reader is None else None

    @property
    def waited_s(self) -> float | None:
        """For how long it waited for a reader, where that is too long."""
        with self._lock:
            if self._reader is not None:
                return None
            limit_s = self._patience.limit_s(self._over)
            if self._now() - self._unread_since > limit_s:
                return limit_s
            in_all_s = UNFINISHED_S + (COLLECTED_WITHIN_S if self._over else 0.0)
            late = self._accepted_at is not None and self._now() - self._accepted_at > in_all_s
            return in_all_s if late else None

    def delete(self) -> None:
        """Its client wants it no more, whoever reads it."""
        with self._lock:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.supersede(Cancelled("the answer was deleted by its client"))
        self.end()

    def end(self) -> None:
        """It was read, or nobody wants it any more: the work and the record end. Idempotent."""
        self.ended = True
        self._file.delete()
        self._cancel()

    def keep(self) -> None:
        """The master ends: the work ends too, but the record stays. Idempotent."""
        self._file.keep()
        self._cancel()

    def take_back(self) -> None:
        """After `keep`, as of RecordFile. Idempotent."""
        self._file.take_back()

    def record_again(self) -> bool:
        """Makes the record anew, as a whole, where the disk had no room for it. Waits for the disk. Returns whether
        there was room."""
        with self._order:
            if self._file.lost:
                said = b"".join(event_line(number, one) for number, one in self._said if _is_recorded(one))
                before = self._tries - self._taken_up if self._tries else 0
                self._file.write_anew(accepted_lines(self.accepted) + said + taken_up_line() * before)
                if self._tries > before:
                    self._file.take_up()
            if self._over:
                self._file.finish()
            return not self._file.lost

    def join(self, limit_s: float) -> None:
        """Waits for its thread, at most that long."""
        if self._heard is not None:
            self._heard.join(limit_s)

    # --- for its reader

    def complete(self, choice: int) -> None:
        """The reader has all of that choice, by a stop string."""
        if self._heard is not None:
            self._heard.complete(choice)

    def attach(self, reader: AnswerReader, events: EventQueue) -> None:
        """From now on the reader may take what was said so far, and is told then what follows."""
        with self._lock:
            reader.events = events
            if self._reader is not reader:
                reader.tell(superseded())

    def said_since(self, reader: AnswerReader, start: int, count: int) -> list[ChoiceEvent | None]:
        """The next `count` events, or all that there are, which the reader has caught up with then. None in place of
        pauses that are over."""
        with self._lock:
            said = self._said[start : start + count]
            if start + count >= len(self._said):
                reader.caught_up = True
                if self._over:
                    reader.tell(self._last_word())
            return [
                None if isinstance(event, Paused) and number < self._last[choice] else (choice, event)
                for number, (choice, event) in enumerate(said, start)
            ]

    def was_sent(self) -> None:
        """A reader was sent the answer with its end, or what it failed by."""
        self.sent = True
        if not self._over:
            self.end()  # the clock ended it, and nothing else
        elif self._given_up:
            self._file.delete()

    def acknowledge(self, reader: AnswerReader) -> None:
        """Its client has read what this reader was sent. No effect where another one came since."""
        if self._latest is reader:
            self.end()

    def detach(self, reader: AnswerReader, *, collects: bool) -> None:
        """The reader reads no more; `collects` as of `read`. Idempotent."""
        with self._lock:
            if self._reader is reader:
                self._reader, self._left_at = None, self._now()
                self._unread_since = self._left_at
                self._patience = _COLLECTED if collects else _LEFT
                self._attend(False)

    # --- its threads

    def _say(self, choice: int, event: AnswerEvent) -> bool:
        """What comes of a choice; returns whether that has ended."""
        with self._order:
            if isinstance(event, TakenUp):
                if not self._taken_up:  # once by this master, however many choices there are
                    self._file.take_up()
                    self._tries += 1
                self._taken_up = True
                return False
            with self._lock:
                if self._over or choice not in self._lacking:
                    return True
            if _is_recorded(event):
                self._file.add(choice, event)
                self._tries = 0
            ends = self._ends_with(choice, event)
            with self._lock:
                if not isinstance(event, Reading):  # of which the next reader hears anew
                    self._last[choice] = len(self._said)
                    self._said.append((choice, event))
                    self.held_bytes += event_bytes(event)
                if ends:
                    self._given_up |= isinstance(event, Finished) and event.reason == "cancel"
                    self._lacking.discard(choice)
                    if not self._lacking:
                        self._end_work()
                if self._reader is not None and self._reader.caught_up:
                    self._reader.tell((choice, event))
            if self.over:
                self._file.finish()
        if ends and isinstance(event, Token):
            self.complete(choice)
        return ends

    def _fail(self, error: BaseException) -> None:
        """What ended the answer; all choices end with it."""
        with self._lock:
            if self._over:
                return
            if isinstance(error, MasterFailed):
                error = ServerEnds()
            else:
                self._file.delete()
            self._error = error
            self._end_work()
            if self._reader is not None and self._reader.caught_up:
                self._reader.tell(self._last_word())
        self._cancel()

    def _end_work(self) -> None:
        """Nothing more comes."""
        self._over = True
        if self._reader is None and self._patience.unfinished_s is not None:
            self._unread_since = self._now()

    def _last_word(self) -> BaseException:
        """What a reader hears who still waits."""
        return self._error or InternalError("the answer ended without its end: report it")

    def _ends_with(self, choice: int, event: AnswerEvent) -> bool:
        """Whether the choice has its end with it; each event of it is to be asked about once."""
        if isinstance(event, Finished):
            return True
        return bool(self._stops) and isinstance(event, Token) and self._stops[choice].push(event.token)[1]

    def _attend(self, attended: bool) -> None:
        if self._heard is not None:
            self._heard.attend(attended)

    def _cancel(self) -> None:
        if self._heard is not None:
            self._heard.stop(self.lacking)


def _is_recorded(event: AnswerEvent) -> TypeGuard[Token | PromptScores | Finished]:
    """Whether another master needs to know it. A choice that is cancelled has no end: that one goes on with it."""
    return isinstance(event, Token | PromptScores) or (
        isinstance(event, Finished) and event.reason != "cancel"
    )


def _stop_writers(accepted: AcceptedRequest, tokenizer: Tokenizer | None) -> Sequence[TextWriter]:
    """What finds the stop strings of each choice, if there are any; as Transcript does."""
    reply = accepted.reply
    if not reply.stops:
        return ()
    return [
        TextWriter(
            tokenizer, reply.stops, choice.request.prompt_ids if reply.goes_on else (), reply.speech.marks
        )
        for choice in accepted.choices
    ]
