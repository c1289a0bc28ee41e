"""Runs the repeats of `tpiedge bench serve`. A seed fixes prompts and arrivals."""

import itertools
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tpiedge.clock import MonotonicClock
from tpiedge.errors import PeerError, UserError
from tpiedge.lab.bench.figures import spread
from tpiedge.lab.bench.serve_client import MeasuredServer, ServePrompt, StreamedRequest, Streams
from tpiedge.lab.bench.serve_figures import (
    LongPromptFigures,
    RoundFigures,
    TimedAnswer,
    distribution,
    gaps_within,
    spread_of,
    spreads,
)


@dataclass
class RandomPrompts:
    """Makes prompts of random token ids below `vocabulary`. The prompts that `of` returns begin with the same
    `shared` tokens."""

    vocabulary: int
    shared: int
    seed: int

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._prefix = self.unlike(self.shared)

    def of(self, tokens: int) -> tuple[int, ...]:
        prefix = self._prefix[:tokens]
        return (*prefix, *self.unlike(tokens - len(prefix)))

    def unlike(self, count: int) -> tuple[int, ...]:
        # In most vocabularies the ids before 3 are marks like the end of text.
        return tuple(self._random.randrange(3, self.vocabulary) for _ in range(count))


def arrivals(rate: float, seed: int) -> Iterator[float]:
    """Yields the arrival times of a Poisson process, in seconds. `rate`: arrivals per second."""
    waits = random.Random(seed)
    return itertools.accumulate(waits.expovariate(rate) for _ in itertools.count())


def parse_prompts(text: str, name: str) -> list[ServePrompt]:
    """Reads a prompt from each line: JSON text, JSON token ids, or plain text. Raises UserError."""
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


def by_clients(
    streams: Streams, prompts: Sequence[ServePrompt], tokens: int, clients: int
) -> list[TimedAnswer]:
    """Runs a closed loop: each client waits for its answer before its next request."""
    left, free = iter(prompts), clients
    found: list[StreamedRequest] = []
    while free or streams.running:
        started = [streams.start(prompt, tokens) for prompt in islice(left, free)]
        found += started
        free = sum(exchange.ended_s is not None for exchange in started)  # clients that found no server
        if not free and streams.running:
            free = len(streams.wait())
    return [exchange.answer() for exchange in found]


def at_random(
    streams: Streams, prompts: Sequence[ServePrompt], tokens: int, arrivals: Iterable[float]
) -> list[TimedAnswer]:
    """Runs an open loop: sends each prompt at its arrival, in seconds from now."""
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
    """Sends one prompt. Returns the prompt's tokens per second until the answer's first token. Raises PeerError."""
    (answer,) = by_clients(streams, [prompt], 1, 1)
    return _prompt_rate(answer)


def _prompt_rate(answer: TimedAnswer) -> float:
    if answer.first_s is None:
        raise PeerError(f"the server did not answer a prompt: {answer.error or 'no token came'}")
    return answer.prompt_tokens / answer.first_s


@dataclass(frozen=True)
class LongPrompt:
    """A long prompt for a measurement beside OTHERS answers. `alone`: a prompt of the same length, measured first and
    without other answers. `prompt` is sent when each of the first OTHERS answers has `settled_tokens` tokens."""

    prompt: ServePrompt
    alone: ServePrompt
    others: Iterator[ServePrompt]
    answer_tokens: int
    settled_tokens: int


def measure_long_prompt(streams: Streams, wanted: LongPrompt) -> LongPromptFigures:
    """Measures `wanted.alone`, then `wanted.prompt` beside other answers. Raises PeerError."""
    alone = ask_alone(streams, wanted.alone)
    beside = [streams.start(next(wanted.others), wanted.answer_tokens) for _ in range(OTHERS)]
    first = tuple(beside)
    _answering(streams, beside, wanted, lambda: all(one.events >= wanted.settled_tokens for one in first))
    sent = streams.start(wanted.prompt, 1)
    _answering(streams, beside, wanted, lambda: sent.ended_s is not None)
    for exchange in beside:
        streams.cancel(exchange)
    ask_alone(streams, next(wanted.others))  # afterwards the server has dropped the cancelled answers
    return _compared(sent.answer(), [one.answer() for one in first], [one.answer() for one in beside], alone)


