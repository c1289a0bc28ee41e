"""Measures how much slower a client gets beside a flood of requests with slow grammars, or without grammars.

Used by `bench_grammars.py --flood`. The flood comes from an address of its own (127.0.0.2), so the server must run on
this computer, without keys.
"""

import json
import statistics
import threading
import time
from collections import Counter
from contextlib import ExitStack

import httpx

#: Of the flood: connections, and choices of each of their requests.
CONNECTIONS = 3
CHOICES = 16
ANSWER_TOKENS = 64
#: Takes a second of a processor to compile, in the syntax of llama.cpp.
SLOW = "".join(f'r{rule} ::= "x" | r{rule + 1}\n' for rule in range(1500)) + 'r1500 ::= "y"\nroot ::= r0\n'
LIMIT_S = 300.0


class Client:
    """A client that streams completions from an address of its own."""

    def __init__(self, url: str, model: str, address: str) -> None:
        transport = httpx.HTTPTransport(local_address=address)
        self.http = httpx.Client(base_url=url, transport=transport, timeout=LIMIT_S)
        self._model = model

    def body(self, **fields: object) -> dict[str, object]:
        usual = {"model": self._model, "prompt": "Once upon a time", "max_tokens": ANSWER_TOKENS}
        return {**usual, "ignore_eos": "grammar" not in fields, **fields}

    def answer(self) -> tuple[float, float]:
        """Returns seconds until the first token, and tokens per second after it."""
        began = time.perf_counter()
        arrivals: list[float] = []
        with self.http.stream("POST", "/v1/completions", json=self.body(stream=True)) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if line.startswith("data: {") and json.loads(line[6:]).get("choices"):
                    arrivals.append(time.perf_counter())
        if len(arrivals) < 2:
            raise SystemExit("an answer came in one piece: nothing to measure")
        return arrivals[0] - began, (ANSWER_TOKENS - 1) / (arrivals[-1] - arrivals[0])


class Flood:
    """Sends requests with these `fields` again and again during the block."""

    def __init__(self, url: str, model: str, fields: dict[str, object]) -> None:
        self._client = Client(url, model, "127.0.0.2")
        self._fields = fields
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CONNECTIONS)]
        self.statuses: Counter[int] = Counter()

    def __enter__(self) -> "Flood":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._client.http.close()
        for thread in self._threads:
            thread.join(LIMIT_S)

    def _ask(self) -> None:
        while not self._over.is_set():
            body = self._client.body(n=CHOICES, **self._fields)
            try:
                answer = self._client.http.post("/v1/completions", json=body)
                self.statuses[answer.status_code] += 1
            except (httpx.HTTPError, RuntimeError):  # it is closed
                continue


def measure(url: str, model: str, answers: int) -> None:
    """Prints the median and the worst that a client gets alone, beside a flood, and beside a flood with grammars."""
    client = Client(url, model, "127.0.0.1")
    client.answer()
    floods: dict[str, dict[str, object] | None] = {
        "alone": None,
        "beside a flood": {},
        "beside one with grammars": {"grammar": SLOW},
    }
    for name, fields in floods.items():
        with ExitStack() as stack:
            flood = None if fields is None else stack.enter_context(Flood(url, model, fields))
            time.sleep(0.0 if flood is None else 2.0)
            got = [client.answer() for _ in range(answers)]
        statuses = "" if flood is None else f"; the flood got {dict(flood.statuses)}"
        first_s, rates = [one for one, _ in got], [rate for _, rate in got]
        print(
            f"{name}: first token after {statistics.median(first_s):.2f} s (most {max(first_s):.2f} s), "
            f"{statistics.median(rates):.0f} tokens/s (least {min(rates):.0f}){statuses}",
            flush=True,
        )
    client.http.close()
