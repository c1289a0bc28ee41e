"""From a prepared model and what the user allows to a plan and a running cluster."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from tpiedge.cli.prepare import PreparedModel
from tpiedge.cli.progress import ByteProgress
from tpiedge.cli.testbed_nodes import Emulated, places_on
from tpiedge.errors import OutOfMemory, UserError
from tpiedge.nodes.cluster import ClusterSpec, LocalCluster, Place
from tpiedge.nodes.device import available_memory_bytes, default_memory_bytes, default_threads
from tpiedge.nodes.usage import rss_bytes
from tpiedge.planner.facts import model_facts
from tpiedge.planner.needs import Infeasible, ModelFacts, NodeFacts
from tpiedge.planner.partition import Weight, parse_shares
from tpiedge.planner.solve import Plan, evaluate, solve
from tpiedge.wire.control import Ready
from tpiedge.wire.fields import Choice, WirePrecision
from tpiedge.wire.weights import Keeping

__all__ = [
    "Layout",
    "check_context",
    "launch",
    "model_facts_of",
    "plan_cluster",
    "plan_json",
]

_MAX_NODES = 64
_DISK_SPEED = 0.1  # of the speed of computing; all nodes have the same disk


@dataclass(frozen=True)
class Layout:
    """How many nodes, of which size, on the devices of which testbed, and how they add up their parts."""

    nodes: int
    shares: str | None
    threads: int | None
    memory_bytes: int | None
    keeping: Keeping = field(default_factory=Keeping)
    testbed: Emulated | None = None
    collective: Choice = "auto"
    wire: WirePrecision = "f32"

    @property
    def threads_per_node(self) -> int:
        """As given, or the physical cores that this process may use, divided among the nodes; of a testbed's devices no
        more than they have processors."""
        if self.threads is not None:
            return self.threads
        threads = max(1, default_threads() // self.nodes)
        return threads if self.testbed is None else min(threads, self.testbed.most_threads)

    def check(self) -> None:
        """Raises UserError for any flag that is out of range."""
        _ = self.weights

    @property
    def weights(self) -> tuple[Weight, ...] | None:
        """The nodes' relative weights; None: whatever fits. Raises UserError as `check`."""
        if not 1 <= self.nodes <= _MAX_NODES:
            raise UserError(f"--nodes {self.nodes} is out of range: 1 to {_MAX_NODES}")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise UserError(f"--threads {self.threads} is out of range: 1 to 1024")
        return None if self.shares is None else parse_shares(self.shares, self.nodes)


def plan_cluster(model: PreparedModel, layout: Layout, capacity_tokens: int) -> Plan:
    """Shares by --shares or even ones, within --memory or what this computer has. Raises UserError, or OutOfMemory with
    the numbers."""
    if layout.memory_bytes is not None:
        plan = _plan(model, layout, layout.memory_bytes, capacity_tokens)
    else:
        plan = _plan_for_this_computer(model, layout, capacity_tokens)
    if isinstance(plan, Infeasible):
        raise OutOfMemory(f"{model.name} does not fit: {plan.reason}")
    _check_this_computer(model, plan)
    return plan


