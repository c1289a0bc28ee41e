"""Keeps all answers within limits, and deletes answers whose client does not come back.

Answers without a reader take at most LEFT_BYTES of memory. One client's part is at most half of LEFT_BYTES. Above a
limit, the client with the most bytes loses the answer that has waited longest. At most MOST_RECOVERED answers of the
previous master stay. Unfinished answers are preferred to finished answers, and newer answers to older answers."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final

from tpiedge.answers.log import AnswerLog, AnswerReader, Choices, Queue, ServerEnds
from tpiedge.answers.record import FoundAnswer, Question, RecordedEvent, RecordFile
from tpiedge.errors import UserError
from tpiedge.master.journal import PendingAnswer
from tpiedge.master.request_queue import QueueFull
from tpiedge.quotas import over_quota
from tpiedge.units import MIB, counted, format_seconds
from tpiedge.wire.control import AnswerPart, Finished
from tpiedge.wire.requests import GenerationRequest

_log = logging.getLogger(__name__)

AT_ONCE: Final = 16  # choices of one request that are submitted at a time
LEFT_BYTES: Final = 128 * MIB
MOST_RECOVERED: Final = 512  # more than can run and wait


class AnswerShelf:
    def __init__(self, queue: Queue, grace_s: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        """`grace_s`: seconds that a stream of the previous master waits for its reader."""
        self._queue = queue
        self._grace_s = grace_s
        self._now = now
        self._lock = threading.Lock()
        self._answers: dict[str, AnswerLog] = {}
        self._aborted = False

    def recover(self, found: Sequence[FoundAnswer]) -> int:
        """Resumes the previous master's answers; returns their number. Call it before `accept`. Raises UserError."""
        answers = [AnswerLog.recovered(one, self._now, self._grace_s) for one in found]
        first = sorted(range(len(answers)), key=lambda number: (answers[number].over, -number))
        for number in first[MOST_RECOVERED:]:
            answers[number].end()
        if many := len(first[MOST_RECOVERED:]):
            _log.warning("deleted %s: no client read them, and more are recorded", counted(many, "answer"))
        threads = 0
        resumed: list[tuple[AnswerLog, Choices]] = []
        for number in sorted(first[:MOST_RECOVERED]):
            answer = answers[number]
            self._add(answer)
            # After many choices, each further answer begins with a single choice.
            at_once = AT_ONCE if threads < 256 else 1
            choices = self._resume(answer, found[number].said, at_once)
            threads += len(choices[0])
            resumed.append((answer, choices))
        # Choices that had begun are submitted before all others.
        try:
            for answer, choices in resumed:
                answer.follow(choices, self._queue)
        except RuntimeError as error:
            self.close()
            raise UserError(
                f"the system has no {threads} threads for the answers that are recorded ({error}): they stay recorded; "
                "allow more processes (ulimit -u), or delete the records"
            ) from None
        return len(resumed)

    def accept(self, question: Question, client: str, make: Callable[[], RecordFile | None]) -> AnswerReader:
        """Submits a request and returns a reader. `make` creates the record. Raises like Queue.submit. Raises
        RuntimeError if no thread can start."""
        choices = _first(question.requests, client, self._queue)
        answer = AnswerLog(question, make(), self._now, client)
        reader = answer.read()
        try:
            answer.follow(choices, self._queue)
        except RuntimeError:
            answer.end()
            raise
        self._add(answer)
        if self._aborted:
            answer.interrupt(ServerEnds())
        return reader

    def find(self, name: str) -> AnswerLog | None:
        with self._lock:
            answer = self._answers.get(name)
        return None if answer is None or answer.ended else answer

    def sweep(self) -> None:
        """Drops ended, overdue and excess answers. Call it regularly; it does not block."""
        for answer in self._all():
            if (waited_s := answer.waited_s) is not None:
                if answer.lasting and not answer.sent:
                    name, within = answer.question.name, format_seconds(waited_s)
                    _log.warning("no client read the answer %s within %s: it was deleted", name, within)
                answer.end()
        with self._lock:
            self._answers = {name: one for name, one in self._answers.items() if not one.ended}
        left = [(since, answer) for answer in self._all() if (since := answer.left_at) is not None]
        waiting = [answer for _, answer in sorted(left, key=itemgetter(0))]
        # An answer of the previous master has no known client: it counts as a client of its own.
        held = [(one.client or one.question.name, one.held_bytes) for one in waiting]
        for number in over_quota(held, LEFT_BYTES):
            waiting[number].end()

    def abort(self) -> None:
        """Tells all present and later readers that the server ends."""
        self._aborted = True
        for answer in self._all():
            answer.interrupt(ServerEnds())

    def close(self, limit_s: float = 0.0) -> None:
        """Cancels all work and keeps the records of undelivered answers. Waits for all threads, at most `limit_s`.
        Idempotent."""
        for answer in self._all():
            answer.keep()
        deadline = time.monotonic() + limit_s
        for thread in [thread for answer in self._all() for thread in answer.threads]:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _resume(self, answer: AnswerLog, said: Sequence[RecordedEvent], at_once: int) -> Choices:
        """Resumes begun choices and the first `at_once` unfinished ones. Returns (resumed, remaining)."""
        parts: dict[int, list[AnswerPart]] = {}
        for choice, event in said:
            if not isinstance(event, Finished):
                parts.setdefault(choice, []).append(event)
        requests, lacking = answer.question.requests, answer.lacking
        begun = [choice for number, choice in enumerate(lacking) if number < at_once or choice in parts]
        resume = self._queue.resume
        generations = {choice: resume(requests[choice], parts.get(choice, ())) for choice in begun}
        return generations, {choice: requests[choice] for choice in lacking if choice not in generations}

    def _add(self, answer: AnswerLog) -> None:
        with self._lock:
            self._answers[answer.question.name] = answer

    def _all(self) -> list[AnswerLog]:
        with self._lock:
            return list(self._answers.values())


def _first(requests: Sequence[GenerationRequest], client: str, queue: Queue) -> Choices:
    """Submits at most AT_ONCE choices, until the queue is full. Returns (submitted, remaining). Raises like
    Queue.submit."""
    generations: dict[int, PendingAnswer] = {}
    try:
        for choice, request in enumerate(requests[:AT_ONCE]):
            try:
                generations[choice] = queue.submit(request, client=client)
            except QueueFull:
                if not generations:
                    raise
                break
        left = {choice: one for choice, one in enumerate(requests) if choice not in generations}
        if left:
            queue.postpone(len(left), client)
        return generations, left
    except Exception:
        for generation in generations.values():
            generation.cancel()
        raise
