"""Where a node's time goes: in all, and in one step, span by span, for the people who watch the cluster.

Rank 0 picks the step and says so in its plan, so that all nodes record the same one; the others cost nothing. A node
that records everything for a trace records no single step.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from tpiedge.memory.weights import NodeWeights
from tpiedge.tracing.tracer import COMPUTE, REDUCE, TRAVEL, WAIT, EventSink
from tpiedge.wire.control import StepSpans
from tpiedge.wire.data import StepPlan
from tpiedge.wire.fields import MAX_SPANS


@dataclass
class Meter:
    """Seconds and counts since the node was ready. Only the engine thread writes; any thread may read.

    `attention_s` and `ffn_s` cover the blocks' own arithmetic, `reduce_wait_s` the collectives, and `head_s` (rank 0)
    embedding rows, final norm, LM head and sampling, with what it waits for tiles of a head that is streamed.
    """

    attention_s: float = 0.0
    ffn_s: float = 0.0
    reduce_wait_s: float = 0.0
    head_s: float = 0.0
    steps: int = 0
    tokens: int = 0
    #: Guesses of answers' next tokens, and how many of them came true; on rank 0.
    drafted: int = 0
    accepted: int = 0
    #: How far the engine is, for heartbeats: the step under way and its block.
    step: int = 0
    block: int = 0

    def __post_init__(self) -> None:
        # Each times a `with` block; those of blocks `of` a layer.
        self.attention_span = _Span(self, "attention_s")
        self.ffn_span = _Span(self, "ffn_s")
        self.embedding_span = _Span(self, "head_s")
        self.head_span = _Span(self, "head_s")
        self.announce_span = _Span(self, "reduce_wait_s")
        self.broadcast_span = _Span(self, "reduce_wait_s")
        self._reduce_spans = (_Span(self, "reduce_wait_s"), _Span(self, "reduce_wait_s"))
        self._sink: EventSink | None = None
        self._travels = 0, 0
        #: Whether every step is recorded, block by block.
        self.traced = False

    def computed(self, attention_s: float, ffn_s: float) -> None:
        """Add the time of blocks that were computed together, which `attention_span` and `ffn_span` did not see."""
        self.attention_s += attention_s
        self.ffn_s += ffn_s
        if self._sink is not None:
            ended = time.perf_counter()
            self._sink.add(COMPUTE, 0, ended - attention_s - ffn_s, ended)

    def record(self, sink: EventSink | None, *, traced: bool = False) -> None:
        """From now on every span is recorded as well, or none any more. `traced`: no blocks are computed together,
        which would be one span."""
        self._sink, self.traced = sink, traced
        if sink is not None:
            self._travels = sink.name("attention"), sink.name("ffn")
        for span, lane, name in (
            (self.attention_span, COMPUTE, "attention"),
            (self.ffn_span, COMPUTE, "ffn"),
            (self.embedding_span, COMPUTE, "embedding"),
            (self.head_span, COMPUTE, "head"),
            (self.announce_span, REDUCE, "plan"),
            (self.broadcast_span, REDUCE, "broadcast"),
            (self._reduce_spans[0], REDUCE, "reduce attention"),
            (self._reduce_spans[1], REDUCE, "reduce ffn"),
        ):
            span.record(sink, lane, name)

    def reduce_span(self, block: int) -> "_Span":
        """Time a `with` block as the all-reduce of a block; attention and FFN blocks take turns."""
        layer, kind = divmod(block, 2)
        return self._reduce_spans[kind].of(layer)

    def travelled(self, block: int, begun: float) -> None:
        """Record that the all-reduce of a block, which began at `begun` (perf_counter), is over."""
        if self._sink is not None:
            layer, kind = divmod(block, 2)
            self._sink.add(TRAVEL, self._travels[kind], begun, time.perf_counter(), layer, self.step)


class _Span:
    """Adds the time of a `with` block to a field of the meter. Made once: it runs twice per block, with cold caches."""

    __slots__ = ("_field", "_lane", "_layer", "_meter", "_name", "_sink", "_started")

    def __init__(self, meter: Meter, field: str) -> None:
        self._meter = meter
        self._field = field
        self._layer = -1
        self._started = 0.0
        self._sink: EventSink | None = None
        self._lane = self._name = 0

    def record(self, sink: EventSink | None, lane: int, name: str) -> None:
        self._sink, self._lane, self._name = sink, lane, 0 if sink is None else sink.name(name)

    def of(self, layer: int) -> "_Span":
        """This span, for a layer."""
        self._layer = layer
        return self

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended, meter = time.perf_counter(), self._meter
        setattr(meter, self._field, getattr(meter, self._field) + ended - self._started)
        if self._sink is not None:
            self._sink.add(self._lane, self._name, self._started, ended, self._layer, meter.step)


_LANES = (COMPUTE, REDUCE, WAIT)


class StepRecorder:
    """For the engine thread. `tell` gets what a step was, and must not block."""

    def __init__(
        self, rank: int, meter: Meter, weights: NodeWeights, tell: Callable[[StepSpans], None]
    ) -> None:
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

    def add(self, lane: int, _name: int, start: float, end: float, *_: int) -> None:
        """As EventSink."""
        spans = self._spans.get(lane)
        if spans is not None and len(spans) < MAX_SPANS:
            spans.append((start, end))

    def _switch(self, sink: EventSink | None) -> None:
        self._meter.record(sink)
        self._weights.record(sink)


def _since(begun: float, at: float) -> int:
    return min((1 << 32) - 1, round((at - begun) * 1e6))
