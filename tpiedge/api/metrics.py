"""`GET /metrics`: the cluster's state and counters in Prometheus's text format.

The guard asks for an API key where there are any, as for the model (Prometheus: `authorization: credentials`). Nodes go
by rank and by the name that the master gave them; the names and addresses of computers are the administrator's alone.

Nodes answer when they can and nobody waits for them: their figures are those of the last heartbeat, and missing on the
first look. They begin at zero whenever a plan begins, as the counters of a process that was started anew do.

What vLLM measures too goes by its names as well, so that dashboards and autoscalers made for it work. No label has a
value that clients choose.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from tpiedge.master.histogram import Histogram
from tpiedge.master.history import LOSS_CAUSES, PLAN_CAUSES
from tpiedge.master.status import ClusterStatus, NodeStatus
from tpiedge.wire.control import Stats

METRICS_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

_Labels: TypeAlias = Mapping[str, str]
_NONE: Final[_Labels] = {}

#: Field of Stats, name, help.
_COUNTERS: Final = (
    (
        "disk_read_bytes",
        "node_disk_read_bytes_total",
        "Bytes of weights read from disk since they were loaded.",
    ),
    ("reads", "node_disk_reads_total", "Pieces of weights read from disk."),
    ("load_s", "node_disk_busy_seconds_total", "While at least one such read was under way."),
    ("prefetch_hits", "node_prefetch_hits_total", "Blocks whose weights had been read ahead."),
    ("stalls", "node_stalls_total", "Blocks whose weights were waited for."),
    ("weight_wait_s", "node_stall_seconds_total", "Waiting for weights."),
    ("attention_s", "node_attention_seconds_total", "Computing attention blocks."),
    ("ffn_s", "node_ffn_seconds_total", "Computing FFN blocks."),
    ("reduce_wait_s", "node_reduce_seconds_total", "In all-reduces, other nodes' lateness included."),
    ("head_s", "node_head_seconds_total", "Embedding, LM head and sampling, on rank 0."),
    ("bytes_sent", "node_sent_bytes_total", "Sent to other nodes."),
    ("bytes_received", "node_received_bytes_total", "Received from other nodes."),
    ("dropped", "node_dropped_messages_total", "Messages of other nodes that came too late."),
    (
        "refused",
        "node_refused_messages_total",
        "Messages and connections on the tensor plane that no honest node makes.",
    ),
    ("steps", "node_steps_total", "Sweeps over the model."),
    ("tokens", "node_tokens_total", "Positions computed, those of prompts included."),
    (
        "drafted",
        "node_drafted_tokens_total",
        "Tokens that were guessed, to be checked in one step, on rank 0.",
    ),
    ("accepted", "node_accepted_tokens_total", "Guessed tokens that were right."),
)
_GAUGES: Final = (
    ("peak_rss_bytes", "node_peak_rss_bytes", "The largest resident set of the process so far."),
    ("weight_bytes", "node_weight_bytes", "Memory that is kept for weights."),
    ("window_bytes", "node_window_bytes", "Those of them that weights pass through on their way from disk."),
    ("kv_bytes", "node_kv_bytes", "Memory that the KV cache takes, at most."),
    ("kv_reserved_bytes", "node_kv_reserved_bytes", "Memory that the KV cache takes when it is full."),
    ("kv_pages", "node_kv_pages", "Pages of the KV cache."),
    ("kv_pages_used", "node_kv_pages_used", "Pages that hold what running requests need."),
)
#: Field of RequestHistograms, vLLM's name, help.
_HISTOGRAMS: Final = (
    ("queue", "request_queue_time_seconds", "From a request's acceptance to its start."),
    ("first_token", "time_to_first_token_seconds", "From a request's acceptance to its first token."),
    ("prefill", "request_prefill_time_seconds", "From a request's start to its first token."),
    ("between_tokens", "inter_token_latency_seconds", "From each token of an answer to the next."),
    ("between_tokens", "time_per_output_token_seconds", "The same, by the name that vLLM had before."),
    ("per_token", "request_time_per_output_token_seconds", "Between two tokens, the mean of an answer."),
    ("decode", "request_decode_time_seconds", "From the first token of a whole answer to the last one."),
    ("latency", "e2e_request_latency_seconds", "From a request's acceptance to the end of a whole answer."),
    ("prompt_tokens", "request_prompt_tokens", "Tokens of the prompts of whole answers."),
    ("answer_tokens", "request_generation_tokens", "Tokens of whole answers."),
)


def metrics_page(status: ClusterStatus, model: str) -> bytes:
    """The whole page. `model`: the name of the served one."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(status, model))
    return generate_latest(registry)


