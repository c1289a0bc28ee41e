"""Clients that stream answers of a cluster, many at once: what tools/converse.py and tools/nemesis have in common."""

import json
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import httpx

__all__ = ["ANSWER_S", "BrokenAnswer", "Crowd", "connection", "events"]

#: How long a client waits for the next sign of life, seconds.
ANSWER_S = 300.0


class BrokenAnswer(Exception):
    """Refused, ended by an error, or early; in words."""


def connection(url: str) -> httpx.Client:
    """To be closed by the caller."""
    return httpx.Client(base_url=url, timeout=ANSWER_S, trust_env=False)


def events(client: httpx.Client, path: str, body: Mapping[str, Any]) -> Generator[tuple[str, Any]]:
    """("comment", words) and ("event", value) of a streamed answer, to its end. Raises BrokenAnswer, httpx.HTTPError,
    and ValueError where an event is no JSON."""
    with client.stream("POST", path, json=body) as response:
        if response.status_code != httpx.codes.OK:
            raise BrokenAnswer(f"{response.status_code}: {response.read().decode(errors='replace')}")
        for line in response.iter_lines():
            if line == "data: [DONE]":
                return
            if line.startswith(": "):
                yield "comment", line[2:]
            elif line.startswith("data: "):
                value = json.loads(line[6:])
                if "error" in value:
                    raise BrokenAnswer(json.dumps(value["error"]))
                yield "event", value
    raise BrokenAnswer("the stream ended early")


class Crowd:
    """A thread for each of the `talks`, which gets a connection of its own."""

    def __init__(self, url: str, talks: Sequence[Callable[[httpx.Client], None]]) -> None:
        self._url = url
        self._failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._run, args=(talk,), name=f"client {number}")
            for number, talk in enumerate(talks)
        ]

    def start(self) -> None:
        """Returns at once."""
        for thread in self._threads:
            thread.start()

    def join(self, limit_s: float = ANSWER_S) -> list[str]:
        """Waits for all, `limit_s` in all. In words, who failed or goes on."""
        deadline = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return self._failures + [f"{one.name} has no end" for one in self._threads if one.is_alive()]

    def _run(self, talk: Callable[[httpx.Client], None]) -> None:
        try:
            with connection(self._url) as client:
                talk(client)
        except Exception as error:
            self._failures.append(f"{threading.current_thread().name}: {type(error).__name__}: {error}")
