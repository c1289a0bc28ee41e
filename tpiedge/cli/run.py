"""`tpiedge run`: a whole local cluster for one prompt, or for a chat."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tpiedge.cli.answer import Answer, collect
from tpiedge.cli.chat import chat
from tpiedge.cli.launch import Layout, launch, plan_cluster, plan_json
from tpiedge.cli.options import BYTES, sampling_of, sampling_options, token_ids
from tpiedge.cli.prepare import PreparedModel, cache_option, prepare
from tpiedge.errors import UserError
from tpiedge.nodes.cluster import LocalCluster
from tpiedge.units import format_bytes
from tpiedge.wire.control import Stats
from tpiedge.wire.fields import Compute
from tpiedge.wire.requests import GenerationRequest, Sampling

__all__ = ["run"]

_CHAT_CONTEXT = 4096


@dataclass(frozen=True)
class _Wanted:
    """One prompt and how to continue it."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    ignore_eos: bool
    prompt_logprobs: bool


@click.command()
@click.option("--model", "model_name", required=True, help="'demo', a checkpoint's folder or a pack.")
@click.option("--nodes", type=int, default=1, show_default=True, help="Number of processes.")
@click.option("--shares", help="Relative weights, one per node: 3,1,2; 0:2 is FFN only.  [default: even]")
@click.option("--threads", type=int, help="Threads per node.  [default: the cores divided by the nodes]")
@click.option("--precision", type=click.Choice(["f32", "bf16"]), help="Storage.  [default: the checkpoint's]")
@click.option("--compute", type=click.Choice(["f32", "bf16"]), help="Arithmetic.  [default: f32]")
@click.option("--memory", type=BYTES, help="Limit per node; what does not fit is refused.")
@click.option("--context", type=int, help="Positions of the KV cache.  [default: as needed; 4096 in a chat]")
@click.option("--prompt", help="Text to continue. Without a prompt, a chat begins.")
@click.option("--prompt-ids", help="Token ids to continue: 1,2,3.")
@click.option("--max-tokens", type=int, default=128, show_default=True)
@click.option("--stop", multiple=True, help="End before this text; repeatable.")
@click.option("--ignore-eos", is_flag=True, help="Go on after the end-of-text token.")
@click.option("--prompt-logprobs", is_flag=True, help="Report the prompt's own log probabilities (--json).")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on standard output."
)
@sampling_options
@cache_option
def run(
    model_name: str,
    nodes: int,
    shares: str | None,
    threads: int | None,
    precision: str | None,
    compute: Compute | None,
    memory: int | None,
    context: int | None,
    prompt: str | None,
    prompt_ids: str | None,
    max_tokens: int,
    stop: tuple[str, ...],
    ignore_eos: bool,
    prompt_logprobs: bool,
    as_json: bool,
    cache: Path | None,
    **sampling_flags: Any,
) -> None:
    """Answer a prompt with a cluster of local processes."""
    if prompt is not None and prompt_ids is not None:
        raise UserError("give either --prompt or --prompt-ids, not both")
    if max_tokens < 1:
        raise UserError(f"--max-tokens {max_tokens} is out of range: at least 1")
    layout = Layout(nodes, shares, threads, memory)
    model = prepare(model_name, precision, compute, cache)
    sampling = sampling_of(sampling_flags, model.config.vocab_size)
    if prompt is None and prompt_ids is None:
        if as_json:
            raise UserError("--json needs --prompt or --prompt-ids")
        _chat(model, layout, context, max_tokens, sampling)
        return
    ids = token_ids(prompt_ids) if prompt_ids is not None else tuple(model.tokenizer.encode(prompt or ""))
    _once(
        model, layout, context, _Wanted(ids, max_tokens, sampling, stop, ignore_eos, prompt_logprobs), as_json
    )


def _chat(
    model: PreparedModel, layout: Layout, context: int | None, max_tokens: int, sampling: Sampling
) -> None:
    limit = model.config.max_position_embeddings
    capacity = _check_context(context, limit) if context else min(_CHAT_CONTEXT, limit)
    template = model.template  # refuse before anything starts
    plan = plan_cluster(model, layout, capacity)
    with launch(model, layout, plan, capacity) as cluster:
        chat(cluster, model.tokenizer, template, model.config.eos_ids, capacity, max_tokens, sampling)


