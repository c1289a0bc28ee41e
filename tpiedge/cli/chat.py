"""An interactive chat with a local cluster."""

import sys
from itertools import count
from pathlib import Path

import click

from tpiedge.cli.conversation import converse
from tpiedge.cli.options import Ending
from tpiedge.local.answer import Answer, collect
from tpiedge.local.cluster import LocalCluster
from tpiedge.local.launch import Layout, check_context, launch, plan_cluster
from tpiedge.local.prepare import PreparedModel
from tpiedge.wire.requests import GenerationRequest, Sampling

__all__ = ["chat"]

_CONTEXT = 4096


def chat(
    model: PreparedModel,
    layout: Layout,
    context: int | None,
    ending: Ending,
    sampling: Sampling,
    traces: tuple[Path, ...] = (),
) -> None:
    """Start a cluster and answer messages from standard input until its end. `traces` as in ClusterSpec."""
    limit = model.context_tokens
    capacity = min(_CONTEXT, limit) if context is None else check_context(model, context)
    _ = model.template  # a model without one is refused before anything starts
    plan = plan_cluster(model, layout, capacity)
    with launch(model, layout, plan, capacity, traces) as cluster:
        conversation = _LocalConversation(cluster, model, capacity, ending, sampling)
        converse(conversation.turn, conversation.clear)


class _LocalConversation:
    """The messages so far. The KV cache keeps the common prefix of the turns."""

    def __init__(
        self,
        cluster: LocalCluster,
        model: PreparedModel,
        capacity: int,
        ending: Ending,
        sampling: Sampling,
    ) -> None:
        self._cluster = cluster
        self._model = model
        self._capacity = capacity
        self._ending = ending
        self._sampling = sampling
        self._messages: list[dict[str, str]] = []
        self._turns = count(1)

    def clear(self) -> None:
        """Forget the messages so far."""
        self._messages.clear()

    def turn(self, text: str) -> None:
        """One message and its answer; a message without an answer is forgotten."""
        messages = [*self._messages, {"role": "user", "content": text}]
        prompt = self._model.message_ids(messages)
        if len(prompt) >= self._capacity:
            click.echo(
                f"the conversation has {len(prompt)} tokens, the context {self._capacity}: /clear it, or start "
                "again with a larger --context",
                err=True,
            )
            return
        answer = self._speak(prompt)
        if answer is not None:
            self._messages = [*messages, {"role": "assistant", "content": answer.text}]

    def _speak(self, prompt: tuple[int, ...]) -> Answer | None:
        """The answer, shown as it comes; None if the user stopped it."""
        request = GenerationRequest(
            id=f"turn-{next(self._turns)}",
            prompt_ids=prompt,
            max_tokens=min(self._ending.max_tokens, self._capacity - len(prompt)),
            sampling=self._sampling,
            stop_ids=self._model.config.eos_ids,
            ignore_eos=self._ending.ignore_eos,
            keep_prefix=True,
        )
        try:
            answer = collect(
                self._cluster,
                request,
                self._model.tokenizer,
                self._ending.strings,
                lambda text: click.echo(text, nl=False),
            )
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            click.echo(" [stopped]")
            return None
        click.echo()
        return answer
