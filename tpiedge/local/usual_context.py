"""How long a context is where nobody says: the model's own, where memory allows."""

from tpiedge.errors import OutOfMemory
from tpiedge.host.device import default_memory_bytes
from tpiedge.local.launch import Layout, plan_cluster
from tpiedge.local.prepare import PreparedModel
from tpiedge.planner.solve import Plan

__all__ = ["said_of_context", "usual_context"]

_LEAST_TOKENS = 4096
_PART_OF_MEMORY = 8


def usual_context(model: PreparedModel, layout: Layout) -> int:
    """The model's own context in tokens, halved until its KV cache costs no weights their place in memory and takes an
    eighth of the memory at most; at least 4096, or the model's own where that is less.
    """
    tokens = model.context_tokens
    least = min(_LEAST_TOKENS, tokens)
    try:
        streamed = _streamed(plan_cluster(model, layout, least))
    except OutOfMemory:  # which the plan of whoever asks says in its own words
        return least
    memory = (layout.memory_bytes or default_memory_bytes() // layout.nodes) * layout.nodes
    while tokens > least:
        try:
            plan = plan_cluster(model, layout, tokens)
        except OutOfMemory:
            pass
        else:
            if _streamed(plan) <= streamed and _kv(plan) <= memory // _PART_OF_MEMORY:
                return tokens
        tokens //= 2
    return least


def said_of_context(model: PreparedModel, tokens: int) -> str:
    """The choice, for people."""
    own = model.context_tokens
    if tokens == own:
        return f"context: {tokens} tokens, all that the model has"
    return f"context: {tokens} of the model's {own} tokens, for which there is memory; --context takes another number"


def _streamed(plan: Plan) -> int:
    return sum(need.streamed_bytes for need in plan.needs)


def _kv(plan: Plan) -> int:
    return sum(need.kv_bytes for need in plan.needs)
