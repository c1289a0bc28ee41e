"""Measures a node's time, and records the spans of chosen steps."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from tpiedge.memory.weights import NodeWeights
from tpiedge.tracing.tracer import COMPUTE, REDUCE, TRAVEL, WAIT, EventSink
from tpiedge.wire.control import StepSpans
from tpiedge.wire.data import StepPlan
from tpiedge.wire.fields import MAX_SPANS

_KINDS = ("attention", "ffn")
_LANES = (COMPUTE, REDUCE, WAIT)


@dataclass
class Meter:
    """Seconds and counts, summed since the node was ready. Only the engine thread writes."""

    #: Arithmetic.
    attention_s: float = 0.0
    ffn_s: float = 0.0
    #: Collectives.
    reduce_wait_s: float = 0.0
    #: Rank 0's embedding, LM head and sampling, and waits for tiles.
    head_s: float = 0.0
    steps: int = 0
    tokens: int = 0
    #: Rank 0's guesses, and how many came true.
    drafted: int = 0
    accepted: int = 0
    #: The step and block under way, for heartbeats.
    step: int = 0
    block: int = 0

    def __post_init__(self) -> None:
        self.attention_span = _Span(self, "attention_s", COMPUTE, "attention")
        self.ffn_span = _Span(self, "ffn_s", COMPUTE, "ffn")
        self.embedding_span = _Span(self, "head_s", COMPUTE, "embedding")
        self.head_span = _Span(self, "head_s", COMPUTE, "head")
        self.announce_span = _Span(self, "reduce_wait_s", REDUCE, "plan")
        self.broadcast_span = _Span(self, "reduce_wait_s", REDUCE, "broadcast")
        self._reduce_spans = [_Span(self, "reduce_wait_s", REDUCE, f"reduce {kind}") for kind in _KINDS]
        self.sink: EventSink | None = None
        #: Whether every step is recorded block by block.
        self.traced = False

    def computed(self, attention_s: float, ffn_s: float) -> None:
        self.attention_s += attention_s
        self.ffn_s += ffn_s
        if self.sink is not None:
            ended = time.perf_counter()
            self.sink.add(COMPUTE, 0, ended - attention_s - ffn_s, ended)

    def record(self, sink: EventSink | None, *, traced: bool = False) -> None:
        """Records every later span in `sink`; None ends this. With `traced`, layers are not fused."""
        self.sink, self.traced = sink, traced

    def reduce_span(self, block: int) -> "_Span":
        layer, kind = divmod(block, 2)
        return self._reduce_spans[kind].of(layer)

    def travelled(self, block: int, begun: float) -> None:
        """Records a block's all-reduce that ends now. `begun` is its start, by perf_counter."""
        if self.sink is not None:
            layer, kind = divmod(block, 2)
            self.sink.add(TRAVEL, self.sink.name(_KINDS[kind]), begun, time.perf_counter(), layer, self.step)


class _Span:
    # Runs twice per model block, with cold caches.
    __slots__ = ("_field", "_lane", "_layer", "_meter", "_name", "_started")

    def __init__(self, meter: Meter, field: str, lane: int, name: str) -> None:
        self._meter, self._field, self._lane, self._name = meter, field, lane, name
        self._layer = -1
        self._started = 0.0

    def of(self, layer: int) -> "_Span":
        self._layer = layer
        return self

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        ended, meter = time.perf_counter(), self._meter
        setattr(meter, self._field, getattr(meter, self._field) + ended - self._started)
        if meter.sink is not None:
            number = meter.sink.name(self._name)
            meter.sink.add(self._lane, number, self._started, ended, self._layer, meter.step)


class StepRecorder:
    """Records single steps and passes them to `tell`, which must not block."""

    def __init__(
        self, rank: int, meter: Meter, weights: NodeWeights, tell: Callable[[StepSpans], None]
    ) -> None:
        self._rank, self._meter, self._weights, self._tell = rank, meter, weights, tell
        self._plan: StepPlan | None = None
        self._spans: dict[int, list[tuple[float, float]]] = {}

    def start(self, plan: StepPlan) -> None:
        if not plan.recorded or self._meter.traced:
            return
        self._plan, self._spans = plan, {lane: [] for lane in _LANES}
        self._switch(self)

    def end(self) -> None:
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
        if self._plan is not None:
            self._plan, self._spans = None, {}
            self._switch(None)

    def name(self, _text: str) -> int:
        return 0

    def add(self, lane: int, _name: int, start: float, end: float, *_: int) -> None:
        spans = self._spans.get(lane)
        if spans is not None and len(spans) < MAX_SPANS:
            spans.append((start, end))

    def _switch(self, sink: EventSink | None) -> None:
        self._meter.record(sink)
        self._weights.record(sink)


def _since(begun: float, at: float) -> int:
    return min((1 << 32) - 1, round((at - begun) * 1e6))
