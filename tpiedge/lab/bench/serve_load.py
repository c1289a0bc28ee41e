"""How requests are sent to a server: by clients that wait, at random times, or beside a long prompt."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from tpiedge.errors import PeerError
from tpiedge.lab.bench.serve_client import StreamedRequest, Streams
from tpiedge.lab.bench.serve_figures import LongPromptFigures, TimedAnswer, distribution, gaps_within
from tpiedge.lab.bench.serve_prompts import ServePrompt

OTHERS = 3
"""Answers beside a long prompt."""


def by_clients(
    streams: Streams, prompts: Sequence[ServePrompt], tokens: int, clients: int
) -> list[TimedAnswer]:
    """A closed loop: each of the clients sends the next of the prompts when its answer has ended."""
    left, free = iter(prompts), clients
    found: list[StreamedRequest] = []
    while free or streams.running:
        started = [streams.start(prompt, tokens) for prompt in islice(left, free)]
        found += started
        free = sum(exchange.ended_s is not None for exchange in started)  # those that found no server
        if not free and streams.running:
            free = len(streams.wait())
    return [exchange.answer() for exchange in found]


def at_random(
    streams: Streams, prompts: Sequence[ServePrompt], tokens: int, arrivals: Iterable[float]
) -> list[TimedAnswer]:
    """An open loop: a request is sent when its time of `arrivals` has come, however many are under way."""
    started_s = streams.clock.now()
    found = []
    for prompt, arrival_s in zip(prompts, arrivals, strict=False):
        while (left_s := started_s + arrival_s - streams.clock.now()) > 0:
            streams.wait(left_s)
        found.append(streams.start(prompt, tokens))
    while streams.running:
        streams.wait()
    return [exchange.answer() for exchange in found]


def ask_alone(streams: Streams, prompt: ServePrompt) -> float:
    """Tokens of a prompt per second, up to the first token of its answer; nothing else is under way. PeerError."""
    (answer,) = by_clients(streams, [prompt], 1, 1)
    return _prompt_rate(answer)


def _prompt_rate(answer: TimedAnswer) -> float:
    if answer.first_s is None:
        raise PeerError(f"the server did not answer a prompt: {answer.error or 'no token came'}")
    return answer.prompt_tokens / answer.first_s


@dataclass(frozen=True)
class LongPrompt:
    """A prompt that is computed while others answer: these get `others`, and have up to `answer_tokens` each; before
    the long one is sent, each has had `settled_tokens`."""

    prompt: ServePrompt
    alone: ServePrompt
    others: Iterator[ServePrompt]
    answer_tokens: int
    settled_tokens: int


def measure_long_prompt(streams: Streams, wanted: LongPrompt) -> LongPromptFigures:
    """The prompt alone (another one of the same length), then beside OTHERS. Raises PeerError where one fails."""
    alone = ask_alone(streams, wanted.alone)
    beside = [streams.start(next(wanted.others), wanted.answer_tokens) for _ in range(OTHERS)]
    first = tuple(beside)
    _answering(streams, beside, wanted, lambda: all(one.events >= wanted.settled_tokens for one in first))
    sent = streams.start(wanted.prompt, 1)
    _answering(streams, beside, wanted, lambda: sent.ended_s is not None)
    for exchange in beside:
        streams.cancel(exchange)
    ask_alone(streams, next(wanted.others))  # by now the server has left those that were cancelled
    return _compared(sent.answer(), [one.answer() for one in first], [one.answer() for one in beside], alone)


def _answering(
    streams: Streams, beside: list[StreamedRequest], wanted: LongPrompt, done: Callable[[], bool]
) -> None:
    """Waits until it is `done`; an answer beside that ends meanwhile is followed by another one. Raises PeerError."""
    while not done():
        for ended in streams.wait():
            if ended not in beside:
                continue
            if error := ended.answer().error:
                raise PeerError(f"an answer beside the long prompt failed: {error}")
            beside.append(streams.start(next(wanted.others), wanted.answer_tokens))


def _compared(
    prompt: TimedAnswer, first: Sequence[TimedAnswer], beside: Sequence[TimedAnswer], alone: float
) -> LongPromptFigures:
    rate = _prompt_rate(prompt)
    # Only since all of them answer: before, their own prompts were computed in between.
    settled_s = max(answer.token_s[0] for answer in first)
    normal = distribution(gaps_within(first, settled_s, prompt.sent_s))
    during = distribution(gaps_within(beside, prompt.sent_s, prompt.token_s[0]))
    if normal is None or during is None:
        raise PeerError("the answers beside the long prompt had too few tokens to tell")
    return LongPromptFigures(normal, during, alone, rate)
