"""Answers of a local cluster, for one prompt or a conversation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import click

from tpiedge.cli.conversation import ANSWER_TOKENS, SETTINGS, ChatAnswer, ChatMessage, Settings
from tpiedge.cli.options import is_default
from tpiedge.cli.sampling_flags import new_seed
from tpiedge.errors import ContextFull, UserError
from tpiedge.host.process import peak_rss_bytes
from tpiedge.local.cluster import Answer, LocalCluster, collect
from tpiedge.local.layout import check_context
from tpiedge.local.prepare import PreparedModel
from tpiedge.units import format_bytes
from tpiedge.wire.control import Stats
from tpiedge.wire.requests import GenerationRequest, Sampling

_COUNTERS = (
    *("peak_rss_bytes", "weight_bytes", "disk_read_bytes", "bytes_sent", "prefetch_hits", "stalls"),
    *("compute_s", "attention_s", "ffn_s", "reduce_wait_s", "weight_wait_s", "load_s", "head_s"),
)


def positions(model: PreparedModel, context: int | None, prompt_ids: Sequence[int], max_tokens: int) -> int:
    """Returns how many positions the prompt and `max_tokens` need, limited to the context. Raises UserError."""
    limit = model.config.context_tokens if context is None else check_context(model, context)
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


def answer_json(
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
                "attention_units": share["attention"],
                "ffn_units": share.get("ffn", share.get("experts")),
                "threads": plan["threads"],
                "messages_dropped": node.dropped,
                "messages_refused": node.refused,
                "disk_reads": node.reads,
                **{name: getattr(node, name) for name in _COUNTERS},
            }
            for node, share in zip(stats, plan["shares"], strict=True)
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


def tell_summary(answer: Answer, stats: list[Stats], sampling: Sampling) -> None:
    drawn = f", --seed {sampling.seed}" if sampling.temperature else ""
    speed = f", {1 / answer.s_per_token:.1f} tokens/s" if answer.s_per_token else ""
    if answer.tokens_per_step is not None and answer.tokens_per_step != 1:
        speed += f", {answer.tokens_per_step:.2f} tokens per step"
    peak = format_bytes(max(node.peak_rss_bytes for node in stats))
    memory = f"memory at most {peak} on each of {len(stats)} nodes" if len(stats) > 1 else f"memory {peak}"
    first = f"first after {answer.ttft_s:.2f} s"
    click.echo(
        f"{len(answer.token_ids)} tokens ({answer.finish_reason}{drawn}), {first}{speed}; {memory}", err=True
    )


@dataclass(eq=False)
class LocalBackend:
    _cluster: LocalCluster
    _model: PreparedModel
    _capacity: int
    _sampling: Sampling
    _flags: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.chooses = False
        self.name = self._model.name
        self.settings: Settings = {
            **{
                name: getattr(self._sampling, name) for name in SETTINGS if name not in ("max_tokens", "seed")
            },
            **({} if is_default("seed") else {"seed": self._sampling.seed}),
            "max_tokens": self._flags["max_tokens"] or ANSWER_TOKENS,
        }
        self._turns = count(1)

    def choose(self, name: str) -> None:
        raise UserError(f"this chat has one model: 'tpiedge run {name}' talks to another")

    def ask(self, messages: list[ChatMessage], settings: Settings, show: Callable[[str], None]) -> ChatAnswer:
        prompt = self._model.message_ids(messages)
        if len(prompt) >= self._capacity:
            raise ContextFull(
                f"the conversation has {len(prompt)} tokens, the context {self._capacity}: /clear it, or start "
                "again with a larger --context"
            )
        # Flags come first, then the values of /set.
        values = {"seed": new_seed(), **self.settings, **settings}
        tokens = int(values.pop("max_tokens"))
        sampling = replace(self._sampling, **values)  # type: ignore[arg-type]  # /set keeps whole numbers whole
        request = GenerationRequest(
            id=f"turn-{next(self._turns)}",
            prompt_ids=prompt,
            max_tokens=min(tokens, self._capacity - len(prompt)),
            sampling=sampling,
            stop_ids=self._model.end_ids,
            ignore_eos=self._flags["ignore_eos"],
            keep_prefix=True,
        )
        model, stops = self._model, self._flags["stop"]
        answer = collect(self._cluster, request, model.tokenizer, stops, show, speech=model.speech)
        usage: dict[str, object] = {"completion_tokens": len(answer.token_ids)}
        return ChatAnswer(answer.text, answer.finish_reason, usage, s_per_token=answer.s_per_token)