def _once(model: PreparedModel, layout: Layout, context: int | None, wanted: _Wanted, as_json: bool) -> None:
    limit = model.config.max_position_embeddings
    if context is not None:
        limit = _check_context(context, limit)
    prompt_tokens = len(wanted.prompt_ids)
    if not prompt_tokens:
        raise UserError("the prompt is empty: give at least one token")
    if prompt_tokens >= limit:
        raise UserError(
            f"the prompt has {prompt_tokens} tokens, the context {limit} positions: shorten the prompt"
        )
    if max(wanted.prompt_ids) >= model.config.vocab_size:
        raise UserError(
            f"token id {max(wanted.prompt_ids)} is outside the vocabulary of {model.config.vocab_size}"
        )
    capacity = min(prompt_tokens + wanted.max_tokens, limit)
    plan = plan_cluster(model, layout, capacity)
    request = GenerationRequest(
        id="run",
        prompt_ids=wanted.prompt_ids,
        max_tokens=capacity - prompt_tokens,
        sampling=wanted.sampling,
        stop_ids=model.config.eos_ids,
        ignore_eos=wanted.ignore_eos,
        keep_prefix=False,
        prompt_scores=wanted.prompt_logprobs,
    )
    with launch(model, layout, plan, capacity) as cluster:
        answer = _answer(cluster, model, request, wanted, as_json)
        stats = cluster.stats()
    if as_json:
        record = _record(model, request, answer, stats, plan_json(model, layout, plan, capacity))
        click.echo(json.dumps(record))
    else:
        _summary(answer, stats)


def _check_context(context: int, limit: int) -> int:
    if not 1 <= context <= limit:
        raise UserError(f"--context {context} is out of range: the model has 1 to {limit} positions")
    return context


def _answer(
    cluster: LocalCluster, model: PreparedModel, request: GenerationRequest, wanted: _Wanted, as_json: bool
) -> Answer:
    tokenizer = model.tokenizer if model.has_tokenizer else None
    if tokenizer is None and wanted.stop:
        raise UserError("--stop needs a tokenizer, which this pack lacks")
    shown = sys.stderr if as_json else sys.stdout

    def show(text: str) -> None:
        if not as_json:
            click.echo(text, nl=False, file=shown)

    answer = collect(cluster, request, tokenizer, wanted.stop, show)
    if not as_json:
        click.echo("" if tokenizer else ",".join(map(str, answer.token_ids)))
    return answer


def _record(
    model: PreparedModel,
    request: GenerationRequest,
    answer: Answer,
    stats: list[Stats],
    plan: dict[str, object],
) -> dict[str, object]:
    record: dict[str, object] = {
        "model": model.name,
        "precision": model.pack.precision.value,
        "prompt_tokens": len(request.prompt_ids),
        "token_ids": answer.token_ids,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "ttft_s": answer.ttft_s,
        "s_per_token": answer.s_per_token,
        "nodes": [_node_record(node, plan) for node in stats],
        "plan": plan,
    }
    if request.sampling.logprobs:
        record["logprobs"] = answer.logprobs
    if request.prompt_scores:
        record["prompt_logprobs"] = answer.prompt_logprobs
    return record


def _node_record(stats: Stats, plan: dict[str, Any]) -> dict[str, object]:
    share = plan["shares"][stats.rank]
    return {
        "rank": stats.rank,
        "attention_units": share["attention"],
        "ffn_units": share["ffn"],
        "threads": plan["threads"],
        "peak_rss_bytes": stats.peak_rss_bytes,
        "weight_bytes": stats.weight_bytes,
        "disk_read_bytes": stats.disk_read_bytes,
        "bytes_sent": stats.bytes_sent,
        "compute_s": stats.compute_s,
        "reduce_wait_s": stats.reduce_wait_s,
        "weight_wait_s": stats.weight_wait_s,
        "head_s": stats.head_s,
    }


def _summary(answer: Answer, stats: list[Stats]) -> None:
    speed = f", {answer.s_per_token:.3f} s/token" if answer.s_per_token is not None else ""
    peak = max(node.peak_rss_bytes for node in stats)
    click.echo(
        f"{len(answer.token_ids)} tokens ({answer.finish_reason}), first after {answer.ttft_s:.2f} s{speed}; "
        f"{len(stats)} nodes, at most {format_bytes(peak)} each",
        err=True,
    )
