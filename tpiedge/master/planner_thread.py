"""Plans that take long are made beside the control thread, which others must hear meanwhile.

For a few machines a plan takes milliseconds; for a hundred, seconds, and longer on a small computer. What a placement
function answers follows from the machines' offers, links and claims, and the workers that serve, so an answer is good
whenever the same is asked again. An error is not: one that nobody asked for during _FAILED_S, as where the worker that
seemed to break the planner was left out meanwhile, is forgotten, and the plan tried anew.

The answers to what was asked last are kept. Those made ahead have room of their own, which other questions do not take
from them: who had them made asks again only once the questions are others.

All of that holds of one placement function. Another one takes its place where the master's own machine gives less or
more memory.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tpiedge.clock import Clock, MonotonicClock
from tpiedge.master.assignments import Assignments, NoPlan
from tpiedge.master.planning import PlaceNodes, StillPlanning
from tpiedge.master.roster import Machine
from tpiedge.master.seats import Claim
from tpiedge.wire.epochs import Offer
from tpiedge.wire.limits import MAX_NODES
from tpiedge.wire.probing import LinkSpeed

__all__ = ["PlannerThread"]

_Question: TypeAlias = tuple[
    tuple[tuple[str, Offer, LinkSpeed | None, float, Claim | None], ...], tuple[str, ...]
]

#: So long the control thread waits for a plan, which is enough for most.
_PATIENCE_S: Final = 0.05
#: One plan may take so many questions: each time without one machine more, and without those that flap. As many more
#: may be asked ahead.
_MOST_ANSWERS: Final = 2 * (MAX_NODES + 2)
#: Shorter than a worker is left out. Who waits for a plan asks many times a second, from the first question on.
_FAILED_S: Final = 20.0


@dataclass
class _FailedPlan:
    """`asked`: when somebody last heard of it, or it came to be."""

    error: Exception
    asked: float


_KnownAnswer: TypeAlias = Assignments | NoPlan | _FailedPlan


class _Answers:
    """Those that were given or asked for last, _MOST_ANSWERS at most. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[_Question, _KnownAnswer] = {}

    def get(self, question: _Question) -> _KnownAnswer | None:
        with self._lock:
            answer = self._kept.pop(question, None)
            if answer is not None:
                self._kept[question] = answer
            return answer

    def put(self, question: _Question, answer: _KnownAnswer) -> None:
        with self._lock:
            self._kept.pop(question, None)
            if len(self._kept) >= _MOST_ANSWERS:
                del self._kept[next(iter(self._kept))]
            self._kept[question] = answer


class PlannerThread:
    """A PlaceNodes for the control thread: raises StillPlanning where the answer is not there yet.

    `wake` is called, in another thread, whenever it is time to ask again. One plan is made at a time; one that nobody
    asks for any more is made to its end.
    """

    def __init__(
        self,
        plan: PlaceNodes,
        wake: Callable[[], None],
        patience_s: float = _PATIENCE_S,
        clock: Clock | None = None,
    ) -> None:
        self._plan = plan
        self._wake = wake
        self._patience_s = patience_s
        self._clock = clock or MonotonicClock()
        self._asked, self._foreseen = _Answers(), _Answers()
        self._busy = False

    def follow(self, plan: PlaceNodes) -> None:
        """Plans are made by that function from now on; answers of the one before are forgotten, also those to come."""
        self._plan, self._asked, self._foreseen = plan, _Answers(), _Answers()

    def __call__(self, machines: tuple[Machine, ...], serving: tuple[str, ...]) -> Assignments | NoPlan:
        question = _question(machines, serving)
        answer = self._known(question)
        if answer is None:
            self._ask(question, machines, serving, self._asked, self._patience_s)
            answer = self._known(question)
        if answer is None:
            raise StillPlanning
        if isinstance(answer, _FailedPlan):
            answer.asked = self._clock.now()
            raise answer.error.with_traceback(None)
        return answer

    def ahead(self, machines: tuple[Machine, ...], serving: tuple[str, ...]) -> Assignments | NoPlan:
        """As a call, for a plan that nobody needs yet: never waits, and raises StillPlanning instead."""
        question = _question(machines, serving)
        answer = self._known(question)
        if answer is None:
            self._ask(question, machines, serving, self._foreseen, 0.0)
            raise StillPlanning
        self._foreseen.put(question, answer)
        if isinstance(answer, _FailedPlan):
            raise answer.error.with_traceback(None)
        return answer

    def _known(self, question: _Question) -> _KnownAnswer | None:
        for answers in (self._asked, self._foreseen):
            answer = answers.get(question)
            if isinstance(answer, _FailedPlan) and self._clock.now() - answer.asked > _FAILED_S:
                continue
            if answer is not None:
                return answer
        return None

    def _ask(
        self,
        question: _Question,
        machines: tuple[Machine, ...],
        serving: tuple[str, ...],
        answers: _Answers,
        patience_s: float,
    ) -> None:
        if self._busy:
            return
        self._busy = True
        thread = threading.Thread(
            target=self._answer,
            args=(self._plan, question, machines, serving, answers),
            name="tpiedge-planner",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:  # the system gives no thread: late is better than never
            self._answer(self._plan, question, machines, serving, answers)
        else:
            thread.join(patience_s)

    def _answer(
        self,
        plan: PlaceNodes,
        question: _Question,
        machines: tuple[Machine, ...],
        serving: tuple[str, ...],
        answers: _Answers,
    ) -> None:
        try:
            answer: _KnownAnswer = plan(machines, serving)
        except Exception as error:  # for whoever asks, without what the frames hold
            answer = _FailedPlan(error.with_traceback(None), self._clock.now())
        answers.put(question, answer)
        self._busy = False
        self._wake()


def _question(machines: tuple[Machine, ...], serving: tuple[str, ...]) -> _Question:
    return tuple(one.planned_by for one in machines), serving
