"""How often plans began and ended, why, and how long it took to serve again: a machine without sockets or clock."""

from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from tpiedge.master.blame import Failure
from tpiedge.master.histogram import SECONDS, GrowingHistogram, Histogram

LossCause: TypeAlias = Literal["stopped", "machine", "protocol", "dispute", "node", "other"]
"""What ended a plan that served: a worker that was stopped or revoked, a machine that was lost, one that broke the
protocol, two that contradict each other, a worker's node that failed by itself, or anything else, as the end of the
master's own node."""

PlanCause: TypeAlias = Literal["start", "loss", "plan"]
"""Why a plan began: the first one, in place of one that was lost, or of one that served."""

LOSS_CAUSES: Final[tuple[LossCause, ...]] = get_args(LossCause)
PLAN_CAUSES: Final[tuple[PlanCause, ...]] = get_args(PlanCause)

_NONE: Final = Histogram.empty(SECONDS)


@dataclass(frozen=True, slots=True)
class PlanHistory:
    """Since the master started. `begun`: plans by cause, in the order of PLAN_CAUSES; `failed`: those that never
    served; `losses`: ends that nobody planned of those that did, in the order of LOSS_CAUSES; `recoveries`: seconds
    from such an end until requests were answered again."""

    begun: tuple[int, ...] = (0,) * len(PLAN_CAUSES)
    failed: int = 0
    losses: tuple[int, ...] = (0,) * len(LOSS_CAUSES)
    recoveries: Histogram = _NONE


class History:
    """Is told what happens to plans. Times are seconds on the caller's clock."""

    def __init__(self) -> None:
        #: What happened so far.
        self.so_far = PlanHistory()
        self._begun: Counter[PlanCause] = Counter()
        self._failed = 0
        self._losses: Counter[LossCause] = Counter()
        self._recoveries = GrowingHistogram(SECONDS)
        self._answers = False  # whether the latest plan has served
        self._lost: float | None = None  # when one that served was lost, until another one serves

    def begun(self, *, replaces: bool) -> None:
        """The nodes of a plan start; `replaces`: in the place of those of another one."""
        lost = self._losses.total() > 0
        self._begun["plan" if replaces else "loss" if lost else "start"] += 1
        self._answers = False
        self._note()

    def serves(self, now: float) -> None:
        """Requests are answered."""
        self._answers = True
        if self._lost is not None:
            self._recoveries.observe(now - self._lost)
            self._lost = None
            self._note()

    def failed(self) -> None:
        """A plan came to nothing before its nodes started."""
        self._failed += 1
        self._note()

    def lost(self, failure: Failure | None, *, breached: bool, now: float) -> None:
        """The nodes of the latest plan ended, and nobody had planned it. `breached`: a worker broke the protocol."""
        if self._answers:
            self._losses[_cause(failure, breached)] += 1
            self._answers = False
            self._lost = now
        else:
            self._failed += 1
        self._note()

    def _note(self) -> None:
        self.so_far = PlanHistory(
            tuple(self._begun[cause] for cause in PLAN_CAUSES),
            self._failed,
            tuple(self._losses[cause] for cause in LOSS_CAUSES),
            self._recoveries.histogram(),
        )


def _cause(failure: Failure | None, breached: bool) -> LossCause:
    if breached:
        return "protocol"
    if failure is None:
        return "other"
    if failure.intended:
        return "stopped"
    if failure.disputed:
        return "dispute"
    if failure.machine_lost:
        return "machine"
    return "node" if failure.crashed is not None else "other"
