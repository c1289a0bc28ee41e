"""Brings the answers of accepted requests to their clients."""

import asyncio
import contextlib
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers

from tpiedge.answers.log import AnswerReader, Parting, ServerEnds
from tpiedge.api.acknowledgement import Acknowledgement
from tpiedge.api.answer_forms import ANSWER_FORMS
from tpiedge.api.answering import Aborted, Answering, BeyondEnd, BrokenOff, Send, Stalled
from tpiedge.api.asked import Choice, Reply
from tpiedge.api.body import Disconnected, Receive
from tpiedge.api.formats import AnswerHead
from tpiedge.api.limits import Limits
from tpiedge.api.prompt_echo import PromptEcho
from tpiedge.api.records import AcceptedRequest
from tpiedge.api.service import Service
from tpiedge.api.transcript import Transcript

#: How often it is looked whether all was sent, which it nearly always is at once.
_UNSENT_S = 0.02

_PATIENCE = ("x-stainless-read-timeout", "x-stainless-timeout")
"""Seconds without a byte that OpenAI's client for Python, the one for JavaScript, bears before it tries again."""


@dataclass(frozen=True, slots=True)
class Work:
    """A request that was taken, and how its client gets the answer: with that `reply` and those `choices`, by the
    `reader`. `resumable`: whether clients may come again for it; `after`: as of Answering; `named`: whether the client
    knows the id of the answer already; `ignored`: names of fields that it sent in vain."""

    accepted: AcceptedRequest
    choices: tuple[Choice, ...]
    reply: Reply
    reader: AnswerReader
    resumable: bool
    after: int = 0
    named: bool = False
    ignored: tuple[str, ...] = ()


class Deliveries:
    """Brings answers to clients. For one event loop."""

    def __init__(self, service: Service, limits: Limits) -> None:
        self._service = service
        self._limits = limits

    async def deliver(
        self, work: Work, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        """Send the answer. Raises as Answering.run."""
        tokenizer, choices, accepted = self._service.tokenizer, work.choices, work.accepted
        by_prompt = {choice.prompt: len(choice.request.prompt_ids) for choice in choices}
        head = AnswerHead(
            id=accepted.name,
            created=accepted.created,
            model=accepted.model,
            reply=work.reply,
            prompt_tokens=tuple(by_prompt.values()),
            prompts=tuple(choice.prompt for choice in choices),
            tokenizer=tokenizer,
        )
        limits = _patient(self._limits, Headers(scope=scope))
        parting, named, reader = Parting.FOR_GOOD, work.named, work.reader
        # A whole answer that ends with the server has no head before its end.
        heard_of = work.reply.stream or reader.log.lasting

        async def send_named(message: MutableMapping[str, Any]) -> None:
            nonlocal named
            await send(message)
            named = named or heard_of

        acknowledgement: Acknowledgement | None = scope["state"].get("acknowledgement")
        if work.resumable and acknowledgement is not None:
            acknowledgement.carry(reader.acknowledge)
        try:
            answering = Answering(
                accepted.name,
                ANSWER_FORMS[work.reply.format].write(head),
                work.reply.stream,
                reader,
                [
                    Transcript(
                        tokenizer,
                        work.reply.stops,
                        _echo(choice),
                        work.reply.speech.marks,
                        choice.request.prompt_ids if work.reply.goes_on else (),
                    )
                    for choice in choices
                ],
                limits,
                work.resumable,
                work.after,
                work.ignored,
                work.reply.grammar,
            )
            await answering.run(receive, send_named)
            if work.resumable:
                await _sent(scope, limits.write_s)
            parting = Parting.SENT
        except (asyncio.CancelledError, Disconnected, Stalled, BrokenOff, ServerEnds, BeyondEnd):
            parting = Parting.LOST if named else Parting.FOR_GOOD
            raise
        except Aborted as error:
            parting = Parting.LOST if isinstance(error.__cause__, BeyondEnd) else Parting.SENT
            raise
        except Exception as error:  # before the head: the response is an error
            ends = isinstance(error.__cause__, ServerEnds)
            parting = (Parting.LOST if ends else Parting.SENT) if named else Parting.FOR_GOOD
            raise
        finally:
            reader.leave(parting if work.resumable else Parting.FOR_GOOD)


def _echo(choice: Choice) -> PromptEcho | None:
    return None if choice.echo is None else PromptEcho(choice.echo, choice.request.prompt_ids)


async def _sent(scope: MutableMapping[str, Any], limit_s: float) -> None:
    """Waits until the connection has handed everything to the system, which sends it whatever becomes of us. Raises
    Stalled, Disconnected."""
    unsent: Callable[[], int | None] = scope["state"]["unsent"]
    deadline = time.monotonic() + limit_s
    while (left := unsent()) != 0:
        if left is None:
            raise Disconnected
        if time.monotonic() > deadline:
            raise Stalled
        await asyncio.sleep(_UNSENT_S)


def _patient(limits: Limits, headers: Headers) -> Limits:
    """`limits` for a client that says when it gives up, as OpenAI's do."""
    for name in _PATIENCE:
        with contextlib.suppress(ValueError):
            wait_s = float(headers.get(name, ""))
            if wait_s > 0:  # NaN is not
                return limits.heard_within(wait_s)
    return limits
