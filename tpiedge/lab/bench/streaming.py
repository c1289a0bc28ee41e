"""One run of `tpiedge bench memory`: a cluster that decodes, and what its nodes count meanwhile."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpiedge.lab.bench.budgets import Budget
from tpiedge.lab.bench.figures import ask
from tpiedge.local.launch import launch
from tpiedge.local.prepare import PreparedModel
from tpiedge.wire.control import Stats

_WARM_UP = 3


@dataclass(frozen=True)
class NodeSample:
    """One node's bytes, counts and seconds per token of decoding, and its memory in the end."""

    streamed_bytes: float
    reads: float
    prefetch_hits: float
    stalls: float
    stall_s: float
    load_s: float
    attention_s: float
    ffn_s: float
    reduce_s: float
    head_s: float
    peak_rss_bytes: int
    weight_bytes: int


@dataclass(frozen=True)
class Sample:
    """One run's figures."""

    s_per_token: float
    nodes: tuple[NodeSample, ...]

    @property
    def streamed_bytes(self) -> float:
        """Per token, of all nodes: they share the disk."""
        return sum(node.streamed_bytes for node in self.nodes)

    @staticmethod
    def of_json(record: Mapping[str, Any]) -> "Sample":
        """Reads what `asdict` made of one in another process."""
        return Sample(record["s_per_token"], tuple(NodeSample(**node) for node in record["nodes"]))


def measure(model: PreparedModel, budget: Budget, prompt_tokens: int, tokens: int) -> Sample:
    """A fresh cluster: a few tokens to warm up, then `tokens` in as many steps."""
    capacity = prompt_tokens + tokens
    with launch(model, budget.layout, budget.plan, capacity) as cluster:
        ask(cluster, model, prompt_tokens, min(tokens, _WARM_UP), keep=False)
        before = cluster.stats()
        answer = ask(cluster, model, prompt_tokens, tokens, keep=True)
        after = cluster.stats()
    steps = after[0].steps - before[0].steps
    nodes = tuple(_node(start, end, steps) for start, end in zip(before, after, strict=True))
    return Sample(answer.s_per_token or 0.0, nodes)


def _node(before: Stats, after: Stats, steps: int) -> NodeSample:
    def per_step(counter: str) -> float:
        difference: float = (getattr(after, counter) - getattr(before, counter)) / steps
        return difference

    return NodeSample(
        streamed_bytes=per_step("disk_read_bytes"),
        reads=per_step("reads"),
        prefetch_hits=per_step("prefetch_hits"),
        stalls=per_step("stalls"),
        stall_s=per_step("weight_wait_s"),
        load_s=per_step("load_s"),
        attention_s=per_step("attention_s"),
        ffn_s=per_step("ffn_s"),
        reduce_s=per_step("reduce_wait_s"),
        head_s=per_step("head_s"),
        peak_rss_bytes=after.peak_rss_bytes,
        weight_bytes=after.weight_bytes,
    )
