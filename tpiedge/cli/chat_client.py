"""`tpiedge chat`: a conversation with a running master, over its HTTP API."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import click

from tpiedge.cli.conversation import ChatAnswer, ChatMessage, Screen, Settings, converse, messages_of
from tpiedge.cli.model_names import MODEL
from tpiedge.cli.options import Number, cache_option, option, state_option
from tpiedge.cli.reach import MasterClient, master_at, tls_ca_option, tls_fingerprint_option, trust_of
from tpiedge.engine.sampling import MAX_TOP_K, REPETITION_PENALTY
from tpiedge.errors import PeerError, UserError
from tpiedge.local.catalogue import load_label, packs_of
from tpiedge.model.source import parse_hub_name
from tpiedge.progress import LiveLine
from tpiedge.sanitise import sanitised


@click.command()
@option("--url", "The master's URL.  [default: the one on this computer, or http://127.0.0.1:8080]")
@option("--api-key", "The master's API key, if it has one.", envvar="TPIEDGE_API_KEY")
@tls_ca_option
@tls_fingerprint_option
@option("--model", "Talk to this model only.  [default: whatever the master serves]", MODEL)
@option("--prompt", "One message instead of a conversation.")
@option("--system", "System prompt.")
@option("--max-tokens", "Limit per answer.  [default: 2048, as far as they fit]", click.IntRange(1))
@option("--temperature", "0 is greedy.  [default: the model's, like the next four]", Number(0, 2))
@option("--top-k", "Keep the K likeliest tokens; 0 keeps all.", click.IntRange(0, MAX_TOP_K))
@option("--top-p", "Keep the likeliest tokens up to probability P.", Number(0, 1))
@option("--min-p", "Drop tokens below P times the likeliest.", Number(0, 1))
@option("--repetition-penalty", None, Number(REPETITION_PENALTY.low, REPETITION_PENALTY.high))
@option("--seed", "The same seed gives the same answer.", click.IntRange(0, 2**63 - 1))
@option("--json", "Print one JSON object (with --prompt).", name="as_json", is_flag=True)
@state_option
@cache_option
def chat(
    url: str | None,
    api_key: str | None,
    model: str | None,
    prompt: str | None,
    system: str | None,
    as_json: bool,
    tls_ca: Path | None,
    tls_fingerprint: str | None,
    state: Path | None,
    cache: Path | None,
    **options: float | None,
) -> None:
    if as_json and prompt is None:
        raise UserError("--json needs --prompt")
    with master_at(url, state, api_key, trust_of(tls_ca, tls_fingerprint)) as master:
        backend = _MasterBackend(master, _served(master, model, cache), options)
        if prompt is None:
            converse(backend, system)
            return
        screen = Screen()
        show = (lambda _text: None) if as_json else screen.show
        try:
            answer = backend.ask(messages_of(system, prompt), {}, show)
        finally:
            if screen.begun:
                click.echo()
        if as_json:
            record = {"model": backend.name, "text": answer.text, "finish_reason": answer.finish_reason}
            click.echo(json.dumps(record | {"usage": answer.usage}))


class _MasterBackend:
    def __init__(self, master: MasterClient, model: str, options: Mapping[str, float | None]) -> None:
        self.name = model
        self._master = master
        self.settings: Settings = {name: value for name, value in options.items() if value is not None}

    def ask(self, messages: list[ChatMessage], settings: Settings, show: Callable[[str], None]) -> ChatAnswer:
        answer, line, said = ChatAnswer(), LiveLine(), ""
        body = {"model": self.name, "messages": messages, "stream": True, **self.settings, **settings}
        body["stream_options"] = {"include_usage": True}

        def note(text: str) -> None:
            nonlocal said
            line.finish()
            if text != said:  # the same text once
                said = text
                click.echo(f"\n[{text}]", err=True)

        try:
            with self._master.stream("/v1/chat/completions", body, note, line.update) as events:
                for event in events:
                    if text := _add_event(event, answer):
                        line.finish()
                        show(text)
        finally:
            line.finish()
        return answer


def _served(master: MasterClient, wanted: str | None, cache: Path | None) -> str:
    match master.get("/v1/models"):
        case {"data": [{"id": str(served), **more}, *_]}:
            also = more.get("also_called")
            names = {served, *(also if isinstance(also, list) else ())}
        case _:
            raise UserError("the server names no model: is it a tpiedge master?")
    if wanted is None:
        return served
    hub_name = parse_hub_name(wanted)
    meant = {wanted, *([str(hub_name)] if hub_name else [])}  # as far as this computer knows
    with suppress(UserError):  # another computer's model
        meant |= {load_label(path).name for path in packs_of(wanted, cache)}
    if not names & meant:
        raise UserError(
            f"the master serves {sanitised(served)}, not {wanted}: leave --model out, or start another"
        )
    return served


def _add_event(event: str, answer: ChatAnswer) -> str:
    """Returns an event's text, which the answer gets unless it is reasoning. Raises PeerError."""
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
            reasoning, text = delta.get("reasoning_content"), delta.get("content")
            if isinstance(reasoning, str) and reasoning:
                answer.thinking = True
                return reasoning
            if isinstance(text, str) and text:
                answer.text += text
                answer.thinking, after_reasoning = False, answer.thinking
                return f"\n\n{text}" if after_reasoning else text
    return ""
