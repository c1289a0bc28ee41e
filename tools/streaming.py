"""Clients that stream answers of a cluster, many at once, for tools/converse.py and tools/nemesis."""

import json
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import httpx

from tpiedge.cli.reach import AnswerStream, HttpRefusal
from tpiedge.errors import PeerError

#: How long a client waits for the next sign of life, seconds.
ANSWER_S = 300.0


class BrokenAnswer(Exception):
    """An answer was refused, ended by an error, or ended early; the message says how."""


def connection(url: str) -> httpx.Client:
    """Returns a client, which the caller closes."""
    return httpx.Client(base_url=url, timeout=ANSWER_S, trust_env=False)


def events(
    client: httpx.Client,
    path: str,
    body: Mapping[str, Any],
    note: Callable[[str], None] = lambda _words: None,
) -> Generator[Any]:
    """Yields the events of a streamed answer, to its end; reconnects if the master records answers. `note` gets
    remarks. Raises BrokenAnswer, httpx.HTTPError, and ValueError for an event that is no JSON."""
    try:
        for data in AnswerStream(client, path, body, note, note).events():
            value = json.loads(data)
            if "error" in value:
                raise BrokenAnswer(json.dumps(value["error"]))
            yield value
    except HttpRefusal as refusal:
        raise BrokenAnswer(f"{refusal.status}: {refusal.data.decode(errors='replace')}") from None
    except PeerError as error:
        raise BrokenAnswer(str(error)) from None


class Crowd:
    """A thread for each of the `talks`, which gets its own connection, made by `connect`."""

    def __init__(
        self,
        url: str,
        talks: Sequence[Callable[[httpx.Client], None]],
        connect: Callable[[str], httpx.Client] = connection,
    ) -> None:
        self._url = url
        self._connect = connect
        self._failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._run, args=(talk,), name=f"client {number}")
            for number, talk in enumerate(talks)
        ]

    def start(self) -> None:
        """Starts all threads and returns at once."""
        for thread in self._threads:
            thread.start()

    def join(self, limit_s: float = ANSWER_S) -> list[str]:
        """Waits for all threads, `limit_s` together. Describes failed and unfinished clients."""
        deadline = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return self._failures + [f"{one.name} has no end" for one in self._threads if one.is_alive()]

    def _run(self, talk: Callable[[httpx.Client], None]) -> None:
        try:
            with self._connect(self._url) as client:
                talk(client)
        except Exception as error:
            self._failures.append(f"{threading.current_thread().name}: {type(error).__name__}: {error}")
