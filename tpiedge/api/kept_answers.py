"""Answers whose readers come and go: what `tpiedge master --journal` makes of accepted requests.

What waits for a reader for too long is cancelled (`kept_answer.py`). Of those that wait for one whose connection ended
MOST_LEFT are unfinished, and all that wait take LEFT_BYTES of memory, half of them for one client: where they are more,
the oldest of the client that has most goes. Of more than MOST_RECOVERED of the master before the latest go on, the
unfinished first.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from tpiedge.api.answer_reader import AnswerReader
from tpiedge.api.asked import Asked, FormatName
from tpiedge.api.further_choices import AT_ONCE, FurtherChoices, submit_choices
from tpiedge.api.kept_answer import KeptAnswer
from tpiedge.api.record_folder import FoundAnswer, RecordFolder
from tpiedge.api.records import AcceptedRequest, RecordedEvent, marks
from tpiedge.api.service import Generation, Service
from tpiedge.errors import UserError
from tpiedge.portions import share_of, too_much
from tpiedge.units import MIB, counted, format_seconds
from tpiedge.wire.control import AnswerPart, Finished

_log = logging.getLogger(__name__)

MOST_LEFT: Final = 64
LEFT_BYTES: Final = 128 * MIB
MOST_RECOVERED: Final = 512
"""More than one master has: those that wait and run in full queues, and MOST_LEFT."""

_MOST_AT_ONCE: Final = 256
"""Of choices of all recovered answers: those of further answers begin one after the other."""

Now = Callable[[], float]


class KeptAnswers:
    """All of them, with the folder of their records. For any thread."""

    def __init__(
        self,
        folder: RecordFolder,
        service: Service,
        grace_s: float,
        now: Now = time.monotonic,
    ) -> None:
        """`grace_s`: for how long a stream of the master before waits for its reader."""
        self._folder = folder
        self._service = service
        self._grace_s = grace_s
        self._now = now
        self._lock = threading.Lock()
        self._answers: dict[str, KeptAnswer] = {}
        #: Whether records are made anew just now.
        self._recording = False

    def recover(self) -> int:
        """Goes on with the answers of the master before; returns how many. To be called before anything is accepted.

        Raises UserError for records that cannot be read, or where the system has not enough threads: they stay.
        """
        found = self._latest(self._folder.found())
        threads = 0
        resumed: list[tuple[KeptAnswer, Mapping[int, Generation], FurtherChoices]] = []
        for answer, said in found:
            self._add(answer)
            at_once = AT_ONCE if threads < _MOST_AT_ONCE else 1
            generations, further = self._resume(answer, said, at_once)
            threads += len(generations)
            resumed.append((answer, generations, further))
        # Not before: a choice that had not begun is asked for after all that had.
        try:
            for answer, generations, further in resumed:
                answer.follow(generations, further)
        except RuntimeError as error:
            self.close()
            raise UserError(
                f"the system has no {threads} threads for the answers that are recorded ({error}): they stay recorded; "
                "allow more processes (ulimit -u), or delete the records"
            ) from None
        return len(found)

    def accept(
        self, asked: Asked, name: str, created: int, model: str, key: bytes, client: str
    ) -> AnswerReader:
        """Submits the request of a `client` with that API key (empty where it needs none), who is the answer's
        reader; the rest as in AcceptedRequest. Raises as Service.submit."""
        requests = [choice.request for choice in asked.choices]
        generations, further = submit_choices(requests, self._service, client)
        pack, moment = self._folder.pack, self._folder.moment()
        accepted = AcceptedRequest.of(asked, name, created, model, pack, key, moment)
        file, tokenizer = self._folder.begin(accepted), self._service.tokenizer
        answer = KeptAnswer(accepted, file, tokenizer, self._now, client=client)
        reader = answer.read(collects=False)
        try:
            answer.follow(dict(enumerate(generations)), further)
        except RuntimeError:
            answer.end()
            raise
        self._add(answer)
        return reader

    def find(self, name: str, form: FormatName, key: bytes) -> KeptAnswer | None:
        """The answer with this id and in that form, if the client with that API key may have it."""
        with self._lock:
            answer = self._answers.get(name)
        if answer is None or answer.ended or answer.accepted.reply.format != form:
            return None
        return answer if marks(answer.accepted.key, key) else None

    def sweep(self) -> None:
        """Forgets what has ended, cancels what nobody came for, and has made anew what could not be recorded. To be
        called now and then; does not block."""
        for answer in self._all():
            if (waited_s := answer.waited_s) is not None:
                if not answer.sent:
                    name = answer.accepted.name
                    _log.warning(
                        "nobody came for the answer %s within %s: it was deleted",
                        name,
                        format_seconds(waited_s),
                    )
                answer.end()
        with self._lock:
            self._answers = {name: one for name, one in self._answers.items() if not one.ended}
        left = [(since, answer) for answer in self._all() if (since := answer.left_at) is not None]
        waiting = [answer for _, answer in sorted(left, key=lambda one: one[0])]
        unfinished = [answer for answer in waiting if not answer.over]
        _end_some(unfinished, [1 for _ in unfinished], MOST_LEFT, MOST_LEFT)
        waiting = [answer for answer in waiting if not answer.ended]
        _end_some(waiting, [answer.held_bytes for answer in waiting], LEFT_BYTES, share_of(LEFT_BYTES))
        self._record_again()

    def _record_again(self) -> None:
        """In the thread that waits for the disk: the smallest first, until one has no room."""
        lost = sorted((one for one in self._all() if one.lost_record), key=lambda one: one.held_bytes)
        if not lost or self._recording:
            return

        def record() -> None:
            try:
                all(answer.record_again() for answer in lost)
            finally:
                self._recording = False

        self._recording = True
        self._folder.later(record)

    def close(self) -> None:
        """The master ends: what was not delivered stays recorded. Idempotent."""
        for answer in self._all():
            answer.keep()

    def ended_in_order(self) -> None:
        """After `close`, once nothing can fail the master any more: what it took up, and did not get on with, does not
        count against the requests. Idempotent."""
        for answer in self._all():
            answer.take_back()

    def join(self, limit_s: float) -> None:
        """Waits for the threads, in all at most that long."""
        deadline = time.monotonic() + limit_s
        for answer in self._all():
            answer.join(max(0.0, deadline - time.monotonic()))
        self._folder.close(max(0.0, deadline - time.monotonic()))

    def _latest(self, found: Sequence[FoundAnswer]) -> list[tuple[KeptAnswer, Sequence[RecordedEvent]]]:
        """Those that go on, in their order, with what was said of them."""
        answers = [
            KeptAnswer(
                one.record.accepted,
                one.file,
                self._service.tokenizer,
                self._now,
                one.record.said,
                self._grace_s,
                one.age_s,
                taken_up=one.record.taken_up,
            )
            for one in found
        ]
        first = sorted(range(len(answers)), key=lambda number: (answers[number].over, -number))
        for number in first[MOST_RECOVERED:]:
            answers[number].end()
        if many := len(first[MOST_RECOVERED:]):
            _log.warning("deleted %s: nobody came for them, and more are recorded", counted(many, "answer"))
        return [(answers[number], found[number].record.said) for number in sorted(first[:MOST_RECOVERED])]

    def _resume(
        self, answer: KeptAnswer, said: Sequence[RecordedEvent], at_once: int
    ) -> tuple[Mapping[int, Generation], FurtherChoices]:
        """Those choices that lack their end and had begun, or are among the first that may begin `at_once`, and the
        others."""
        parts: dict[int, list[AnswerPart]] = {}
        for choice, event in said:
            if not isinstance(event, Finished):
                parts.setdefault(choice, []).append(event)
        choices, lacking = answer.accepted.choices, answer.lacking
        begun = [choice for number, choice in enumerate(lacking) if number < at_once or choice in parts]
        generations = {
            choice: self._service.resume(choices[choice].request, parts.get(choice, ())) for choice in begun
        }
        left = [choices[choice].request for choice in lacking if choice not in generations]
        # They are of the request that an earlier master accepted, however many wait: these are not counted.
        submit = partial(self._service.submit, client=answer.client)
        return generations, FurtherChoices(left, submit, lambda _: None)

    def _add(self, answer: KeptAnswer) -> None:
        with self._lock:
            self._answers[answer.accepted.name] = answer

    def _all(self) -> list[KeptAnswer]:
        with self._lock:
            return list(self._answers.values())


def _end_some(answers: Sequence[KeptAnswer], amounts: Sequence[int], total: int, share: int) -> None:
    """Ends those of `answers`, the oldest first, that are too much. Each one of a client that is not known, of the
    master before, is as one of a client of its own."""
    clients = [answer.client or answer.accepted.name for answer in answers]
    for number in too_much(list(zip(clients, amounts, strict=True)), total, share):
        answers[number].end()
