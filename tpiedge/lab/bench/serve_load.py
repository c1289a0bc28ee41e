"""Prompts for a server that is measured, and when requests arrive. Pure: the same seed gives the same ones."""

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from tpiedge.errors import PeerError, UserError
from tpiedge.lab.bench.serve_client import ServePrompt, StreamedRequest, Streams
from tpiedge.lab.bench.serve_figures import LongPromptFigures, TimedAnswer, distribution, gaps_within

_FIRST_ID = 3
"""In most vocabularies the ids before it are signs for the end and the like."""


@dataclass
class RandomPrompts:
    """Token ids below `vocabulary`; no two prompts begin alike but for the first `shared` tokens, which all have."""

    vocabulary: int
    shared: int
    seed: int

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._prefix = self._ids(self.shared)

    def of(self, tokens: int) -> tuple[int, ...]:
        """The next prompt of so many tokens; of the shared ones only, where it has no more."""
        prefix = self._prefix[:tokens]
        return (*prefix, *self._ids(tokens - len(prefix)))

    def unlike(self, tokens: int) -> tuple[int, ...]:
        """The next prompt, without those that all share."""
        return self._ids(tokens)

    def _ids(self, count: int) -> tuple[int, ...]:
        return tuple(self._random.randrange(_FIRST_ID, self.vocabulary) for _ in range(count))


def arrivals(rate: float, seed: int) -> Iterator[float]:
    """Seconds from the start at which the requests of a Poisson process arrive, `rate` per second. Without an end."""
    waits = random.Random(seed)
    return itertools.accumulate(waits.expovariate(rate) for _ in itertools.count())


def parse_prompts(text: str, name: str) -> list[ServePrompt]:
    """One prompt per line: a JSON string, a JSON array of token ids, or else the line itself. Empty lines are none.

    `name`: of the file. Raises UserError where there is no prompt.
    """
    found = [_prompt(line) for line in text.splitlines() if line.strip()]
    if not found:
        raise UserError(f"{name} has no prompts: write one per line")
    return found


def _prompt(line: str) -> ServePrompt:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if isinstance(value, str) and value:
        return value
    return tuple(value) if _is_ids(value) else line


def _is_ids(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and bool(value)
        and all(type(token) is int and token >= 0 for token in value)
    )


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
