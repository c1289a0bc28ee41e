"""`GET /metrics`: the cluster's state and counters in Prometheus's text format.

The guard asks for an API key where there are any, as for the model (Prometheus: `authorization: credentials`). Nodes go
by rank and by the name that the master gave them; the names and addresses of computers are the administrator's alone.

Nodes answer when they can and nobody waits for them: their figures are those of the last heartbeat, and missing on the
first look. They begin at zero whenever a plan begins, as the counters of a process that was started anew do.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tpiedge.master.status import ClusterStatus
from tpiedge.wire.control import Stats

__all__ = ["METRICS_TYPE", "metrics_text"]

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_Labels: TypeAlias = Mapping[str, str]
_NONE: Final[_Labels] = {}


@dataclass(frozen=True)
class _Family:
    """A metric, with its values by their labels."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    values: Sequence[tuple[_Labels, float]]

    def lines(self) -> Iterator[str]:
        yield f"# HELP tpiedge_{self.name} {self.help}"
        yield f"# TYPE tpiedge_{self.name} {self.kind}"
        for labels, value in self.values:
            yield f"tpiedge_{self.name}{_labels(labels)} {value!r}"


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
    ("kv_bytes", "node_kv_bytes", "Memory that the KV cache takes, at most."),
    ("kv_pages", "node_kv_pages", "Pages of the KV cache."),
    ("kv_pages_used", "node_kv_pages_used", "Pages in use, by requests that run or for later ones."),
)


def metrics_text(status: ClusterStatus) -> str:
    """The whole page."""
    families = (*_cluster(status), *_requests(status), *_nodes(status))
    return "".join(f"{line}\n" for family in families for line in family.lines())


def _cluster(status: ClusterStatus) -> Iterator[_Family]:
    states = Counter(node.state for node in status.nodes)
    yield _gauge("ready", "Whether requests are answered.", float(status.ready))
    yield _gauge(
        "epoch", "The plan that serves: a larger number with every new one, 0 before the first.", status.epoch
    )
    ways = {"token": status.collective, "chunk": status.bulk_collective}
    chosen = [({"of": of, "collective": name}, 1.0) for of, name in ways.items() if name]
    yield _Family(
        "collective", "gauge", "By which the all-reduces of a token and of a whole chunk go.", chosen
    )
    by_state = [({"state": state}, float(count)) for state, count in sorted(states.items())]
    yield _Family("nodes", "gauge", "Machines by what they do.", by_state)


def _requests(status: ClusterStatus) -> Iterator[_Family]:
    totals = status.totals
    yield _gauge("requests_waiting", "Requests that wait for their turn.", status.queued)
    yield _gauge("requests_running", "Requests that are answered.", status.running)
    outcomes = {
        "finished": totals.finished,
        "failed": totals.failed,
        "cancelled": totals.cancelled,
        "refused": totals.refused,
    }
    ended = [({"outcome": name}, float(count)) for name, count in outcomes.items()]
    yield _Family("requests_total", "counter", "Requests by how they ended.", ended)
    yield _counter("prompt_tokens_total", "Tokens of answered prompts.", totals.prompt_tokens)
    yield _counter(
        "cached_prompt_tokens_total",
        "Those of them that were kept from earlier requests, and not computed.",
        totals.cached_tokens,
    )
    yield _counter("generated_tokens_total", "Tokens of answers.", totals.tokens)
    yield _counter("resumed_answers_total", "Answers that went on in another epoch.", totals.resumed)
    yield _counter("paused_answer_seconds_total", "For how long those had paused.", totals.paused_s)


def _nodes(status: ClusterStatus) -> Iterator[_Family]:
    told = [
        ({"rank": str(node.rank), "node": node.name}, node.counters)
        for node in status.nodes
        if node.counters is not None
    ]
    for field, name, says in _COUNTERS:
        yield _Family(name, "counter", says, _values(told, field))
    for field, name, says in _GAUGES:
        yield _Family(name, "gauge", says, _values(told, field))


def _values(told: Sequence[tuple[_Labels, Stats]], field: str) -> list[tuple[_Labels, float]]:
    return [(labels, float(getattr(stats, field))) for labels, stats in told]


def _gauge(name: str, says: str, value: float) -> _Family:
    return _Family(name, "gauge", says, [(_NONE, float(value))])


def _counter(name: str, says: str, value: float) -> _Family:
    return _Family(name, "counter", says, [(_NONE, float(value))])


def _labels(labels: _Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