class _Page(Collector):
    """What is known at one moment."""

    def __init__(self, status: ClusterStatus, model: str) -> None:
        self._status = status
        self._model = model

    def collect(self) -> Iterator[Metric]:
        yield from _cluster(self._status)
        yield from _plans(self._status)
        yield from _requests(self._status)
        yield from _nodes(self._status)
        yield from _as_vllm(self._status, {"model_name": self._model, "engine": "0"})


def _cluster(status: ClusterStatus) -> Iterator[Metric]:
    states = Counter(node.state for node in status.nodes)
    yield _gauge("tpiedge_ready", "Whether requests are answered.", [(_NONE, status.ready)])
    yield _gauge(
        "tpiedge_epoch",
        "The plan that serves: a larger number with every new one, 0 before the first.",
        [(_NONE, status.epoch)],
    )
    ways = {"token": status.collective, "chunk": status.bulk_collective}
    yield _gauge(
        "tpiedge_collective",
        "By which the all-reduces of a token and of a whole chunk go.",
        [({"of": of, "collective": name}, 1) for of, name in ways.items() if name],
    )
    yield _gauge(
        "tpiedge_nodes",
        "Machines by what they do.",
        [({"state": state}, count) for state, count in sorted(states.items())],
    )


def _plans(status: ClusterStatus) -> Iterator[Metric]:
    history = status.history
    yield _counter(
        "tpiedge_plans_total",
        "Plans that began: the first one, after a loss, or in the place of another one.",
        [({"cause": cause}, count) for cause, count in zip(PLAN_CAUSES, history.begun, strict=True)],
    )
    yield _counter(
        "tpiedge_failed_plans_total", "Plans that failed before they served.", [(_NONE, history.failed)]
    )
    yield _counter(
        "tpiedge_losses_total",
        "Ends of a plan that served, other than by the next one, by cause.",
        [({"cause": cause}, count) for cause, count in zip(LOSS_CAUSES, history.losses, strict=True)],
    )
    yield _histogram(
        "tpiedge_recovery_seconds",
        "From such an end until requests were answered again.",
        [(_NONE, history.recoveries)],
    )


def _requests(status: ClusterStatus) -> Iterator[Metric]:
    totals = status.totals
    yield _gauge("tpiedge_requests_waiting", "Requests that wait for their turn.", [(_NONE, status.queued)])
    yield _gauge("tpiedge_requests_running", "Requests that are answered.", [(_NONE, status.running)])
    outcomes = {
        "finished": totals.finished,
        "failed": totals.failed,
        "cancelled": totals.cancelled,
        "refused": totals.refused,
    }
    yield _counter(
        "tpiedge_requests_total",
        "Requests by how they ended.",
        [({"outcome": name}, count) for name, count in outcomes.items()],
    )
    for name, says, value in (
        ("tpiedge_prompt_tokens_total", "Tokens of answered prompts.", totals.prompt_tokens),
        (
            "tpiedge_cached_prompt_tokens_total",
            "Those of them that were kept from earlier requests, and not computed.",
            totals.cached_tokens,
        ),
        ("tpiedge_generated_tokens_total", "Tokens of answers.", totals.tokens),
        ("tpiedge_resumed_answers_total", "Answers that went on in another epoch.", totals.resumed),
        ("tpiedge_paused_answer_seconds_total", "For how long those had paused.", totals.paused_s),
    ):
        yield _counter(name, says, [(_NONE, value)])
    yield _histogram(
        "tpiedge_answer_pause_seconds",
        "Pauses of answers that went on: for a plan, a loss, another master, or requests that somebody waits for.",
        [({"cause": cause}, pauses) for cause, pauses in status.histograms.pauses.items()],
    )