def _answering(
    streams: Streams, beside: list[StreamedRequest], wanted: LongPrompt, done: Callable[[], bool]
) -> None:
    """Replaces each of `beside` that ends, until `done`. Raises PeerError."""
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
    # Only gaps since all of them answer: before, their own prompts were computed in between.
    settled_s = max(answer.token_s[0] for answer in first)
    normal = distribution(gaps_within(first, settled_s, prompt.sent_s))
    during = distribution(gaps_within(beside, prompt.sent_s, prompt.token_s[0]))
    if normal is None or during is None:
        raise PeerError("the answers beside the long prompt had too few tokens to tell")
    return LongPromptFigures(normal, during, alone, rate)


_LONG_ANSWER = 2048


@dataclass(frozen=True)
class ServeLoad:
    """A load: clients that wait for answers, or `rate` requests per second."""

    clients: int | None
    rate: float | None = None

    def requests(self, wanted: int | None) -> int:
        if wanted is not None:
            return wanted
        return 32 if self.clients is None else max(4, 2 * self.clients)

    def __str__(self) -> str:
        return f"{self.rate:g} requests/s" if self.clients is None else f"{self.clients} at a time"


@dataclass(frozen=True)
class ServeWish:
    """Settings of a measurement. `prompts` replace random prompts. `shared`: the number of first tokens that random
    prompts share."""

    loads: tuple[ServeLoad, ...]
    requests: int | None
    prompt_tokens: int
    tokens: int
    alone_tokens: int | None
    long_prompt: int | None
    shared: int
    prompts: tuple[ServePrompt, ...]
    repeats: int
    seed: int

    def alone(self, context: int | None) -> int:
        if self.alone_tokens is not None:
            return self.alone_tokens
        wanted = max(512, self.prompt_tokens)
        return wanted if context is None else max(1, min(wanted, context - 4))


def check_wish(wish: ServeWish, context: int | None) -> None:
    """Raises UserError if `wish` is contradictory or exceeds `context`."""
    if wish.shared > wish.prompt_tokens:
        raise UserError(f"--shared-prefix {wish.shared} is more than --prompt-tokens {wish.prompt_tokens}")
    most = max(load.clients or 1 for load in wish.loads)
    if wish.requests is not None and wish.requests < most:
        raise UserError(f"--requests {wish.requests} leave some of {most} clients without one")
    if context is None:
        return
    needs = {
        "--prompt-tokens and --tokens": wish.prompt_tokens + wish.tokens,
        "--prefill-tokens": wish.alone(context) + 1,
        "--long-prompt": (wish.long_prompt or 0) + 1,
    }
    for flags, tokens in needs.items():
        if tokens > context:
            raise UserError(f"{flags} need {tokens} positions: the context of the server has {context}")


@dataclass
class _Repeats:
    alone: list[float] = field(default_factory=list)
    rounds: dict[ServeLoad, list[RoundFigures]] = field(default_factory=dict)
    long: list[LongPromptFigures] = field(default_factory=list)
    client_s: float = 0.0
    seconds: float = 0.0


def measure_server(
    server: MeasuredServer, vocabulary: int, wish: ServeWish, say: Callable[[str], object]
) -> dict[str, Any]:
    """Returns the record of all repeats. Raises UserError, PeerError."""
    check_wish(wish, server.context_tokens)
    found = _Repeats(rounds={load: [] for load in wish.loads})
    with Streams(server, MonotonicClock()) as streams:
        measuring = _Measuring(streams, RandomPrompts(vocabulary, wish.shared, wish.seed), wish, say)
        measuring.warm_up()
        started_s, own_s = time.monotonic(), time.process_time()
        for repeat in range(wish.repeats):
            measuring.measure(found, repeat)
        found.seconds, found.client_s = time.monotonic() - started_s, time.process_time() - own_s
    return _record(wish, wish.alone(server.context_tokens), found)


