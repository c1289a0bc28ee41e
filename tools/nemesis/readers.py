"""Clients that ask one thing after the other, and compare every answer with the undisturbed one."""

import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tools.nemesis.breaking import BreakingTransport, Breaks
from tools.nemesis.forms import FORMS, Form, Json, Prompt, differences, folded
from tools.streaming import ANSWER_S, BrokenAnswer, Crowd, connection

#: A master is away for a few seconds.
_NO_MASTER_S, _AGAIN_S = 60.0, 0.2
_PROMPTS, PROMPT_TOKENS = 6, 8
_TEXTS = ("Tell me a story", "Where is the fox", "Say something about the sea")
#: What every model has an answer to, whatever its template and tokenizer.
_PLAIN = FORMS[:2]
_TOKENS = ".choices[0].token_ids"
#: Token ids that every model has.
_IDS = range(10, 1000)


@dataclass
class Question:
    """A request of one form, and its answer without a fault, folded."""

    form: Form
    body: Json
    right: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Pause:
    """A pause of one answer: `why` was told at `began` (monotonic seconds), and the next token came at `ended`."""

    began: float
    ended: float
    why: str


@dataclass
class Found:
    """Findings of the clients. `again`: requests repeated because the connection broke before an answer began."""

    answers: int = 0
    again: int = 0
    tokens: int = 0
    paused: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)


def questions(
    url: str, seed: int, tokens: int, forms: Sequence[Form] = (), prompt_tokens: int = PROMPT_TOKENS
) -> list[Question]:
    """Greedy and sampled ones with their answers, each of so many tokens at most: of each of the `forms` for texts, or
    of completions for token ids."""
    draws = random.Random(f"{seed}/questions")
    prompts: list[Prompt] = list(_TEXTS)
    if not forms:
        prompts = [draws.choices(_IDS, k=prompt_tokens) for _ in range(_PROMPTS)]
    with connection(url) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        found = []
        for prompt, form in itertools.product(prompts, forms or _PLAIN):
            body = {"model": model, **form.body(prompt, tokens)}
            if body.get("temperature"):
                body["seed"] = draws.randrange(1 << 31)
            found.append(Question(form, body))
        for question in found:
            question.right = answer(client, question)
    return found


def answer(client: httpx.Client, question: Question) -> Json:
    """An answer to it, folded. Raises BrokenAnswer, httpx.HTTPError."""
    return folded(question.form.ask(client, question.body))


def prefill_s(url: str, questions: Sequence[Question]) -> float:
    """The longest that a prompt as long as a whole answer takes to its first token, in seconds."""
    taken = []
    with connection(url) as client:
        for question in questions:
            if question.form not in _PLAIN:
                continue
            prompt = question.body["prompt"]
            # None of its pages is kept: it begins in another way.
            longer = [_IDS.start - 1, *(prompt if isinstance(prompt, list) else ()), *question.right[_TOKENS]]
            began = time.monotonic()
            answer(client, Question(question.form, question.body | {"prompt": longer, "max_tokens": 1}))
            taken.append(time.monotonic() - began)
    return max(taken)


class Readers:
    """Threads that ask one question after the other until `stop`."""

    def __init__(
        self, url: str, questions: Sequence[Question], count: int, seed: int, breaks: Breaks | None = None
    ) -> None:
        self.found = Found()
        self._questions = questions
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._seed = seed
        self._breaks = breaks
        self._crowd = Crowd(url, [self._talk(number) for number in range(count)], self._connection)

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

    def _connection(self, url: str) -> httpx.Client:
        if self._breaks is None:
            return connection(url)
        transport = BreakingTransport(self._breaks)
        return httpx.Client(base_url=url, timeout=ANSWER_S, trust_env=False, transport=transport)

    def _ask(self, client: httpx.Client, question: Question) -> None:
        events: list[Json] = []
        lost = ""
        pauses: list[Pause] = []
        said_before: list[tuple[float, str]] = []  # since the last token: when, and what

        def note(words: str) -> None:
            said_before.append((time.monotonic(), words))

        try:
            for said in self._begun(client, question, note):
                if said_before and said.get("choices", said.get("type") != "ping"):
                    began, why = said_before[0]
                    pauses.append(Pause(began, time.monotonic(), why))
                    said_before.clear()
                events.append(said)
            found = folded(events)
        # All but the first two: of events that are none.
        except (BrokenAnswer, httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            lost = f"{question.form.name}: {type(error).__name__} after {len(events)} events: {error}"
        usage = _usage(events)
        with self._lock:
            self.found.answers += 1
            self.found.tokens += usage.get("completion_tokens") or usage.get("output_tokens") or 0
            self.found.paused += bool(usage.get("pauses") or pauses)
            self.found.pauses += pauses
            if lost:
                self.found.lost.append(lost)
            elif found != question.right:
                self.found.wrong.append(f"{question.body}: {differences(found, question.right)}")

    def _begun(
        self, client: httpx.Client, question: Question, note: Callable[[str], None]
    ) -> Iterator[dict[str, Any]]:
        """The events. Asks again while there is no master: a killed one had not begun an answer whose head did not
        come."""
        deadline = math.inf  # until a connection breaks: an answer may have paused for longer before
        while True:
            begun = False
            try:
                for said in question.form.ask(client, question.body, note):
                    begun = True
                    yield said
            except httpx.TransportError:
                deadline = min(deadline, time.monotonic() + _NO_MASTER_S)
                if begun or time.monotonic() > deadline:
                    raise
            else:
                return
            with self._lock:
                self.found.again += 1
            self._ended.wait(_AGAIN_S)


def _usage(events: Sequence[Json]) -> Json:
    """Returns the usage of the last event that has one, in itself or in its response."""
    for one in reversed(events):
        usage: Json | None = one.get("usage") or one.get("response", {}).get("usage")
        if usage:
            return usage
    return {}
