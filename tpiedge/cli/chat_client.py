"""`tpiedge chat`: a conversation with a running master, over its HTTP API."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from tpiedge.cli.conversation import ChatAnswer, ChatMessage, Screen, Settings, converse, messages_of
from tpiedge.cli.model_names import MODEL
from tpiedge.cli.options import argument_too, cache_option, option, state_option
from tpiedge.cli.reach import MasterClient, master_at, tls_ca_option, tls_fingerprint_option, trust_of
from tpiedge.cli.sampling_flags import TOKEN_IDS, chat_sampling_options
from tpiedge.engine.sampling import check_sampling
from tpiedge.errors import PeerError, UserError
from tpiedge.local.catalogue import load_label, packs_of
from tpiedge.progress import LiveLine
from tpiedge.sanitise import sanitised
from tpiedge.wire.requests import Sampling


@click.command()
@argument_too("prompt", "One message instead of a conversation.")
@option("--system", "System prompt.")
@option("--url", "The master's URL.  [default: the one on this computer, or http://127.0.0.1:8080]")
@option("--api-key", "The master's API key, if it has one.", envvar="TPIEDGE_API_KEY")
@tls_ca_option
@tls_fingerprint_option
@option(
    "--model", "A model of `tpiedge ls` on the master's computer.  [default: the one that is served]", MODEL
)
@option("--max-tokens", "Limit per answer.  [default: 2048, as far as they fit]", click.IntRange(1))
@chat_sampling_options
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
    max_tokens: int | None,
    **sampling: Any,
) -> None:
    if as_json and prompt is None:
        raise UserError("--json needs --prompt")
    settings = {name: value for name, value in sampling.items() if value is not None}
    check_sampling(Sampling(**settings), TOKEN_IDS)
    if max_tokens is not None:
        settings["max_tokens"] = max_tokens
    with master_at(url, state, api_key, trust_of(tls_ca, tls_fingerprint)) as master:
        backend = _MasterBackend(master, _served(master, model, cache), settings, cache)
        if prompt is None:
            converse(backend, system, state)
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
    def __init__(self, master: MasterClient, model: str, settings: Settings, cache: Path | None) -> None:
        self.name = model
        self.chooses = True
        self._master = master
        self._cache = cache
        self.settings = settings

    def choose(self, name: str) -> None:
        self.name = _served(self._master, name, self._cache)

    def ask(self, messages: list[ChatMessage], settings: Settings, show: Callable[[str], None]) -> ChatAnswer:
        answer, line, said, times = ChatAnswer(), LiveLine(), "", list[float]()
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
                        times.append(time.monotonic())
                        line.finish()
                        show(text)
        finally:
            line.finish()
        tokens = answer.usage.get("completion_tokens")
        if isinstance(tokens, int) and tokens > 1:
            answer.s_per_token = (times[-1] - times[0]) / (tokens - 1) if times else None
        return answer


def _served(master: MasterClient, wanted: str | None, cache: Path | None) -> str:
    """Returns the master's name of the model, by default of the served one. Raises UserError, PeerError."""
    if wanted is None:
        return _name(master, "")
    try:
        return _name(master, wanted)
    except UserError:
        with suppress(UserError):  # perhaps only the master's computer has the model
            for pack in packs_of(wanted, cache):
                with suppress(UserError):
                    return _name(master, load_label(pack).name)
        raise


def _name(master: MasterClient, wanted: str) -> str:
    match master.get(f"/v1/models/{quote(wanted, safe='')}" if wanted else "/v1/models"):
        case {"data": [{"id": str(name)}, *_]} | {"id": str(name)}:
            return name
    raise UserError("the server names no model: is it a tpiedge master?")


def _add_event(event: str, answer: ChatAnswer) -> str:
    """Returns an event's text. Adds the text to the answer, unless it is reasoning. Raises PeerError."""
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
