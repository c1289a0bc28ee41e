"""An interactive chat with a running cluster."""

import sys
from itertools import count

import click

from tpiedge.cli.answer import Answer, collect
from tpiedge.model.template import ChatTemplate
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.nodes.cluster import LocalCluster
from tpiedge.wire.requests import GenerationRequest, Sampling

__all__ = ["chat"]

_HELP = "Type a message and Enter. /clear forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C stops an answer."


def chat(
    cluster: LocalCluster,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    eos_ids: tuple[int, ...],
    capacity: int,
    max_tokens: int,
    sampling: Sampling,
) -> None:
    """Read messages from standard input until its end. The KV cache keeps the common prefix of the turns."""
    if sys.stdin.isatty():
        click.echo(_HELP, err=True)
    messages: list[dict[str, str]] = []
    for turn in count(1):
        text = _read_line()
        if text is None or text.strip() == "/exit":
            return
        if text.strip() == "/clear":
            messages.clear()
            continue
        if not text.strip():
            continue
        messages.append({"role": "user", "content": text})
        prompt = tuple(tokenizer.encode(template.render(messages), add_special=False))
        if len(prompt) >= capacity:
            messages.pop()
            click.echo(
                f"the conversation has {len(prompt)} tokens, the context {capacity}: /clear it, or start again "
                "with a larger --context",
                err=True,
            )
            continue
        request = GenerationRequest(
            id=f"turn-{turn}",
            prompt_ids=prompt,
            max_tokens=min(max_tokens, capacity - len(prompt)),
            sampling=sampling,
            stop_ids=eos_ids,
            ignore_eos=False,
            keep_prefix=True,
            prompt_scores=False,
        )
        answer = _speak(cluster, request, tokenizer)
        if answer is None:
            messages.pop()
        else:
            messages.append({"role": "assistant", "content": answer.text})


def _speak(cluster: LocalCluster, request: GenerationRequest, tokenizer: Tokenizer) -> Answer | None:
    """The answer, shown as it comes; None if the user stopped it."""
    try:
        answer = collect(cluster, request, tokenizer, (), lambda text: click.echo(text, nl=False))
    except KeyboardInterrupt:
        click.echo(" [stopped]")
        return None
    click.echo()
    return answer


def _read_line() -> str | None:
    """One line of the user; None at the end of input or on Ctrl-C."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None
    try:
        return input("> ")
    except (EOFError, KeyboardInterrupt):
        click.echo()
        return None
