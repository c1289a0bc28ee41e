"""Clients that ask one thing after the other, and compare every answer with the undisturbed one."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tools.streaming import BrokenAnswer, Crowd, connection, events

__all__ = ["Found", "Pause", "Question", "Readers", "answer", "prefill_s", "questions"]

_PATH = "/v1/completions"
#: A master is away for a few seconds.
_NO_MASTER_S, _AGAIN_S = 60.0, 0.2
_PROMPTS, _PROMPT_TOKENS = 6, 8
#: Token ids that every model has.
_IDS = range(10, 1000)


@dataclass
class Question:
    """A request, and its answer without a fault."""

    body: dict[str, Any]
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pause:
    """Of one answer: `why` was said at the instant `began` of the monotonic clock, and the next token came when it
    `ended`."""

    began: float
    ended: float
    why: str


@dataclass
class Found:
    """What the clients saw. `again`: how often somebody had to ask again, because no answer had begun when the
    connection broke."""

    answers: int = 0
    again: int = 0
    tokens: int = 0
    paused: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)


def questions(url: str, seed: int, tokens: int) -> list[Question]:
    """Greedy and sampled ones, with their answers, each of so many tokens."""
    draws = random.Random(f"{seed}/questions")
    with connection(url) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        found = []
        for _ in range(_PROMPTS):
            prompt = draws.choices(_IDS, k=_PROMPT_TOKENS)
            body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
            body |= {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
            body |= {"return_token_ids": True}
            sampled = {"temperature": 0.8, "seed": draws.randrange(1 << 31), "presence_penalty": 0.3}
            found += [Question(body), Question(body | sampled)]
        for question in found:
            question.tokens = answer(client, question.body)
    return found


def answer(client: httpx.Client, body: dict[str, Any]) -> tuple[int, ...]:
    """All its tokens. Raises BrokenAnswer, httpx.HTTPError."""
    return tuple(token for event in events(client, _PATH, body) for token in _tokens(event))


def _tokens(event: dict[str, Any]) -> list[int]:
    return [token for choice in event.get("choices", ()) for token in choice["token_ids"]]


def prefill_s(url: str, asked: Sequence[Question]) -> float:
    """The longest that a prompt as long as a whole answer takes to its first token, in seconds."""
    taken = []
    with connection(url) as client:
        for question in asked:
            # None of its pages is kept: it begins in another way.
            prompt = [_IDS.start - 1, *question.body["prompt"], *question.tokens]
            body = question.body | {"prompt": prompt, "max_tokens": 1}
            began = time.monotonic()
            answer(client, body)
            taken.append(time.monotonic() - began)
    return max(taken)


class Readers:
    """So many threads, each with a question after the other until `stop`."""

    def __init__(self, url: str, asked: Sequence[Question], count: int, seed: int) -> None:
        self.found = Found()
        self._questions = asked
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._seed = seed
        self._crowd = Crowd(url, [self._talk(number) for number in range(count)])

    def start(self) -> None:
        """Returns at once."""
        self._crowd.start()

    def stop(self) -> None:
        """Waits for the answers under way."""
        self._ended.set()
        self.found.lost += self._crowd.join()

    def _talk(self, number: int) -> Callable[[httpx.Client], None]:
        def talk(client: httpx.Client) -> None:
            draws = random.Random(f"{self._seed}/{number}")
            while not self._ended.is_set():
                self._ask(client, draws.choice(self._questions))

        return talk

    def _ask(self, client: httpx.Client, question: Question) -> None:
        tokens: list[int] = []
        lost = ""
        usage: dict[str, Any] = {}
        pauses: list[Pause] = []
        said_before: list[tuple[float, str]] = []  # since the last token: when, and what

        def note(words: str) -> None:
            said_before.append((time.monotonic(), words))

        try:
            for said in self._begun(client, question, note):
                if said_before and said.get("choices"):
                    began, why = said_before[0]
                    pauses.append(Pause(began, time.monotonic(), why))
                    said_before.clear()
                tokens += _tokens(said)
                usage = said.get("usage") or usage
        # All but the first two: of events that are none.
        except (BrokenAnswer, httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            lost = f"{type(error).__name__} after {len(tokens)} tokens: {error}"
        with self._lock:
            found = self.found
            found.answers += 1
            found.tokens += usage.get("completion_tokens", 0)
            found.paused += bool(usage.get("pauses"))
            found.pauses += pauses
            if lost:
                found.lost.append(lost)
            elif tuple(tokens) != question.tokens:
                found.wrong.append(f"{question.body}: {tokens} where {question.tokens} belongs")

    def _begun(
        self, client: httpx.Client, question: Question, note: Callable[[str], None]
    ) -> Iterator[dict[str, Any]]:
        """The events. Asks again while there is no master: a killed one had not begun an answer whose head did not
        come."""
        deadline = time.monotonic() + _NO_MASTER_S
        while True:
            begun = False
            try:
                for said in events(client, _PATH, question.body, note):
                    begun = True
                    yield said
            except httpx.TransportError:
                if begun or time.monotonic() > deadline:
                    raise
            else:
                return
            with self._lock:
                self.found.again += 1
            self._ended.wait(_AGAIN_S)
