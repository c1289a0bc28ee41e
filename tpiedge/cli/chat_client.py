"""`tpiedge chat`: a conversation with a running master, over its HTTP API."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from tpiedge.cli.conversation import converse
from tpiedge.cli.path_options import state_option
from tpiedge.cli.reach import MasterClient, url_of
from tpiedge.cli.types import Number
from tpiedge.engine.sampling import MAX_TOP_K, REPETITION_PENALTY
from tpiedge.errors import PeerError, UserError
from tpiedge.sanitise import sanitised

__all__ = ["chat"]


@dataclass
class _Answer:
    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, object] = field(default_factory=dict)


@click.command()
@click.option("--url", help="Of the master.  [default: the one on this computer, or http://127.0.0.1:8080]")
@click.option("--api-key", envvar="TPIEDGE_API_KEY", help="Where the master wants one.")
@click.option("--prompt", help="One message instead of a conversation.")
@click.option("--system", help="What the model is told first.")
@click.option("--max-tokens", type=click.IntRange(1), help="Per answer.  [default: what fits]")
@click.option(
    "--temperature", type=Number(0, 2), help="0 is greedy.  [default: the model's, like the next four]"
)
@click.option("--top-k", type=click.IntRange(0, MAX_TOP_K), help="Keep the K likeliest tokens; 0 keeps all.")
@click.option("--top-p", type=Number(0, 1), help="Keep the likeliest mass P.")
@click.option("--min-p", type=Number(0, 1), help="Drop tokens below P x the likeliest.")
@click.option("--repetition-penalty", type=Number(REPETITION_PENALTY.low, REPETITION_PENALTY.high))
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="For the same answer again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (with --prompt).")
@state_option
def chat(
    url: str | None,
    api_key: str | None,
    prompt: str | None,
    system: str | None,
    max_tokens: int | None,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    repetition_penalty: float | None,
    seed: int | None,
    as_json: bool,
    state: Path | None,
) -> None:
    """Talk to a running master."""
    if as_json and prompt is None:
        raise UserError("--json needs --prompt")
    options = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
    }
    with MasterClient(url_of(url, state), api_key) as master:
        conversation = _MasterConversation(master, system, options)
        if prompt is None:
            converse(conversation.turn, conversation.clear)
        else:
            conversation.once(prompt, as_json)


class _MasterConversation:
    """The messages so far; the master keeps the common prefix of the turns in its cache."""

    def __init__(self, master: MasterClient, system: str | None, options: Mapping[str, object]) -> None:
        self._master = master
        self._model = _model_of(master)
        self._options = {name: value for name, value in options.items() if value is not None}
        self._start = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._start)

    def clear(self) -> None:
        """Begin again."""
        self._messages = list(self._start)

    def once(self, prompt: str, as_json: bool) -> None:
        answer = _Answer()
        self._ask([*self._start, {"role": "user", "content": prompt}], answer, show=not as_json)
        if not as_json:
            click.echo()
            return
        record = {"model": self._model, "text": answer.text, "finish_reason": answer.finish_reason}
        click.echo(json.dumps(record | {"usage": answer.usage}))

    def turn(self, text: str) -> None:
        """One message and its answer; a message without a whole answer is forgotten."""
        messages = [*self._messages, {"role": "user", "content": text}]
        answer = _Answer()
        try:
            self._ask(messages, answer, show=True)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            click.echo(" [stopped]")
        except (PeerError, UserError) as error:
            if not sys.stdin.isatty():
                raise
            click.echo(("\n" if answer.text else "") + f"tpiedge: {error}", err=True)
        else:
            click.echo()
            self._messages = [*messages, {"role": "assistant", "content": answer.text}]

    def _ask(self, messages: list[dict[str, str]], answer: _Answer, *, show: bool) -> None:
        body = {"model": self._model, "messages": messages, "stream": True} | self._options
        body["stream_options"] = {"include_usage": True}
        with self._master.stream("/v1/chat/completions", body) as events:
            for event in events:
                text = _take(event, answer)
                if text and show:
                    click.echo(sanitised(text, "\n\t"), nl=False)


def _model_of(master: MasterClient) -> str:
    """The one model that a master serves."""
    match master.get("/v1/models"):
        case {"data": [{"id": str(name)}, *_]}:
            return name
    raise UserError("there is no model: is that a master of tpiedge?")


def _take(event: str, answer: _Answer) -> str:
    """The text of one event, added to the answer. Raises PeerError for an error event."""
    try:
        value = json.loads(event)
    except (ValueError, RecursionError):
        raise PeerError("the master sent an event that is not JSON") from None
    match value:
        case {"error": {"message": str(message)}}:
            raise PeerError(sanitised(message))
        case {"choices": [], "usage": dict(usage)}:
            answer.usage = usage
        case {"choices": [{"delta": dict(delta), "finish_reason": reason}]}:
            answer.finish_reason = reason or answer.finish_reason
            text = delta.get("content")
            if isinstance(text, str):
                answer.text += text
                return text
    return ""