class _Measuring:
    def __init__(
        self, streams: Streams, random: RandomPrompts, wish: ServeWish, say: Callable[[str], object]
    ) -> None:
        self._streams = streams
        self._say = say
        self._random = random
        self._wish = wish
        self._given = itertools.cycle(wish.prompts)
        self._context = streams.server.context_tokens
        self._alone_tokens = wish.alone(self._context)

    def warm_up(self) -> None:
        prompt = self._random.unlike(self._alone_tokens)
        (answer,) = by_clients(self._streams, [prompt], 4, 1)
        if answer.error:
            raise PeerError(f"the server does not answer: {answer.error}")

    def measure(self, found: _Repeats, repeat: int) -> None:
        self._say(f"repeat {repeat + 1} of {self._wish.repeats}")
        found.alone.append(ask_alone(self._streams, self._random.unlike(self._alone_tokens)))
        for load in self._wish.loads:
            figures = RoundFigures.of(self._answers(load, repeat), load.clients)
            if figures.errors == figures.requests:
                raise PeerError(f"no request was answered: {figures.error}")
            found.rounds[load].append(figures)
            self._say(f"  {load}: {figures.tokens_per_s:.1f} tokens/s")
        if self._wish.long_prompt is not None:
            found.long.append(measure_long_prompt(self._streams, self._long(self._wish.long_prompt)))

    def _answers(self, load: ServeLoad, repeat: int) -> list[TimedAnswer]:
        wish = self._wish
        prompts = list(itertools.islice(self._prompts(), load.requests(wish.requests)))
        if load.clients is not None:
            return by_clients(self._streams, prompts, wish.tokens, load.clients)
        assert load.rate is not None  # every load has clients or a rate
        return at_random(self._streams, prompts, wish.tokens, arrivals(load.rate, wish.seed + repeat))

    def _prompts(self) -> Iterator[ServePrompt]:
        if self._wish.prompts:
            return self._given
        return (self._random.of(self._wish.prompt_tokens) for _ in itertools.count())

    def _long(self, tokens: int) -> LongPrompt:
        wish = self._wish
        room = _LONG_ANSWER if self._context is None else self._context - wish.prompt_tokens
        others = (self._random.unlike(wish.prompt_tokens) for _ in itertools.count())
        return LongPrompt(
            self._random.unlike(tokens),
            self._random.unlike(tokens),
            others,
            min(_LONG_ANSWER, room),
            min(wish.tokens, room),
        )


def _record(wish: ServeWish, alone_tokens: int, found: _Repeats) -> dict[str, Any]:
    return {
        "prompt_tokens": wish.prompt_tokens if not wish.prompts else None,
        "prompts": len(wish.prompts) or None,
        "shared_prefix": wish.shared,
        "tokens": wish.tokens,
        "repeats": wish.repeats,
        "seed": wish.seed,
        "prefill": {"prompt_tokens": alone_tokens, "tokens_per_s": spread(found.alone)},
        "loads": [_load_record(load, rounds, found.alone) for load, rounds in found.rounds.items()],
        "long_prompt": _long_record(wish.long_prompt, found.long),
        "client_processor_share": found.client_s / found.seconds if found.seconds else 0.0,
    }


def _load_record(load: ServeLoad, rounds: Sequence[RoundFigures], alone: Sequence[float]) -> dict[str, Any]:
    pairs = list(zip(rounds, alone, strict=True))
    return {
        "concurrency": load.clients,
        "rate_per_s": load.rate,
        "requests": sum(one.requests for one in rounds),
        "errors": sum(one.errors for one in rounds),
        "error": next((one.error for one in rounds if one.error), ""),
        "first_token_s": spreads([one.first_s for one in rounds]),
        "between_tokens_s": spreads([one.gap_s for one in rounds]),
        "tokens_per_s": spread_of(rounds, lambda one: one.tokens_per_s),
        "answering_tokens_per_s": spread_of(rounds, lambda one: one.answering_tokens_per_s),
        "answering_to_prefill": spread_of(pairs, _to_prefill),
        "requests_per_s": spread_of(rounds, lambda one: one.requests_per_s),
    }


def _to_prefill(pair: tuple[RoundFigures, float]) -> float | None:
    figures, prefill = pair
    rate = figures.answering_tokens_per_s
    return None if rate is None else rate / prefill


def _long_record(tokens: int | None, found: Sequence[LongPromptFigures]) -> dict[str, Any] | None:
    if tokens is None:
        return None
    return {
        "prompt_tokens": tokens,
        "others": OTHERS,
        "between_tokens_normal_s": spreads([one.normal_s for one in found]),
        "between_tokens_beside_s": spreads([one.beside_s for one in found]),
        "p99_to_normal": spread_of(found, lambda one: one.gap_ratio),
        "alone_tokens_per_s": spread_of(found, lambda one: one.alone_tokens_per_s),
        "beside_tokens_per_s": spread_of(found, lambda one: one.beside_tokens_per_s),
        "beside_to_alone": spread_of(found, lambda one: one.prompt_ratio),
    }
