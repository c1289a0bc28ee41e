"""Brings the answers of accepted requests to their clients."""

import asyncio
import contextlib
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers

from tpiedge.api.acknowledgement import Acknowledgement
from tpiedge.api.answer_forms import ANSWER_FORMS
from tpiedge.api.answer_reader import Parting
from tpiedge.api.answering import (
    Aborted,
    Answering,
    BeyondEnd,
    BrokenOff,
    Send,
    ServerEnds,
    Stalled,
)
from tpiedge.api.asked import Choice, FormatName, Reply
from tpiedge.api.body import Disconnected, Receive
from tpiedge.api.formats import AnswerHead
from tpiedge.api.limits import Limits
from tpiedge.api.prompt_echo import PromptEcho
from tpiedge.api.records import marks
from tpiedge.api.service import Service
from tpiedge.api.stream_bridge import AnswerFeed
from tpiedge.api.transcript import Transcript
from tpiedge.errors import Cancelled

#: How often it is looked whether all was sent, which it nearly always is at once.
_UNSENT_S = 0.02

_PATIENCE = ("x-stainless-read-timeout", "x-stainless-timeout")
"""Seconds without a byte that OpenAI's client for Python, the one for JavaScript, bears before it tries again."""


class RunningAnswers:
    """The answers that are being sent, so that the end of the server, or their clients, can end them. On one event
    loop, but for `join`."""

    def __init__(self) -> None:
        self._feeds: set[AnswerFeed] = set()
        self._deletable: dict[tuple[str, FormatName], tuple[str, AnswerFeed]] = {}
        self._aborted = False

    def add(self, work: "Work", feed: AnswerFeed) -> None:
        self._feeds = {running for running in self._feeds if not running.join(0)}
        self._feeds.add(feed)
        if not work.resumable:  # kept answers are deleted elsewhere
            self._deletable[work.name, work.reply.format] = work.mark, feed
        if self._aborted:
            _end(feed, ServerEnds())

    def remove(self, work: "Work") -> None:
        """It was sent, or is not to be. Idempotent."""
        self._deletable.pop((work.name, work.reply.format), None)

    def delete(self, name: str, form: FormatName, key: bytes) -> bool:
        """Ends the answer with that name and form of a client with that API key; returns whether there is one."""
        mark, feed = self._deletable.get((name, form), ("", None))
        if feed is None or not marks(mark, key):
            return False
        del self._deletable[name, form]
        _end(feed, Cancelled("the answer was deleted by its client"))
        return True

    def abort(self) -> None:
        """Cancel all, those that are still added, too."""
        self._aborted = True
        for feed in self._feeds:
            _end(feed, ServerEnds())

    def join(self, limit_s: float) -> None:
        """Wait for their threads, in all at most that long."""
        deadline = time.monotonic() + limit_s
        for feed in self._feeds:
            feed.join(max(0.0, deadline - time.monotonic()))


def _end(feed: AnswerFeed, why: Exception) -> None:
    feed.cancel()
    feed.end(why)


@dataclass(frozen=True, slots=True)
class Work:
    """A request that was taken, and how its client gets the answer with this name.

    `open` is called on the event loop, `leave` once the client has gone, `acknowledge` once it shows that it has read
    what it was sent. `resumable`, `recorded` and `after` as of Answering; `named`: whether the client knows the id of
    the answer already; `ignored`: names of fields that it sent in vain;
    `mark`: of the client's API key, empty where none was needed.
    """

    name: str
    choices: tuple[Choice, ...]
    reply: Reply
    created: int
    model: str
    open: Callable[[], AnswerFeed]
    leave: Callable[[Parting], None]
    resumable: bool = False
    after: int = 0
    named: bool = False
    acknowledge: Callable[[], None] = lambda: None
    recorded: Callable[[], bool] = lambda: True
    ignored: tuple[str, ...] = ()
    mark: str = ""


class Deliveries:
    """Brings answers to clients. For one event loop."""

    def __init__(self, service: Service, running: RunningAnswers, limits: Limits) -> None:
        self._service = service
        self._running = running
        self._limits = limits

    async def deliver(
        self, work: Work, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        """Send the answer. Raises as Answering.run."""
        tokenizer, choices = self._service.tokenizer, work.choices
        by_prompt = {choice.prompt: len(choice.request.prompt_ids) for choice in choices}
        head = AnswerHead(
            id=work.name,
            created=work.created,
            model=work.model,
            reply=work.reply,
            prompt_tokens=tuple(by_prompt.values()),
            prompts=tuple(choice.prompt for choice in choices),
            tokenizer=tokenizer,
        )
        limits = _patient(self._limits, Headers(scope=scope))
        parting, named = Parting.FOR_GOOD, work.named

        async def send_named(message: MutableMapping[str, Any]) -> None:
            nonlocal named
            await send(message)
            named = True

        acknowledgement: Acknowledgement | None = scope["state"].get("acknowledgement")
        if work.resumable and acknowledgement is not None:
            acknowledgement.carry(work.acknowledge)
        try:
            feed = work.open()
            self._running.add(work, feed)
            answering = Answering(
                work.name,
                ANSWER_FORMS[work.reply.format].write(head),
                work.reply.stream,
                feed,
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
                work.recorded,
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
        except Exception:  # before the head: the response is an error
            parting = Parting.SENT if named else Parting.FOR_GOOD
            raise
        finally:
            self._running.remove(work)
            work.leave(parting)


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
