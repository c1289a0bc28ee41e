"""How long a context is where nobody says: the model's own, where memory allows."""

from tpiedge.errors import OutOfMemory, UserError
from tpiedge.host.device import default_memory_bytes
from tpiedge.local.launch import Layout, check_context, plan_cluster
from tpiedge.local.prepare import PreparedModel
from tpiedge.planner.solve import Plan
from tpiedge.progress import say

_LEAST_TOKENS = 4096
_PART_OF_MEMORY = 8
_MOST_KV_TOKENS = (1 << 32) - 1


def usual_context(model: PreparedModel, layout: Layout) -> int:
    """The model's own context in tokens where there is room for it, at least 4096 or the model's own."""
    own = model.context_tokens
    return roomy_context(model, layout, own, min(_LEAST_TOKENS, own))


def roomy_context(model: PreparedModel, layout: Layout, tokens: int, least: int) -> int:
    """`tokens`, halved until their KV cache costs no weights their place in memory and takes an eighth of the memory at
    most, but not below `least`.
    """
    try:
        streamed = _streamed(plan_cluster(model, layout, least))
    except OutOfMemory:  # which the plan of whoever asks says in its own words
        return least
    memory = _memory_bytes(layout)
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


def chosen_context(model: PreparedModel, layout: Layout, wanted: int | None) -> int:
    """--context, or without it the usual one, which is said. Raises UserError for more than the model has."""
    if wanted is not None:
        return check_context(model, wanted)
    tokens = usual_context(model, layout)
    say(_said(tokens, model.context_tokens))
    return tokens


def chosen_kv_tokens(context: int, wanted: int | None) -> int:
    """--kv-tokens, or without it the context. Raises UserError for fewer, or for more than any cluster has."""
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


def _said(tokens: int, own: int) -> str:
    if tokens == own:
        return f"context: {tokens} tokens, all that the model has"
    return f"context: {tokens} of the model's {own} tokens, for which there is memory; --context takes another number"


def _memory_bytes(layout: Layout) -> int:
    """What the nodes may use together."""
    usual = default_memory_bytes() // layout.nodes
    limits = [layout.memory_bytes_of(rank, layout.memory_bytes) for rank in range(layout.nodes)]
    return sum(usual if limit is None else limit for limit in limits)


def _streamed(plan: Plan) -> int:
    return sum(need.streamed_bytes for need in plan.needs)


def _kv(plan: Plan) -> int:
    return sum(need.kv_bytes for need in plan.needs)
