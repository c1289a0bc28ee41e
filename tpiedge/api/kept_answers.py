"""Answers whose readers come and go: what `tpiedge master --journal` makes of accepted requests.

What waits for a reader for too long is cancelled (`kept_answer.py`). Of those that wait for one whose connection ended,
MOST_LEFT wait: where they are more, the oldest of the client that has most of them is cancelled. Of more than
MOST_RECOVERED of the master before the latest go on.
"""

import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from tpiedge.api.asked import Asked, FormatName
from tpiedge.api.further_choices import AT_ONCE, FurtherChoices, submit_choices
from tpiedge.api.kept_answer import AnswerReader, KeptAnswer
from tpiedge.api.record_folder import RecordFolder
from tpiedge.api.records import AcceptedRequest, RecordedEvent, marks
from tpiedge.api.service import Generation, Service
from tpiedge.errors import UserError
from tpiedge.units import counted, format_seconds
from tpiedge.wire.control import AnswerPart, Finished

__all__ = ["MOST_LEFT", "MOST_RECOVERED", "KeptAnswers"]

_log = logging.getLogger(__name__)

MOST_LEFT: Final = 64
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
        today: Now = time.time,
    ) -> None:
        """`grace_s`: for how long a stream of the master before waits for its reader; `today`: in seconds since 1970,
        as requests' times are."""
        self._folder = folder
        self._service = service
        self._grace_s = grace_s
        self._now = now
        self._today = today
        self._lock = threading.Lock()
        self._answers: dict[str, KeptAnswer] = {}

    def recover(self) -> int:
        """Goes on with the answers of the master before; returns how many. To be called before anything is accepted.

        Raises UserError for records that cannot be read, or where the system has not enough threads: they stay.
        """
        found = self._folder.found()
        many, found = found[:-MOST_RECOVERED], found[-MOST_RECOVERED:]
        for one in many:
            one.file.delete()
        if many:
            _log.warning(
                "deleted %s: nobody came for them, and more are recorded", counted(len(many), "answer")
            )
        threads = 0
        resumed: list[tuple[KeptAnswer, Mapping[int, Generation], FurtherChoices]] = []
        for one in found:
            record = one.record
            tokenizer, said = self._service.tokenizer, record.said
            age_s = max(0.0, self._today() - record.accepted.created)
            answer = KeptAnswer(record.accepted, one.file, tokenizer, self._now, said, self._grace_s, age_s)
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
        accepted = AcceptedRequest.of(asked, name, created, model, self._folder.pack, key)
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
        """Forgets what has ended, and cancels what nobody came for. To be called now and then; does not block."""
        for answer in self._all():
            if (waited_s := answer.waited_s) is not None:
                name = answer.accepted.name
                _log.warning(
                    "nobody came for the answer %s within %s: it was deleted", name, format_seconds(waited_s)
                )
                answer.end()
        with self._lock:
            self._answers = {name: one for name, one in self._answers.items() if not one.ended}
        left = [(since, answer) for answer in self._all() if (since := answer.left_at) is not None]
        for answer in _too_many(sorted(left, key=lambda one: one[0])):
            answer.end()

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


def _too_many(left: Sequence[tuple[float, KeptAnswer]]) -> Iterator[KeptAnswer]:
    """Those of `left`, the oldest first, that are beyond MOST_LEFT."""
    of_clients: dict[str, deque[KeptAnswer]] = {}
    for _, answer in left:
        of_clients.setdefault(answer.client, deque()).append(answer)
    most = [(-len(answers), client) for client, answers in of_clients.items()]
    heapq.heapify(most)
    for _ in range(len(left) - MOST_LEFT):
        count, client = most[0]
        yield of_clients[client].popleft()
        heapq.heapreplace(most, (count + 1, client))
