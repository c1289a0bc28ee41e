"""How long steps wait for the processes of grammars: one account for all answers of a step.

Laws:
1. A step that others share waits for tokens that are forced, and for masks, together as long as `_PART` of what it
   takes to compute, or `_LEAST_S`, however many answers there are and whatever they ask for.
2. An answer that is alone waits for as long as a cancellation may.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from tpiedge.engine.grammars import AnswerConstraint, await_any

_PART: Final = 0.1
_LEAST_S: Final = 0.001
_LONE_S: Final = 0.05


class MaskWaits:
    """The account of rank 0. `now` gives seconds; `wait` returns when there is news of one of them, or after a time."""

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        wait: Callable[[Sequence[AnswerConstraint], float], None] = await_any,
    ) -> None:
        self._now = now
        self._wait = wait
        self._step_s = 0.0
        self._left_s = 0.0

    def begin(self, *, lone: bool) -> None:
        """A step begins; `lone`: of a single request."""
        self._left_s = _LONE_S if lone else max(_LEAST_S, _PART * self._step_s)

    def computed(self, step_s: float) -> None:
        """A step took so long, without these waits."""
        self._step_s = step_s

    def until(self, asked: Sequence[tuple[AnswerConstraint, Callable[[], bool]]]) -> None:
        """Waits until all that is `asked` is known, or as long as the step still may."""
        while missing := [one for one, known in asked if not known()]:
            if self._left_s <= 0.0:
                return
            before = self._now()
            self._wait(missing, self._left_s)
            self._left_s -= self._now() - before
