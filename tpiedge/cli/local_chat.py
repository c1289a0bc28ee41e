"""Answers of a local cluster: to one prompt, as text or as one JSON object, or to a conversation."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import click

from tpiedge.cli.conversation import ANSWER_TOKENS, SETTINGS, ChatMessage, Screen, Settings, Spoken, converse
from tpiedge.cli.options import Ending, is_default, new_seed
from tpiedge.errors import ContextFull, UserError
from tpiedge.host.process import peak_rss_bytes
from tpiedge.local.cluster import Answer, LocalCluster, collect
from tpiedge.local.launch import launch, plan_json
from tpiedge.local.layout import Layout, check_context, chosen_context, plan_cluster
from tpiedge.local.prepare import PreparedModel
from tpiedge.units import format_bytes
from tpiedge.wire.control import Stats
from tpiedge.wire.requests import GenerationRequest, Sampling


@dataclass(frozen=True)
class Prompt:
    """What to continue, and how. `is_message`: the answer to it begins a text of its own."""

    ids: tuple[int, ...]
    max_tokens: int
    ending: Ending
    sampling: Sampling
    logprobs: bool
    is_message: bool


def once(
    model: PreparedModel,
    layout: Layout,
    context: int | None,
    prompt: Prompt,
    as_json: bool,
    traces: tuple[Path, ...] = (),
) -> None:
    """Start a cluster for the prompt, print the answer, end the cluster. Raises UserError before anything starts.

    `traces` as in ClusterSpec."""
    capacity = positions(model, context, prompt.ids, prompt.max_tokens)
    tokenizer = model.tokenizer if model.has_tokenizer else None
    if tokenizer is None and prompt.ending.strings:
        raise UserError(f"--stop needs a tokenizer, which {model.name} lacks")
    plan = plan_cluster(model, layout, capacity)
    request = GenerationRequest(
        id="run",
        prompt_ids=prompt.ids,
        max_tokens=capacity - len(prompt.ids),
        sampling=prompt.sampling,
        stop_ids=model.end_ids,
        ignore_eos=prompt.ending.ignore_eos,
        prompt_scores=prompt.logprobs,
    )
    screen = Screen()

    def show(text: str) -> None:
        if not as_json:
            screen.show(text)

    with launch(model, layout, plan, capacity, traces) as cluster:
        goes_on = not prompt.is_message
        answer = collect(cluster, request, tokenizer, prompt.ending.strings, show, goes_on=goes_on)
        if not as_json:
            click.echo("" if tokenizer else ",".join(map(str, answer.token_ids)))
        stats = cluster.stats()
    if as_json:
        described = plan_json(model, layout, plan, capacity, cluster.routing)
        click.echo(json.dumps(_record(model, request, answer, stats, described)))
    else:
        _summary(answer, stats, request.sampling)


def positions(model: PreparedModel, context: int | None, prompt_ids: Sequence[int], max_tokens: int) -> int:
    """Positions of prompt and answer, within --context and the model's own limit. Raises UserError."""
    limit = model.context_tokens if context is None else check_context(model, context)
    tokens = len(prompt_ids)
    if not tokens:
        raise UserError("the prompt is empty: give at least one token")
    if tokens >= limit:
        more = " or raise --context" if limit < model.config.max_position_embeddings else ""
        raise UserError(
            f"the prompt has {tokens} tokens, the context {limit} positions: shorten the prompt{more}"
        )
    beyond = max(prompt_ids)
    if beyond >= model.config.vocab_size:
        raise UserError(f"token id {beyond} is outside the vocabulary of {model.config.vocab_size}")
    return min(tokens + max_tokens, limit)


def _record(
    model: PreparedModel, request: GenerationRequest, answer: Answer, stats: list[Stats], plan: dict[str, Any]
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
        "tokens_per_step": answer.tokens_per_step,
        "master_peak_rss_bytes": peak_rss_bytes(),
        "nodes": [
            {
                "rank": node.rank,
                "attention_units": plan["shares"][node.rank]["attention"],
                "ffn_units": plan["shares"][node.rank]["ffn"],
                "threads": plan["threads"],
                **{name: getattr(node, other or name) for name, other in _COUNTERS.items()},
            }
            for node in stats
        ],
        "plan": plan,
    }
    if request.sampling.temperature:
        record["seed"] = request.sampling.seed
    if request.sampling.logprobs:
        record["logprobs"] = answer.logprobs
    if request.prompt_scores:
        record["prompt_logprobs"] = answer.prompt_logprobs
    return record


