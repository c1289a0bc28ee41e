"""What this node does in one step, span by span, for who watches the cluster.

Rank 0 picks the step and says so in its plan, so that all nodes record the same one; the others cost nothing. A node
that records everything for a trace has no part in it.
"""

from collections.abc import Callable

from tpiedge.engine.meter import Meter
from tpiedge.memory.weights import Weights
from tpiedge.tracing.tracer import COMPUTE, REDUCE, WAIT, EventSink
from tpiedge.wire.control import StepSpans
from tpiedge.wire.data import StepPlan
from tpiedge.wire.limits import MAX_SPANS

_LANES = (COMPUTE, REDUCE, WAIT)
_MICROSECONDS = 1e6
_MOST = (1 << 32) - 1


class StepRecorder:
    """For the engine thread. `tell` gets what a step was, and must not block."""

    def __init__(self, rank: int, meter: Meter, weights: Weights, tell: Callable[[StepSpans], None]) -> None:
        self._rank = rank
        self._meter = meter
        self._weights = weights
        self._tell = tell
        self._plan: StepPlan | None = None
        self._spans: dict[int, list[tuple[float, float]]] = {}

    def begin(self, plan: StepPlan) -> None:
        """The step begins; it is recorded if the plan says so."""
        if not plan.recorded or self._meter.traced:
            return
        self._plan, self._spans = plan, {lane: [] for lane in _LANES}
        self._switch(self)

    def end(self) -> None:
        """The step is over. Without effect where it is not recorded."""
        plan, spans = self._plan, self._spans
        self.drop()
        begun = min((start for lane in spans.values() for start, _ in lane), default=None)
        if plan is None or begun is None:
            return
        compute, reduce, disk = (
            tuple((_since(begun, start), _since(begun, end)) for start, end in spans[lane]) for lane in _LANES
        )
        self._tell(StepSpans(plan.epoch, self._rank, plan.step, plan.tokens, compute, reduce, disk))

    def drop(self) -> None:
        """The step came to nothing. Without effect where none is recorded."""
        if self._plan is not None:
            self._plan, self._spans = None, {}
            self._switch(None)

    def name(self, _text: str) -> int:
        """As EventSink: names are not kept."""
        return 0

    def add(
        self,
        lane: int,
        _name: int,
        start: float,
        end: float,
        _layer: int = -1,
        _step: int = 0,
        _nbytes: int = 0,
    ) -> None:
        """As EventSink."""
        spans = self._spans.get(lane)
        if spans is not None and len(spans) < MAX_SPANS:
            spans.append((start, end))

    def _switch(self, sink: EventSink | None) -> None:
        self._meter.record(sink)
        self._weights.record(sink)


def _since(begun: float, at: float) -> int:
    return min(_MOST, round((at - begun) * _MICROSECONDS))
