"""`GET /metrics` shows the cluster's state and counters in Prometheus's text format.

The route needs an API key if the server has API keys. Labels have a node's rank and the master's name for this node,
but no host or address. Clients cannot choose the value of a label.

Each GET makes nodes report their counters for a while. So the first response lacks these counters. Every plan resets
counters of nodes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, TypeAlias, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from tpiedge.master.history import LOSS_CAUSES, PLAN_CAUSES
from tpiedge.master.request_times import Histogram
from tpiedge.master.status import ClusterStatus

METRICS_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

_T = TypeVar("_T")
_Labels: TypeAlias = Mapping[str, str]
#: (name, help, one number or a number for each set of labels). The name of a counter ends with _total.
_Row: TypeAlias = tuple[str, str, float | Sequence[tuple[_Labels, float]]]

#: (field of Stats, name, help).
_OF_NODES: Final = (
    ("disk_read_bytes", "disk_read_bytes_total", "Bytes of weights read from disk since they were loaded."),
    ("reads", "disk_reads_total", "Pieces of weights read from disk."),
    ("load_s", "disk_busy_seconds_total", "Seconds with at least one such read under way."),
    ("brought_bytes", "kv_brought_bytes_total", "Bytes of KV pages read from disk."),
    ("brought_pages", "kv_brought_pages_total", "KV pages read from disk."),
    ("bring_s", "kv_bring_seconds_total", "Seconds with at least one such read under way."),
    ("left_bytes", "kv_left_bytes_total", "Bytes of KV pages written to disk."),
    ("left_pages", "kv_left_pages_total", "KV pages written to disk."),
    ("leave_s", "kv_leave_seconds_total", "Seconds with at least one such write under way."),
    ("evicted_pages", "kv_evicted_pages_total", "KV pages deleted from disk to make room for others."),
    ("prefetch_hits", "prefetch_hits_total", "Blocks whose weights had been prefetched."),
    ("stalls", "stalls_total", "Blocks whose weights were waited for."),
    ("weight_wait_s", "stall_seconds_total", "Seconds of waiting for weights."),
    ("attention_s", "attention_seconds_total", "Seconds of attention blocks."),
    ("ffn_s", "ffn_seconds_total", "Seconds of FFN blocks."),
    ("reduce_wait_s", "reduce_seconds_total", "Seconds of all-reduces, with waiting for other nodes."),
    ("head_s", "head_seconds_total", "Seconds of embedding, LM head and sampling, on rank 0."),
    ("bytes_sent", "sent_bytes_total", "Bytes sent to other nodes."),
    ("bytes_received", "received_bytes_total", "Bytes received from other nodes."),
    ("dropped", "dropped_messages_total", "Messages of other nodes that arrived too late."),
    ("refused", "refused_messages_total", "Messages and connections that were refused."),
    ("steps", "steps_total", "Steps: passes through the model."),
    ("tokens", "tokens_total", "Tokens computed, of prompts and answers."),
    ("drafted", "drafted_tokens_total", "Drafted tokens, on rank 0."),
    ("accepted", "accepted_tokens_total", "Accepted draft tokens."),
    ("peak_rss_bytes", "peak_rss_bytes", "The largest resident set of the process so far."),
    ("weight_bytes", "weight_bytes", "Memory for weights."),
    ("window_bytes", "window_bytes", "Part of it that streamed weights pass through."),
    ("kv_bytes", "kv_bytes", "Memory that the KV cache takes, at most."),
    ("kv_reserved_bytes", "kv_reserved_bytes", "Memory that the KV cache takes when it is full."),
    ("kv_pages", "kv_pages", "Pages of the KV cache."),
    ("kv_pages_used", "kv_pages_used", "Pages that hold what running requests need."),
)
#: (field of RequestHistograms, vLLM's name, help).
_HISTOGRAMS: Final = (
    ("queue", "request_queue_time_seconds", "From a request's acceptance to its start."),
    ("first_token", "time_to_first_token_seconds", "From a request's acceptance to its first token."),
    ("prefill", "request_prefill_time_seconds", "From a request's start to its first token."),
    ("between_tokens", "inter_token_latency_seconds", "From each token of an answer to the next."),
    ("between_tokens", "time_per_output_token_seconds", "The same, by an earlier name of vLLM."),
    ("per_token", "request_time_per_output_token_seconds", "Between two tokens, the mean of an answer."),
    ("decode", "request_decode_time_seconds", "From the first token of a whole answer to the last one."),
    ("latency", "e2e_request_latency_seconds", "From a request's acceptance to the end of a whole answer."),
    ("prompt_tokens", "request_prompt_tokens", "Tokens of the prompts of whole answers."),
    ("answer_tokens", "request_generation_tokens", "Tokens of whole answers."),
)


def metrics_page(status: ClusterStatus, model: str) -> bytes:
    return generate_latest(_Page(status, model))


@dataclass(frozen=True, slots=True)
class _Page(Collector):
    status: ClusterStatus
    model: str

    def collect(self) -> Iterator[Metric]:
        status, labels = self.status, {"model_name": self.model, "engine": "0"}
        yield from (_numbers(row, {}) for row in _cluster(status))
        says = "Time from a loss until requests were answered again."
        yield _histogram("tpiedge_recovery_seconds", says, [({}, status.history.recoveries)])
        yield from (_numbers(row, {}) for row in _requests(status))
        says, pauses = "Pauses of answers that went on, by cause.", _by("cause", status.histograms.pauses)
        yield _histogram("tpiedge_answer_pause_seconds", says, pauses)
        yield from (_numbers(row, {}) for row in _nodes(status))
        yield from (_numbers(row, labels) for row in _as_vllm(status))
        for field, name, says in _HISTOGRAMS:
            yield _histogram(f"vllm:{name}", says, [(labels, getattr(status.histograms, field))])


def _cluster(status: ClusterStatus) -> Iterator[_Row]:
    states, history = Counter(node.state for node in status.nodes), status.history
    ways = {"token": status.collective, "chunk": status.bulk_collective}
    collectives = [({"of": of, "collective": name}, 1) for of, name in ways.items() if name]
    yield "tpiedge_ready", "Whether requests are answered.", status.ready
    yield (
        "tpiedge_epoch",
        "Number of the serving plan; 0 before the first.",
        status.epoch,
    )
    yield "tpiedge_collective", "The all-reduces of a token and of a whole chunk.", collectives
    yield "tpiedge_keeps_context", "Whether prompts are kept on the disks.", status.keeps_context
    yield "tpiedge_nodes", "Machines by state.", _by("state", dict(sorted(states.items())))
    begun = dict(zip(PLAN_CAUSES, history.begun, strict=True))
    losses = dict(zip(LOSS_CAUSES, history.losses, strict=True))
    yield "tpiedge_plans_total", "Plans that began, by cause.", _by("cause", begun)
    yield "tpiedge_failed_plans_total", "Plans that failed before they served.", history.failed
    yield "tpiedge_losses_total", "Serving plans that ended unplanned, by cause.", _by("cause", losses)


def _requests(status: ClusterStatus) -> Iterator[_Row]:
    totals = status.totals
    outcomes = {name: getattr(totals, name) for name in ("finished", "failed", "cancelled", "refused")}
    yield "tpiedge_requests_total", "Requests by how they ended.", _by("outcome", outcomes)
    yield "tpiedge_requests_waiting", "Queued requests.", status.queued
    yield "tpiedge_requests_running", "Running requests.", status.running
    yield "tpiedge_prompt_tokens_total", "Tokens of answered prompts.", totals.prompt_tokens
    yield (
        "tpiedge_cached_prompt_tokens_total",
        "Prompt tokens found in the prefix cache.",
        totals.cached_tokens,
    )
    yield "tpiedge_brought_prompt_tokens_total", "Those of them that were on disk.", totals.brought_tokens
    yield "tpiedge_generated_tokens_total", "Tokens of answers.", totals.tokens
    computed = totals.resumed - totals.travelled - totals.brought
    ways = {"travel": totals.travelled, "bring": totals.brought, "compute": computed}
    says = "Answers that were resumed in another epoch, by how they got their KV cache."
    yield "tpiedge_resumed_answers_total", says, _by("by", ways)
    yield "tpiedge_paused_answer_seconds_total", "Time that those had paused.", totals.paused_s


def _nodes(status: ClusterStatus) -> Iterator[_Row]:
    labelled = [({"rank": str(node.rank), "node": node.name}, node) for node in status.nodes]
    told = [(labels, node.counters) for labels, node in labelled if node.counters is not None]
    for field, name, says in _OF_NODES:
        yield f"tpiedge_node_{name}", says, [(labels, getattr(stats, field)) for labels, stats in told]
    limits = [(labels, node.memory_bytes) for labels, node in labelled if node.rank is not None]
    yield "tpiedge_node_memory_limit_bytes", "Memory that the node's machine offers.", limits


def _as_vllm(status: ClusterStatus) -> Iterator[_Row]:
    """Yields vLLM's metrics. Rank 0's values are missing until it has reported."""
    totals = status.totals
    whole = totals.finished - totals.cut
    reasons = {"stop": whole, "length": totals.cut, "abort": totals.cancelled, "error": totals.failed}
    yield "vllm:request_success_total", "Requests by how they ended.", _by("finished_reason", reasons)
    yield "vllm:num_requests_running", "Running requests.", status.running
    yield "vllm:num_requests_waiting", "Queued requests.", status.queued
    yield "vllm:prompt_tokens_total", "Tokens of answered prompts.", totals.prompt_tokens
    yield "vllm:generation_tokens_total", "Tokens of answers.", totals.tokens
    yield "vllm:prefix_cache_queries_total", "Tokens of answered prompts.", totals.prompt_tokens
    yield "vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", totals.cached_tokens
    head = next((node.counters for node in status.nodes if node.rank == 0), None)
    if head is not None:
        used = head.kv_pages_used / head.kv_pages if head.kv_pages else 0.0
        says = "Part of the KV cache that running requests hold: 1 is all."
        yield "vllm:kv_cache_usage_perc", says, used
        yield "vllm:spec_decode_num_draft_tokens_total", "Drafted tokens.", head.drafted
        yield "vllm:spec_decode_num_accepted_tokens_total", "Accepted draft tokens.", head.accepted


def _by(label: str, values: Mapping[Any, _T]) -> Sequence[tuple[_Labels, _T]]:
    return [({label: key}, value) for key, value in values.items()]


def _numbers(row: _Row, labels: _Labels) -> Metric:
    name, says, given = row
    family: Metric = (CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily)(name, says)
    for own, value in given if isinstance(given, Sequence) else [({}, given)]:
        family.add_sample(name, {**labels, **own}, float(value))
    return family


def _histogram(name: str, says: str, values: Sequence[tuple[_Labels, Histogram]]) -> Metric:
    family = HistogramMetricFamily(name, says)
    for labels, value in values:
        bounds = [*map(repr, value.bounds), "+Inf"]
        for bound, count in zip(bounds, accumulate(value.counts), strict=True):
            family.add_sample(f"{name}_bucket", {**labels, "le": bound}, float(count))
        family.add_sample(f"{name}_count", {**labels}, float(sum(value.counts)))
        family.add_sample(f"{name}_sum", {**labels}, value.total)
    return family
