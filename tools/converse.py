"""Hold many conversations with a cluster, and compare every answer with that of one machine.

    .venv/bin/python -m tools.converse [MODEL] [--minutes 10] [--conversations 16] [--workers 1] [--json FILE]

MODEL has a chat template: the demo model, or tools/fetch_model.py's. Clients stream chats from a master and workers
on loopback, share beginnings, draw or are greedy, and sometimes leave in the middle. Then a master without workers and
drafts answers the same requests, one at a time, in another order. Texts, log probabilities and finish reasons must be
equal bit by bit. Exit status 1 where one is not. Linux.
"""

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.process.serving.serving import Serving
from tools.streaming import ANSWER_S, BrokenAnswer, Crowd, connection, events

_SLOW = 1.5e9  # as every machine says of its memory: one more is worth having
_TURNS = 4
_LEAVES = 0.05
_LOGPROBS = 3
_COMMON = (
    "You are a friendly librarian who lives in a village by the sea. You answer in a few plain sentences, you never "
    "use lists, and you like to mention the weather, the harbour, or the old clock above the door of the library."
)
_OWN = (
    "You are a cook.",
    "You are a sailor who has seen the whole world.",
    "You answer in one sentence.",
    "Be kind.",
)
_TOPICS = (
    "a boat",
    "bread",
    "the moon",
    "a lost key",
    "two friends",
    "an old map",
    "rain",
    "a small dog",
    "music",
)
_QUESTIONS = (
    "Tell me something about {}.",
    "What should I know about {} before winter comes?",
    "Say that again, but with {} in it.",
    "Repeat your last answer word for word.",
    "Why do people write stories about {}?",
    "Write four lines about {} and {}.",
)


@dataclass
class Exchange:
    """A request and its client's answer. `left`: the client did not wait for the end."""

    body: dict[str, Any]
    left: bool = False
    text: str = ""
    logprobs: list[object] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    def difference(self, alone: "Exchange") -> str | None:
        """Describes the difference from the answer `alone`, of one machine; None if equal."""
        if self.error or alone.error:
            return self.error or f"alone: {alone.error}"
        if not self.left and (self.finish_reason, self.text) != (alone.finish_reason, alone.text):
            return f"{self.finish_reason} {self.text!r}, alone {alone.finish_reason} {alone.text!r}"
        if not alone.text.startswith(self.text):
            return f"{self.text!r}, alone {alone.text!r}"
        seen = len(self.logprobs) if self.left else None
        return None if self.logprobs == alone.logprobs[:seen] else "other log probabilities"