def _plan_for_this_computer(model: PreparedModel, layout: Layout, capacity_tokens: int) -> Plan | Infeasible:
    """What needs no more than a part of the free memory, or, where that is too little, all of it."""
    plan = _plan(model, layout, None, capacity_tokens)
    available = _available_bytes()
    for free in (default_memory_bytes(available), available):
        if isinstance(plan, Plan) and _total_bytes(plan) <= free:
            break
        plan = _plan(model, layout, free // layout.nodes, capacity_tokens)
    return plan


def _plan(
    model: PreparedModel, layout: Layout, memory_bytes: int | None, capacity_tokens: int
) -> Plan | Infeasible:
    weights = layout.weights
    facts = model_facts_of(model)
    # This process is counted with rank 0.
    nodes = [replace(_node(layout, rank, memory_bytes), alone=rank > 0) for rank in range(layout.nodes)]
    if weights is None:
        return solve(facts, nodes, capacity_tokens)
    return evaluate(facts, nodes, weights, capacity_tokens)


def _node(layout: Layout, rank: int, memory_bytes: int | None) -> NodeFacts:
    speed = 1.0
    if layout.testbed is not None:
        speed = layout.testbed.speeds[rank]
        memory_bytes = layout.testbed.memory_bytes(rank, memory_bytes)
    return NodeFacts(speed, memory_bytes, disk_bytes_per_s=_DISK_SPEED, keeping=layout.keeping)


def model_facts_of(model: PreparedModel) -> ModelFacts:
    """The model's numbers for the planner."""
    return model_facts(model.pack, head_dim=model.config.head_dim, kv=model.kv)


def _total_bytes(plan: Plan) -> int:
    return sum(need.total_bytes for need in plan.needs)


def check_context(model: PreparedModel, context: int) -> int:
    """--context, if the model has as many positions."""
    limit = model.context_tokens
    if not 1 <= context <= limit:
        raise UserError(f"--context {context} is out of range: the model has 1 to {limit} positions")
    return context


def _check_this_computer(model: PreparedModel, plan: Plan) -> None:
    """All nodes share this computer's memory; swapping weights would be slower than refusing them is rude."""
    needed = _total_bytes(plan)
    available = _available_bytes()
    if needed > available:
        precision = model_facts_of(model).smaller_precision
        smaller = f", or --precision {precision}" if precision else ""
        raise OutOfMemory(
            f"{model.name} on {len(plan.needs)} nodes needs {needed / 1e9:.1f} GB in all, this computer has "
            f"{available / 1e9:.1f} GB free: use fewer nodes, a smaller --memory or --context{smaller}"
        )


def _available_bytes() -> int:
    """For the cluster, which this process belongs to."""
    return available_memory_bytes() + rss_bytes(os.getpid())


@contextmanager
def launch(
    model: PreparedModel,
    layout: Layout,
    plan: Plan,
    capacity_tokens: int,
    traces: tuple[Path, ...] = (),
    places: tuple[Place, ...] = (),
) -> Iterator[LocalCluster]:
    """The running cluster; ended at the end of the block in any case. `traces` as in ClusterSpec; `places` on a testbed
    that is open already."""
    with nullcontext(places) if places else places_on(layout.testbed) as places:
        spec = ClusterSpec(
            pack=model.pack.path.absolute(),
            shares=plan.shares,
            compute=model.compute,
            threads=layout.threads_per_node,
            capacity_tokens=capacity_tokens,
            weights=tuple(need.weights for need in plan.needs),
            traces=traces,
            places=places,
            collective=layout.collective,
            wire=layout.wire,
            kv=model.kv,
        )
        yield from _run(spec, [need.weight_bytes for need in plan.needs])


def _run(spec: ClusterSpec, weight_bytes: Sequence[int]) -> Iterator[LocalCluster]:
    progress = ByteProgress("loading weights")
    cluster = LocalCluster(spec, weight_bytes, progress)
    try:
        cluster.start()
    finally:
        progress.finish(0)
    try:
        yield cluster
    finally:
        cluster.close()


def plan_json(
    model: PreparedModel, layout: Layout, plan: Plan, capacity_tokens: int, routing: Ready | None
) -> dict[str, object]:
    """The plan as `--json` prints it. `routing`: what rank 0 said when it was ready."""
    return {
        **model.described(),
        "collective": (routing.collective if routing else "") or "none",
        "bulk_collective": (routing.bulk_collective if routing else "") or "none",
        "collective_why": routing.why if routing else "",
        "wire": layout.wire,
        "context": capacity_tokens,
        "threads": layout.threads_per_node,
        "shares": [
            {
                "attention": [share.attention.start, share.attention.stop],
                "ffn": [share.ffn.start, share.ffn.stop],
                "weight_bytes": need.weight_bytes,
                "kv_bytes": need.kv_bytes,
                "predicted_bytes": need.total_bytes,
            }
            for share, need in zip(plan.shares, plan.needs, strict=True)
        ],
    }
