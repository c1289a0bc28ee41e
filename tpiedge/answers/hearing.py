"""The threads that hear the choices of one answer: AT_ONCE are asked for at a time, so that others have their turn.

Each thread hears a choice to its end and then asks for a further one: again and again where the queue is full, nothing
is served, or the master ends. It ends where there is none, or nothing more is wanted. Until they are asked for, further
choices are counted with the requests that wait. What a generation says after its choice has ended fails nothing.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

from tpiedge.answers.generation import AnswerEvent, Busy, Generation, Queue, Unavailable
from tpiedge.errors import InternalError
from tpiedge.wire.requests import GenerationRequest

AT_ONCE: Final = 16
"""So many choices of one request are asked for at a time."""

_AGAIN_S: Final = 1.0


class FurtherChoices:
    """Choices that the cluster is asked for one after the other. For one thread at a time."""

    def __init__(
        self,
        requests: Mapping[int, GenerationRequest],
        submit: Callable[..., Generation],
        postpone: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`submit` (of a request and `attended`) and `postpone`: those of Queue for a client. Raises the latter's
        Busy."""
        self._requests = deque(requests.items())
        self._submit = submit
        self._postpone = postpone
        if requests:
            postpone(len(requests))

    def submit(self, *, attended: bool) -> tuple[int, Generation] | None:
        """The next one, if there is one, which stays one of them where this raises as Queue.submit."""
        if not self._requests:
            return None
        choice, request = self._requests[0]
        generation = self._submit(request, attended=attended)
        self._requests.popleft()
        self._postpone(-1)
        return choice, generation

    def close(self) -> None:
        """Those that are left are not asked for. Idempotent."""
        if self._requests:
            self._postpone(-len(self._requests))
            self._requests.clear()


def submit_choices(
    requests: Sequence[GenerationRequest], queue: Queue, client: str
) -> tuple[dict[int, Generation], FurtherChoices]:
    """Those of the first choices, as many as have places, and the others.

    Raises as Queue.submit where not even one is taken."""
    submit = partial(queue.submit, client=client)
    generations: dict[int, Generation] = {}
    try:
        for choice, request in enumerate(requests[:AT_ONCE]):
            try:
                generations[choice] = submit(request)
            except Busy:
                if not generations:
                    raise
                break
        left = {choice: one for choice, one in enumerate(requests) if choice not in generations}
        return generations, FurtherChoices(left, submit, partial(queue.postpone, client=client))
    except Exception:
        for generation in generations.values():
            generation.cancel()
        raise


class Hearing:
    """Of one answer. For any thread."""

    def __init__(
        self,
        name: str,
        generations: Mapping[int, Generation],
        further: FurtherChoices,
        say: Callable[[int, AnswerEvent], bool],
        fail: Callable[[BaseException], None],
    ) -> None:
        """`generations`: by their choices. `say` gets what comes of a choice, and returns whether it has ended; `fail`
        what ended the answer. Both are called in the threads, those of a choice in one at a time."""
        self._generations = dict(generations)
        self._further = further
        self._say = say
        self._fail = fail
        self._lock = threading.Lock()
        self._attended = True
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=one, name=f"answer {name}", daemon=True)
            for one in generations.items()
        ]

    def start(self) -> None:
        """Raises RuntimeError where the system has no thread left; then `stop` is to be called."""
        for thread in self._threads:
            thread.start()

    def attend(self, attended: bool) -> None:
        """As of Generation, all of them."""
        with self._lock:
            self._attended = attended
            generations = list(self._generations.values())
        for generation in generations:
            generation.attend(attended)

    def complete(self, choice: int) -> None:
        """As of Generation, that of this choice. Idempotent."""
        with self._lock:
            generation = self._generations.get(choice)
        if generation is not None:
            generation.complete()

    def stop(self, lacking: Collection[int]) -> None:
        """Nothing more is wanted: those of the choices `lacking` their end are cancelled. Idempotent."""
        self._stopped.set()
        with self._lock:
            self._further.close()
            unended = [one for choice, one in self._generations.items() if choice in lacking]
        for generation in unended:
            generation.cancel()

    def join(self, limit_s: float) -> None:
        """Waits for the threads, in all at most that long."""
        deadline = time.monotonic() + limit_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, choice: int, generation: Generation) -> None:
        heard: tuple[int, Generation] | None = (choice, generation)
        while heard is not None:
            ended = False
            try:
                for event in heard[1].events():
                    ended = self._say(heard[0], event) or ended
                if not ended:
                    raise InternalError("the answer ended without its end: report it")
            except BaseException as error:  # handed to the reader
                if not ended:
                    self._fail(error)
                    return
            with self._lock:
                self._generations.pop(heard[0], None)
            try:
                heard = self._next()
            except BaseException as error:  # handed to the reader
                self._fail(error)
                return

    def _next(self) -> tuple[int, Generation] | None:
        """A further choice, if there is one. Raises as Queue.submit, but for what is worth another try."""
        again_s = 0.0
        while not self._stopped.wait(again_s):
            with self._lock:
                try:
                    found = self._further.submit(attended=self._attended)
                except Busy as busy:
                    again_s = busy.retry_after_s
                except Unavailable:
                    again_s = _AGAIN_S
                else:
                    if found is not None:
                        self._generations[found[0]] = found[1]
                    return found
        return None