#: What a node's record has of its counters, under other names than theirs where some are given.
_COUNTERS = {
    "peak_rss_bytes": "",
    "weight_bytes": "",
    "disk_read_bytes": "",
    "bytes_sent": "",
    "messages_dropped": "dropped",
    "messages_refused": "refused",
    "disk_reads": "reads",
    **dict.fromkeys(("prefetch_hits", "stalls", "compute_s", "attention_s", "ffn_s"), ""),
    **dict.fromkeys(("reduce_wait_s", "weight_wait_s", "load_s", "head_s"), ""),
}


def _summary(answer: Answer, stats: list[Stats], sampling: Sampling) -> None:
    drawn = f", --seed {sampling.seed}" if sampling.temperature else ""
    speed = f", {answer.s_per_token:.3f} s/token" if answer.s_per_token is not None else ""
    if answer.tokens_per_step is not None and answer.tokens_per_step != 1:
        speed += f", {answer.tokens_per_step:.2f} tokens/step"
    peak = format_bytes(max(node.peak_rss_bytes for node in stats))
    memory = f"{len(stats)} nodes, at most {peak} each" if len(stats) > 1 else peak
    first = f"first after {answer.ttft_s:.2f} s"
    click.echo(
        f"{len(answer.token_ids)} tokens ({answer.finish_reason}{drawn}), {first}{speed}; {memory}", err=True
    )


def chat(
    model: PreparedModel,
    layout: Layout,
    context: int | None,
    ending: Ending,
    sampling: Sampling,
    system: str | None,
    traces: tuple[Path, ...] = (),
) -> None:
    """Start a cluster and answer messages from standard input until its end. `traces` as in ClusterSpec."""
    _ = model.template  # a model without one is refused before anything starts
    capacity = chosen_context(model, layout, context)
    plan = plan_cluster(model, layout, capacity)
    with launch(model, layout, plan, capacity, traces) as cluster:
        converse(_LocalSpeaker(cluster, model, capacity, ending, sampling), system)


class _LocalSpeaker:
    """A `Speaker`. The KV cache keeps the common prefix of the turns."""

    def __init__(
        self, cluster: LocalCluster, model: PreparedModel, capacity: int, ending: Ending, sampling: Sampling
    ) -> None:
        self.name = model.name
        self.settings: Settings = {
            **{name: getattr(sampling, name) for name in SETTINGS if name not in ("max_tokens", "seed")},
            **({} if is_default("seed") else {"seed": sampling.seed}),
            "max_tokens": ending.max_tokens or ANSWER_TOKENS,
        }
        self._cluster = cluster
        self._model = model
        self._capacity = capacity
        self._ending = ending
        self._sampling = sampling
        self._turns = count(1)

    def speak(self, messages: list[ChatMessage], settings: Settings, show: Callable[[str], None]) -> Spoken:
        prompt = self._model.message_ids(messages)
        if len(prompt) >= self._capacity:
            raise ContextFull(
                f"the conversation has {len(prompt)} tokens, the context {self._capacity}: /clear it, or start "
                "again with a larger --context"
            )
        # How tokens are drawn, and how many at most, after what /set changed.
        values = {"seed": new_seed(), **self.settings, **settings}
        tokens = int(values.pop("max_tokens"))
        sampling = replace(self._sampling, **values)  # type: ignore[arg-type]  # /set keeps whole numbers whole
        request = GenerationRequest(
            id=f"turn-{next(self._turns)}",
            prompt_ids=prompt,
            max_tokens=min(tokens, self._capacity - len(prompt)),
            sampling=sampling,
            stop_ids=self._model.end_ids,
            ignore_eos=self._ending.ignore_eos,
            keep_prefix=True,
        )
        answer = collect(self._cluster, request, self._model.tokenizer, self._ending.strings, show)
        return Spoken(answer.text, answer.finish_reason)
