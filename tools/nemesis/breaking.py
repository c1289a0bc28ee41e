"""Clients that stop reading in the middle of an answer, and whose connection breaks then."""

import queue
import random
import time
from collections.abc import Iterator

import httpx

#: An answer of some hundred tokens ends meanwhile, or does not.
_LONGEST_S = 4.0


class Breaks:
    """The number of connections to break, and for how long their clients pause before, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self._draws = random.Random(f"{seed}/breaks")
        self._due = queue.SimpleQueue[float]()

    def add(self) -> None:
        """Breaks the connection of the next client that reads."""
        self._due.put(self._draws.choice((0.0, self._draws.uniform(0.0, _LONGEST_S))))

    def take(self) -> float | None:
        """Seconds for which a client that reads now stands still before its connection breaks; None if it reads on."""
        try:
            return self._due.get_nowait()
        except queue.Empty:
            return None


class _Stream(httpx.SyncByteStream):
    def __init__(self, stream: httpx.SyncByteStream, breaks: Breaks) -> None:
        self._stream = stream
        self._breaks = breaks

    def __iter__(self) -> Iterator[bytes]:
        for data in self._stream:
            yield data
            stands_s = self._breaks.take()
            if stands_s is not None:
                time.sleep(stands_s)
                raise httpx.ReadError("the connection was broken on purpose")

    def close(self) -> None:
        self._stream.close()


class BreakingTransport(httpx.HTTPTransport):
    """Sockets, of which those whose time has come break behind a piece of an answer that can be resumed."""

    def __init__(self, breaks: Breaks) -> None:
        super().__init__()
        self._breaks = breaks

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        resumed = request.method == "GET" and "last-event-id" in request.headers
        if ("x-resumable" in answer.headers or resumed) and isinstance(answer.stream, httpx.SyncByteStream):
            answer.stream = _Stream(answer.stream, self._breaks)
        return answer
