"""`GET /metrics`: the cluster's state and counters in Prometheus's text format.

API keys count here, too (Prometheus: `authorization: credentials`). Nodes are labelled by rank and by the name that the
master gave them; only the administrator sees hosts and addresses. No label has a value that clients choose.

Counters of nodes are those of the last heartbeat, missing on the first look, and begin at zero with every plan, like
those of a restarted process. What vLLM measures too has its names as well, for dashboards and autoscalers.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from tpiedge.master.history import LOSS_CAUSES, PLAN_CAUSES
from tpiedge.master.request_times import Histogram
from tpiedge.master.status import ClusterStatus

METRICS_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

_Labels: TypeAlias = Mapping[str, str]
_NONE: Final[_Labels] = {}

#: Field of Stats, name, help.
_OF_NODES: Final = (
    ("disk_read_bytes", "disk_read_bytes_total", "Bytes of weights read from disk since they were loaded."),
    ("reads", "disk_reads_total", "Pieces of weights read from disk."),
    ("load_s", "disk_busy_seconds_total", "While at least one such read was under way."),
    ("prefetch_hits", "prefetch_hits_total", "Blocks whose weights had been read ahead."),
    ("stalls", "stalls_total", "Blocks whose weights were waited for."),
    ("weight_wait_s", "stall_seconds_total", "Waiting for weights."),
    ("attention_s", "attention_seconds_total", "Computing attention blocks."),
    ("ffn_s", "ffn_seconds_total", "Computing FFN blocks."),
    ("reduce_wait_s", "reduce_seconds_total", "In all-reduces, other nodes' lateness included."),
    ("head_s", "head_seconds_total", "Embedding, LM head and sampling, on rank 0."),
    ("bytes_sent", "sent_bytes_total", "Sent to other nodes."),
    ("bytes_received", "received_bytes_total", "Received from other nodes."),
    ("dropped", "dropped_messages_total", "Messages of other nodes that came too late."),
    ("refused", "refused_messages_total", "Messages and connections that no honest node makes."),
    ("steps", "steps_total", "Sweeps over the model."),
    ("tokens", "tokens_total", "Positions computed, those of prompts included."),
    ("drafted", "drafted_tokens_total", "Tokens that were guessed, on rank 0."),
    ("accepted", "accepted_tokens_total", "Guessed tokens that were right."),
    ("peak_rss_bytes", "peak_rss_bytes", "The largest resident set of the process so far."),
    ("weight_bytes", "weight_bytes", "Memory that is kept for weights."),
    ("window_bytes", "window_bytes", "Those of them that weights pass through on their way from disk."),
    ("kv_bytes", "kv_bytes", "Memory that the KV cache takes, at most."),
    ("kv_reserved_bytes", "kv_reserved_bytes", "Memory that the KV cache takes when it is full."),
    ("kv_pages", "kv_pages", "Pages of the KV cache."),
    ("kv_pages_used", "kv_pages_used", "Pages that hold what running requests need."),
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
    """Returns the page. `model`: the name of the served one."""
    return generate_latest(_Page(status, model))


@dataclass(frozen=True, slots=True)
class _Page(Collector):
    status: ClusterStatus
    model: str

    def collect(self) -> Iterator[Metric]:
        for part in (_cluster, _requests, _nodes):
            yield from part(self.status)
        yield from _as_vllm(self.status, {"model_name": self.model, "engine": "0"})


def _cluster(status: ClusterStatus) -> Iterator[Metric]:
    states = Counter(node.state for node in status.nodes)
    ways = {"token": status.collective, "chunk": status.bulk_collective}
    collectives = [({"of": of, "collective": name}, 1) for of, name in ways.items() if name]
    yield _one("tpiedge_ready", "Whether requests are answered.", status.ready)
    yield _one(
        "tpiedge_epoch", "The plan that serves: larger with every new one, 0 before the first.", status.epoch
    )
    yield _several("tpiedge_collective", "The all-reduces of a token and of a whole chunk.", collectives)
    yield _labelled("tpiedge_nodes", "Machines by what they do.", "state", dict(sorted(states.items())))
    history = status.history
    begun: dict[str, float] = dict(zip(PLAN_CAUSES, history.begun, strict=True))
    losses: dict[str, float] = dict(zip(LOSS_CAUSES, history.losses, strict=True))
    yield _labelled("tpiedge_plans_total", "Plans that began, by cause.", "cause", begun)
    yield _one("tpiedge_failed_plans_total", "Plans that failed before they served.", history.failed)
    yield _labelled("tpiedge_losses_total", "Plans that served and ended before the next.", "cause", losses)
    says = "From such an end until requests were answered again."
    yield _histogram("tpiedge_recovery_seconds", says, [(_NONE, history.recoveries)])


def _requests(status: ClusterStatus) -> Iterator[Metric]:
    totals = status.totals
    outcomes = {name: getattr(totals, name) for name in ("finished", "failed", "cancelled", "refused")}
    yield _labelled("tpiedge_requests_total", "Requests by how they ended.", "outcome", outcomes)
    for name, says, value in (
        ("requests_waiting", "Requests that wait for their turn.", status.queued),
        ("requests_running", "Requests that are answered.", status.running),
        ("prompt_tokens_total", "Tokens of answered prompts.", totals.prompt_tokens),
        ("cached_prompt_tokens_total", "Those that were kept, and not computed.", totals.cached_tokens),
        ("generated_tokens_total", "Tokens of answers.", totals.tokens),
        ("resumed_answers_total", "Answers that went on in another epoch.", totals.resumed),
        ("paused_answer_seconds_total", "For how long those had paused.", totals.paused_s),
    ):
        yield _one(f"tpiedge_{name}", says, value)
    pauses = [({"cause": cause}, found) for cause, found in status.histograms.pauses.items()]
    yield _histogram("tpiedge_answer_pause_seconds", "Pauses of answers that went on, by cause.", pauses)


def _nodes(status: ClusterStatus) -> Iterator[Metric]:
    labelled = [({"rank": str(node.rank), "node": node.name}, node) for node in status.nodes]
    told = [(labels, node.counters) for labels, node in labelled if node.counters is not None]
    for field, name, says in _OF_NODES:
        values = [(labels, getattr(stats, field)) for labels, stats in told]
        yield _several(f"tpiedge_node_{name}", says, values)
    limits = [(labels, node.memory_bytes) for labels, node in labelled if node.rank is not None]
    yield _several("tpiedge_node_memory_limit_bytes", "Memory that the node's machine offers.", limits)


def _as_vllm(status: ClusterStatus, labels: _Labels) -> Iterator[Metric]:
    """Yields what vLLM measures too. Values of rank 0 are missing until it has reported."""
    totals = status.totals
    reasons = {
        "stop": totals.finished - totals.cut,
        "length": totals.cut,
        "abort": totals.cancelled,
        "error": totals.failed,
    }
    yield _labelled(
        "vllm:request_success_total", "Requests by how they ended.", "finished_reason", reasons, labels
    )
    found: list[tuple[str, str, float]] = [
        ("num_requests_running", "Requests that are answered.", status.running),
        ("num_requests_waiting", "Requests that wait for their turn.", status.queued),
        ("prompt_tokens_total", "Tokens of answered prompts.", totals.prompt_tokens),
        ("generation_tokens_total", "Tokens of answers.", totals.tokens),
        ("prefix_cache_queries_total", "Tokens of answered prompts.", totals.prompt_tokens),
        ("prefix_cache_hits_total", "Those that were kept from earlier ones.", totals.cached_tokens),
    ]
    head = next((node.counters for node in status.nodes if node.rank == 0), None)
    if head is not None:
        used = head.kv_pages_used / head.kv_pages if head.kv_pages else 0.0
        found += [
            ("kv_cache_usage_perc", "Part of the KV cache that running requests hold: 1 is all.", used),
            ("spec_decode_num_draft_tokens_total", "Tokens that were guessed.", head.drafted),
            ("spec_decode_num_accepted_tokens_total", "Guessed tokens that were right.", head.accepted),
        ]
    for name, says, value in found:
        yield _one(f"vllm:{name}", says, value, labels)
    for field, name, says in _HISTOGRAMS:
        yield _histogram(f"vllm:{name}", says, [(labels, getattr(status.histograms, field))])


def _one(name: str, says: str, value: float, labels: _Labels = _NONE) -> Metric:
    return _several(name, says, [(labels, value)])


def _labelled(
    name: str, says: str, label: str, values: Mapping[str, float], labels: _Labels = _NONE
) -> Metric:
    """Makes a metric with a value for each value of the label."""
    return _several(name, says, [({**labels, label: key}, value) for key, value in values.items()])


def _several(name: str, says: str, values: Iterable[tuple[_Labels, float]]) -> Metric:
    """Makes a counter if the name ends with _total, else a gauge."""
    family = (CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily)(name, says)
    for labels, value in values:
        family.add_sample(name, dict(labels), float(value))
    return family


def _histogram(name: str, says: str, values: Iterable[tuple[_Labels, Histogram]]) -> Metric:
    """Counts are cumulative."""
    family = HistogramMetricFamily(name, says)
    for labels, found in values:
        bounds = [*(repr(bound) for bound in found.bounds), "+Inf"]
        for bound, count in zip(bounds, accumulate(found.counts), strict=True):
            family.add_sample(f"{name}_bucket", {**labels, "le": bound}, float(count))
        family.add_sample(f"{name}_count", dict(labels), float(sum(found.counts)))
        family.add_sample(f"{name}_sum", dict(labels), found.total)
    return family