def _nodes(status: ClusterStatus) -> Iterator[Metric]:
    told = [(_called(node), node.counters) for node in status.nodes if node.counters is not None]
    for field, name, says in _COUNTERS:
        yield _counter(f"tpiedge_{name}", says, _values(told, field))
    for field, name, says in _GAUGES:
        yield _gauge(f"tpiedge_{name}", says, _values(told, field))
    yield _gauge(
        "tpiedge_node_memory_limit_bytes",
        "Memory that the node's machine offers.",
        [(_called(node), node.memory_bytes) for node in status.nodes if node.rank is not None],
    )


def _as_vllm(status: ClusterStatus, labels: _Labels) -> Iterator[Metric]:
    """What vLLM measures too, by its names. What rank 0 alone knows is missing until it has said so."""
    totals = status.totals
    yield _gauge("vllm:num_requests_running", "Requests that are answered.", [(labels, status.running)])
    yield _gauge("vllm:num_requests_waiting", "Requests that wait for their turn.", [(labels, status.queued)])
    reasons = {
        "stop": totals.finished - totals.cut,
        "length": totals.cut,
        "abort": totals.cancelled,
        "error": totals.failed,
    }
    yield _counter(
        "vllm:request_success_total",
        "Requests by how they ended.",
        [({**labels, "finished_reason": reason}, count) for reason, count in reasons.items()],
    )
    for name, says, value in (
        ("vllm:prompt_tokens_total", "Tokens of answered prompts.", totals.prompt_tokens),
        ("vllm:generation_tokens_total", "Tokens of answers.", totals.tokens),
        ("vllm:prefix_cache_queries_total", "Tokens of answered prompts.", totals.prompt_tokens),
        ("vllm:prefix_cache_hits_total", "Those that were kept from earlier ones.", totals.cached_tokens),
    ):
        yield _counter(name, says, [(labels, value)])
    head = next((node.counters for node in status.nodes if node.rank == 0), None)
    if head is not None:
        used = head.kv_pages_used / head.kv_pages if head.kv_pages else 0.0
        yield _gauge(
            "vllm:kv_cache_usage_perc",
            "Part of the KV cache that running requests hold: 1 is all.",
            [(labels, used)],
        )
        yield _counter(
            "vllm:spec_decode_num_draft_tokens_total", "Tokens that were guessed.", [(labels, head.drafted)]
        )
        yield _counter(
            "vllm:spec_decode_num_accepted_tokens_total",
            "Guessed tokens that were right.",
            [(labels, head.accepted)],
        )
    for field, name, says in _HISTOGRAMS:
        yield _histogram(f"vllm:{name}", says, [(labels, getattr(status.histograms, field))])


def _called(node: NodeStatus) -> _Labels:
    return {"rank": str(node.rank), "node": node.name}


def _values(told: Sequence[tuple[_Labels, Stats]], field: str) -> list[tuple[_Labels, float]]:
    return [(labels, getattr(stats, field)) for labels, stats in told]


def _gauge(name: str, says: str, values: Iterable[tuple[_Labels, float]]) -> Metric:
    return _with_values(GaugeMetricFamily(name, says), name, values)


def _counter(name: str, says: str, values: Iterable[tuple[_Labels, float]]) -> Metric:
    return _with_values(CounterMetricFamily(name, says), name, values)


def _with_values(family: Metric, name: str, values: Iterable[tuple[_Labels, float]]) -> Metric:
    for labels, value in values:
        family.add_sample(name, dict(labels), float(value))
    return family


def _histogram(name: str, says: str, values: Iterable[tuple[_Labels, Histogram]]) -> Metric:
    """The counts of the page are cumulative, the last one that of all values."""
    family = HistogramMetricFamily(name, says)
    for labels, found in values:
        bounds = [*(repr(bound) for bound in found.bounds), "+Inf"]
        for bound, count in zip(bounds, accumulate(found.counts), strict=True):
            family.add_sample(f"{name}_bucket", {**labels, "le": bound}, float(count))
        family.add_sample(f"{name}_count", dict(labels), float(sum(found.counts)))
        family.add_sample(f"{name}_sum", dict(labels), found.total)
    return family
