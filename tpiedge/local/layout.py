"""Holds the user's choices for a local cluster. Chooses its context and plan."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from tpiedge.errors import OutOfMemory, UserError
from tpiedge.host.device import available_memory_bytes, default_memory_bytes, default_threads
from tpiedge.host.process import LEAST_TO_COMPUTE, check_address_space, rss_bytes
from tpiedge.launch.bootstrap import Timing
from tpiedge.launch.child import Place
from tpiedge.local.prepare import PreparedModel
from tpiedge.planner.needs import Infeasible, ModelFacts, NodeFacts, model_facts
from tpiedge.planner.solve import Plan, ShareWeight, evaluate, parse_shares, solve
from tpiedge.progress import say
from tpiedge.sanitise import sanitised_line
from tpiedge.units import counted
from tpiedge.wire.fields import CollectiveChoice, Keeping, WirePrecision

_MOST_KV_TOKENS = (1 << 32) - 1


@dataclass(frozen=True)
class Devices:
    """The devices of a testbed, in rank order. `most_threads`: the smallest device's number of processors. `timing`
    suits the worst link. `places()` is a context that yields the nodes' places. Within this context, this thread uses
    the first device's network."""

    speeds: tuple[float, ...]
    memory_bytes: tuple[int | None, ...]
    most_threads: int
    timing: Timing
    places: Callable[[], AbstractContextManager[tuple[Place, ...]]]


@dataclass(frozen=True)
class Layout:
    """The user's choices. `speculate` limits the drafts of a sequence in a step."""

    nodes: int
    shares: str | None
    threads: int | None
    memory_bytes: int | None
    keeping: Keeping = field(default_factory=Keeping)
    testbed: Devices | None = None
    collective: CollectiveChoice = "auto"
    wire: WirePrecision = "f32"
    speculate: int = 0

    @property
    def threads_per_node(self) -> int:
        """The value of --threads or, by default, the usable physical cores per node, within the testbed's limit."""
        if self.threads is not None:
            return self.threads
        threads = max(1, default_threads() // self.nodes)
        return threads if self.testbed is None else min(threads, self.testbed.most_threads)

    def memory_bytes_of(self, rank: int, wanted: int | None) -> int | None:
        limits = (wanted, None if self.testbed is None else self.testbed.memory_bytes[rank])
        return min((limit for limit in limits if limit is not None), default=None)

    def check(self) -> tuple[ShareWeight, ...] | None:
        """Returns the weights of --shares, if given. Raises UserError for any flag out of range."""
        if not 1 <= self.nodes <= 64:
            raise UserError(f"--nodes {self.nodes} is out of range: 1 to 64")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise UserError(f"--threads {self.threads} is out of range: 1 to 1024")
        return None if self.shares is None else parse_shares(self.shares, self.nodes)


def plan_cluster(model: PreparedModel, layout: Layout, capacity_tokens: int) -> Plan:
    """Plans the cluster within --memory or this computer's memory. Raises UserError, OutOfMemory, ResourceError."""
    check_address_space(LEAST_TO_COMPUTE)
    plan = _plan(model, layout, layout.memory_bytes, capacity_tokens)
    available = available_memory_bytes() + rss_bytes(os.getpid())  # the cluster includes this process
    # Without --memory: within the default part of free memory, or else all of it.
    for free in (default_memory_bytes(available), available) if layout.memory_bytes is None else ():
        if isinstance(plan, Plan) and sum(need.total_bytes for need in plan.needs) <= free:
            break
        plan = _plan(model, layout, free // layout.nodes, capacity_tokens)
    if isinstance(plan, Infeasible):
        raise OutOfMemory(f"{model.name} does not fit: {plan.reason}")
    # A cluster that swaps would be unusable.
    needed = sum(need.total_bytes for need in plan.needs)
    if needed > available:
        precision = model_facts_of(model).smaller_precision
        smaller = f", or --precision {precision}" if precision else ""
        raise OutOfMemory(
            f"{model.name} on {counted(len(plan.needs), 'node')} needs {needed / 1e9:.1f} GB in all, this computer has "
            f"{available / 1e9:.1f} GB free: use fewer nodes, a smaller --memory or --context{smaller}"
        )
    return plan


def _plan(
    model: PreparedModel, layout: Layout, memory_bytes: int | None, capacity_tokens: int
) -> Plan | Infeasible:
    weights, facts = layout.check(), model_facts_of(model, capacity_tokens)
    nodes = [
        NodeFacts(
            1.0 if layout.testbed is None else layout.testbed.speeds[rank],
            layout.memory_bytes_of(rank, memory_bytes),
            disk_bytes_per_s=0.1,  # relative to the speed of computing; all nodes share a disk
            keeping=layout.keeping,
            alone=rank > 0,  # this process is counted with rank 0
        )
        for rank in range(layout.nodes)
    ]
    return solve(facts, nodes) if weights is None else evaluate(facts, nodes, weights)


def model_facts_of(model: PreparedModel, capacity_tokens: int = 0, name: str = "the model") -> ModelFacts:
    facts = model_facts(model.pack, compute=model.compute, kv=model.kv)
    return replace(facts, capacity_tokens=capacity_tokens, name=name)


def check_context(model: PreparedModel, context: int) -> int:
    """Returns `context` (--context). Raises UserError if the model has fewer positions."""
    limit = model.config.context_tokens
    if not 1 <= context <= limit:
        raise UserError(f"--context {context} is out of range: the model has 1 to {limit} positions")
    return context


def chosen_context(model: PreparedModel, layout: Layout, wanted: int | None) -> int:
    """Returns `wanted` or, by default, what memory allows (at least 4096, if the model has as many). Raises
    UserError."""
    if wanted is not None:
        return check_context(model, wanted)
    own = model.config.context_tokens
    tokens = roomy_context(model, layout, own, min(4096, own))
    memory = f"of the model's {own} tokens fit in memory; --context sets another number"
    why = "tokens, all that the model has" if tokens == own else memory
    say(f"context of {sanitised_line(model.public_name, 200)}: {tokens} {why}")
    return tokens


def roomy_context(model: PreparedModel, layout: Layout, tokens: int, least: int) -> int:
    """Halves `tokens` until the KV cache takes at most an eighth of memory, and no more weights stream than with
    `least`. Stops at `least`."""
    usual = default_memory_bytes() // layout.nodes
    limits = [layout.memory_bytes_of(rank, layout.memory_bytes) for rank in range(layout.nodes)]
    memory = sum(usual if limit is None else limit for limit in limits)

    def needs(tokens: int) -> tuple[int, int] | None:
        try:
            plan = plan_cluster(model, layout, tokens)
        except OutOfMemory:  # the caller's own plan reports that
            return None
        return sum(need.streamed_bytes for need in plan.needs), sum(need.kv_bytes for need in plan.needs)

    at_least = needs(least)
    while at_least is not None and tokens > least:
        found = needs(tokens)
        if found is not None and found[0] <= at_least[0] and found[1] <= memory // 8:
            return tokens
        tokens //= 2
    return least


def chosen_kv_tokens(context: int, wanted: int | None) -> int:
    """Returns `wanted` or, by default, `context`. Raises UserError if `wanted` is out of range."""
    if wanted is None:
        return context
    if wanted < context:
        raise UserError(
            f"--kv-tokens {wanted} is less than the context of {context} tokens: give at least {context}, or a smaller "
            "--context"
        )
    if wanted > _MOST_KV_TOKENS:
        raise UserError(f"--kv-tokens {wanted} is out of range: at most {_MOST_KV_TOKENS}")
    return wanted
