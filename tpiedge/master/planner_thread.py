"""Plans that take long are made beside the control thread, which others must hear meanwhile.

For a few machines a plan takes milliseconds; for a hundred, seconds, and longer on a small computer. What a placement
function answers follows from the machines' offers, their links and the workers that serve, so an answer is good
whenever the same is asked again.
"""

import threading
from collections.abc import Callable
from typing import Final, TypeAlias

from tpiedge.master.assignments import Assignments, NoPlan
from tpiedge.master.planning import PlaceNodes, StillPlanning
from tpiedge.master.roster import Machine
from tpiedge.wire.epochs import Offer
from tpiedge.wire.limits import MAX_NODES
from tpiedge.wire.probing import LinkSpeed

__all__ = ["PlannerThread"]

_Question: TypeAlias = tuple[tuple[tuple[str, Offer, LinkSpeed | None], ...], tuple[str, ...]]

#: So long the control thread waits for a plan, which is enough for most.
_PATIENCE_S: Final = 0.05
#: One plan may take so many questions: each time without one machine more, and without those that flap.
_MOST_ANSWERS: Final = MAX_NODES + 2


class PlannerThread:
    """A PlaceNodes for the control thread: raises StillPlanning where the answer is not there yet.

    `wake` is called, in another thread, whenever it is time to ask again. One plan is made at a time; one that nobody
    asks for any more is made to its end.
    """

    def __init__(self, plan: PlaceNodes, wake: Callable[[], None], patience_s: float = _PATIENCE_S) -> None:
        self._plan = plan
        self._wake = wake
        self._patience_s = patience_s
        self._answers: dict[_Question, Assignments | NoPlan | Exception] = {}
        self._busy = False

    def __call__(self, machines: tuple[Machine, ...], serving: tuple[str, ...]) -> Assignments | NoPlan:
        question = tuple((one.name, one.offer, one.link) for one in machines), serving
        if question not in self._answers:
            self._ask(question, machines, serving)
        answer = self._answers.get(question)
        if answer is None:
            raise StillPlanning
        if isinstance(answer, Exception):
            raise answer.with_traceback(None)
        return answer

    def _ask(self, question: _Question, machines: tuple[Machine, ...], serving: tuple[str, ...]) -> None:
        if self._busy:
            return
        self._busy = True
        thread = threading.Thread(
            target=self._answer, args=(question, machines, serving), name="tpiedge-planner", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the system gives no thread: late is better than never
            self._answer(question, machines, serving)
        else:
            thread.join(self._patience_s)

    def _answer(self, question: _Question, machines: tuple[Machine, ...], serving: tuple[str, ...]) -> None:
        try:
            answer: Assignments | NoPlan | Exception = self._plan(machines, serving)
        except Exception as error:  # for whoever asks
            answer = error
        if len(self._answers) >= _MOST_ANSWERS:
            del self._answers[next(iter(self._answers))]
        self._answers[question] = answer
        self._busy = False
        self._wake()