def ask(client: httpx.Client, body: dict[str, Any], leaves: Callable[[Exchange], bool]) -> Exchange:
    exchange = Exchange(body)
    try:
        with contextlib.closing(events(client, "/v1/chat/completions", body)) as stream:
            for said in stream:
                _take(exchange, said)
                if leaves(exchange):
                    exchange.left = True
                    return exchange
    # All but the first two: of events that are none.
    except (BrokenAnswer, httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        exchange.error = f"{type(error).__name__}: {error}"
    return exchange


def _take(exchange: Exchange, event: dict[str, Any]) -> None:
    exchange.usage = event.get("usage") or exchange.usage
    for choice in event.get("choices", ()):
        exchange.text += choice["delta"].get("content") or ""
        exchange.logprobs += (choice.get("logprobs") or {}).get("content") or ()
        exchange.finish_reason = choice["finish_reason"] or exchange.finish_reason


def _has_enough(tokens: int, seen: Exchange) -> bool:
    """Whether the client has all `tokens` that it waits for (0: it waits for the end)."""
    return 0 < tokens <= len(seen.logprobs)


class Talker:
    """One client; its choices depend only on the seed and the answers."""

    def __init__(self, number: int, options: argparse.Namespace, ends: float) -> None:
        self._number = number
        self._draws = random.Random(f"{options.seed}/{number}")
        self._tokens = options.tokens
        self._pause_s = options.pause
        self._ends = ends
        self._least = options.least
        self._model = ""
        self.exchanges: list[Exchange] = []
        self.conversations = 0

    def talk(self, client: httpx.Client) -> None:
        """Talks until the time is over or something fails."""
        self._model = client.get("/v1/models").json()["data"][0]["id"]
        while not self._is_over and not (self.exchanges and self.exchanges[-1].error):
            self._conversation(client)
            self.conversations += 1

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._ends and len(self.exchanges) >= self._least

    def _conversation(self, client: httpx.Client) -> None:
        draws = self._draws
        beginning = _COMMON if self._number % 2 else draws.choice(_OWN)
        messages: list[dict[str, str]] = [{"role": "system", "content": beginning}]
        for _ in range(_TURNS):
            question = draws.choice(_QUESTIONS).format(*draws.sample(_TOPICS, 2))
            messages.append({"role": "user", "content": question})
            gone_after = draws.randrange(1, 40) if draws.random() < _LEAVES else 0
            exchange = ask(client, self._body(messages), partial(_has_enough, gone_after))
            self.exchanges.append(exchange)
            if exchange.error or exchange.left or self._is_over:
                return
            messages.append({"role": "assistant", "content": exchange.text})
            time.sleep(min(self._pause_s * draws.random() * 2, max(0.0, self._ends - time.monotonic())))

    def _body(self, messages: Sequence[dict[str, str]]) -> dict[str, Any]:
        draws = self._draws
        body: dict[str, Any] = {
            "model": self._model,
            "messages": list(messages),
            "max_tokens": draws.randrange(self._tokens // 2, self._tokens + 1),
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "logprobs": True,
            "top_logprobs": _LOGPROBS,
        }
        if draws.random() < 2 / 3:
            body |= {"temperature": draws.choice([0.5, 0.8, 1.0]), "top_p": draws.choice([0.9, 1.0])}
            body |= {"seed": draws.randrange(1 << 31), "presence_penalty": draws.choice([0.0, 0.5])}
        return body


@contextlib.contextmanager
def cluster(folder: Path, options: argparse.Namespace, workers: int, *flags: object) -> Iterator[Serving]:
    """Yields a ready master with its workers."""
    sizes = ("--context", options.context, "--precision", options.precision)
    serving = Serving(
        folder, *sizes, *flags, "--min-workers", workers,
        model=options.model, cache=options.cache or folder.parent / "cache", bytes_per_s=_SLOW,
    )  # fmt: skip
    with contextlib.closing(serving):
        serving.start_master()
        for number in range(workers):
            serving.start_worker(f"worker-{number}", bytes_per_s=_SLOW)
        serving.wait_ready(1 + workers, ANSWER_S)
        yield serving


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    os.environ["TPIEDGE_CONFIG"] = os.devnull
    with tempfile.TemporaryDirectory(prefix="tpiedge-converse-") as place:
        folder = Path(place)
        room = options.conversations * options.context // 2
        flags = ("--parallel", options.conversations, "--kv-tokens", max(room, options.context))
        with cluster(folder / "together", options, options.workers, *flags) as serving:
            print(f"{options.conversations} clients talk for {options.minutes:g} min", flush=True)
            exchanges, conversations = _talk(serving.url, options)
        with cluster(folder / "alone", options, 0, "--parallel", 1, "--speculate", "off") as serving:
            print(f"{len(exchanges)} answers; one machine gives them again, one at a time", flush=True)
            faults = _compare(serving.url, exchanges, options.seed)
    record = _record(exchanges, conversations, faults)
    for fault in faults[:20]:
        print(f"FAULT: {fault}")
    print(json.dumps(record))
    if options.json:
        options.json.write_text(json.dumps(record | {"faults": faults}, indent=2) + "\n")
    return int(bool(faults) or not exchanges)


def _talk(url: str, options: argparse.Namespace) -> tuple[list[Exchange], int]:
    ends = time.monotonic() + 60 * options.minutes
    talkers = [Talker(number, options, ends) for number in range(options.conversations)]
    crowd = Crowd(url, [talker.talk for talker in talkers])
    crowd.start()
    failures = crowd.join(ends + ANSWER_S - time.monotonic())
    if failures:
        raise SystemExit("; ".join(failures))
    return [one for talker in talkers for one in talker.exchanges], sum(
        talker.conversations for talker in talkers
    )


def _compare(url: str, exchanges: Sequence[Exchange], seed: int) -> list[str]:
    """Describes differences. Asks in another order, so that pages of an earlier turn are seldom kept."""
    order = list(exchanges)
    random.Random(seed).shuffle(order)
    faults = []
    with connection(url) as client:
        for exchange in order:
            difference = exchange.difference(ask(client, exchange.body, lambda _: False))
            if difference is not None:
                faults.append(f"{exchange.body['messages'][-1]['content']!r}: {difference}")
    return faults


def _record(exchanges: Sequence[Exchange], conversations: int, faults: Sequence[str]) -> dict[str, Any]:
    ended = [one for one in exchanges if one.usage]
    prompt = sum(one.usage["prompt_tokens"] for one in ended)
    cached = sum(one.usage["prompt_tokens_details"]["cached_tokens"] for one in ended)
    return {
        "conversations": conversations,
        "answers": len(exchanges),
        "left": sum(one.left for one in exchanges),
        "tokens": sum(len(one.logprobs) for one in exchanges),
        "cached_share_of_prompts": round(cached / max(1, prompt), 3),
        "different": len(faults),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.converse",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", default="demo", help="with a chat template [default: demo]")
    parser.add_argument("--minutes", type=float, default=10.0, help="[default: 10]")
    parser.add_argument(
        "--least", type=int, default=1, help="answers of each client, however long [default: 1]"
    )
    parser.add_argument("--conversations", type=int, default=16, help="at a time [default: 16]")
    parser.add_argument("--workers", type=int, default=1, help="beside the master [default: 1]")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer at most [default: 96]")
    parser.add_argument(
        "--pause", type=float, default=8.0, help="seconds between turns, in the mean [default: 8]"
    )
    parser.add_argument("--context", type=int, default=1024, help="[default: 1024]")
    parser.add_argument("--precision", choices=("q8", "q4"), default="q4", help="[default: q4]")
    parser.add_argument("--seed", type=int, default=1, help="of what clients say [default: 1]")
    parser.add_argument("--cache", type=Path, help="folder for the pack [default: temporary]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
