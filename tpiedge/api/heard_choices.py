"""The threads that hear the choices of an answer that is kept, where no event loop waits for it.

Laws:

1. Each hears a choice to its end and then asks for a further one: again and again where the queue is full, nothing is
   served, or the master ends. It ends where there is none, or nothing more is wanted.
2. What a generation says after its choice has ended, or after `stop`, fails nothing.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from tpiedge.api.further_choices import FurtherChoices
from tpiedge.api.service import AnswerEvent, Busy, Generation, Unavailable
from tpiedge.errors import InternalError

_AGAIN_S: Final = 1.0


class HeardChoices:
    """Of one answer. For any thread."""

    def __init__(
        self,
        name: str,
        generations: Mapping[int, Generation],
        further: FurtherChoices,
        numbers: Sequence[int],
        say: Callable[[int, AnswerEvent], bool],
        fail: Callable[[BaseException], None],
    ) -> None:
        """`generations`: by their choices; `numbers`: the choices of `further`. `say` gets what comes of a choice, and
        returns whether it has ended; `fail` what ended the answer. Both are called in the threads, those of a choice in
        one at a time."""
        self._name = name
        self._generations = dict(generations)
        self._further = further
        self._numbers = deque(numbers)
        self._say = say
        self._fail = fail
        self._lock = threading.Lock()
        self._attended = True
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Raises RuntimeError where the system has no thread left; then `stop` is to be called."""
        for choice, generation in self._generations.copy().items():
            thread = threading.Thread(
                target=self._run, args=(choice, generation), name=f"kept {self._name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

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
            self._numbers.clear()
            unended = [one for choice, one in self._generations.items() if choice in lacking]
        for generation in unended:
            generation.cancel()

    def join(self, limit_s: float) -> None:
        """Waits for the threads, in all at most that long."""
        deadline = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # --- in the threads

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
        """A further choice, if there is one. Raises as Service.submit, but for what is worth another try."""
        again_s = 0.0
        while not self._stopped.wait(again_s):
            with self._lock:
                if not self._numbers:
                    return None
                try:
                    generation = self._further.submit(attended=self._attended)
                except Busy as busy:
                    again_s = busy.retry_after_s
                except Unavailable:
                    again_s = _AGAIN_S
                else:
                    choice = self._numbers.popleft()
                    self._generations[choice] = generation
                    return choice, generation
        return None
