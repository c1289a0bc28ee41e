"""A client that streams answers while the cluster is abused, and compares every byte."""

import http.client
import itertools
import json
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tools.abusing.target import Target

AnswerKind = Literal["exact", "refused", "broken off", "unreachable", "wrong"]
"""`refused`: by a status, with words and Retry-After. `broken off`: ended by an error event, after a right beginning,
or by a status that names a lost worker. `unreachable`: no answer began. Whatever else is not exact is `wrong`."""

_LIMIT_S = 180.0
_REFUSALS = (429, 503)
_ERROR = b'data: {"error"'
# Long enough for the one who pauses it.
_PAUSE_S, _LONG_PAUSE_S = 0.05, 0.5

REQUESTS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "greedy": (
        "/v1/completions",
        {"prompt": "Once upon a time there was a little fox", "max_tokens": 40, "temperature": 0},
    ),
    "sampled": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "What is the sea?"}],
            "max_tokens": 40, "temperature": 0.9, "top_p": 0.95, "seed": 17,
        },
    ),
}  # fmt: skip
"""Name -> path, and what is asked for."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A client's view of an answer. `status`: 0 without one; `whole`: whether the body ended as HTTP says; `cause`: the
    reason if not."""

    status: int
    body: bytes = b""
    whole: bool = False
    retry_after: str = ""
    cause: str = ""


def ask(target: Target, name: str, limit_s: float = _LIMIT_S) -> Heard:
    """Stream one of REQUESTS over a new connection."""
    path, values = REQUESTS[name]
    body = json.dumps({"model": target.model, "stream": True, **values})
    headers = {"Authorization": f"Bearer {target.api_key}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(target.http.host, target.http.port, timeout=limit_s)
    try:
        connection.request("POST", path, body, headers)
        return _read(connection.getresponse(), time.monotonic() + limit_s)
    except (OSError, http.client.HTTPException) as error:
        return Heard(0, cause=repr(error))
    finally:
        connection.close()


def _read(response: http.client.HTTPResponse, deadline: float) -> Heard:
    body, cause = bytearray(), ""
    try:
        while part := response.read1():
            body += part
            if time.monotonic() > deadline:
                cause = "the answer goes on for too long"
                break
    except (OSError, http.client.HTTPException) as error:
        cause = repr(error)
    return Heard(response.status, bytes(body), not cause, response.headers.get("Retry-After", ""), cause)


def canonical(body: bytes) -> bytes:
    """A stream without what differs from answer to answer: its id, its time, signs of life and why it pauses."""
    body = re.sub(rb'"id": "(cmpl|chatcmpl)-[0-9a-f]+"', b'"id": ""', body)
    body = re.sub(rb'"created": \d+', b'"created": 0', body)
    return re.sub(rb"^: [^\n]*\n", b"", body, flags=re.MULTILINE)


def classify(heard: Heard, reference: bytes) -> tuple[AnswerKind, str]:
    """Returns the kind of answer and why it is not exact. `reference`: the body without abuse, canonical."""
    if heard.status == 0:
        return "unreachable", heard.cause
    if heard.status != 200:
        return _classify_refusal(heard)
    text = canonical(heard.body)
    if heard.whole and text == reference:
        return "exact", ""
    begun, error, rest = text.partition(_ERROR)
    right = len([None for one, other in zip(begun, reference, strict=False) if one == other])
    if right < len(begun):
        return "wrong", f"byte {_first_difference(begun, reference)} of the answer differs"
    if error and not heard.whole:
        return "broken off", (error + rest).decode(errors="replace")[:300]
    if heard.whole:
        return "wrong", f"the answer ends after {len(text)} of {len(reference)} bytes as if it were whole"
    return (
        "wrong",
        f"the answer breaks off after {len(text)} of {len(reference)} bytes without a word: {heard.cause}",
    )


def _first_difference(one: bytes, other: bytes) -> int:
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(other)
    )


def _classify_refusal(heard: Heard) -> tuple[AnswerKind, str]:
    try:
        error = json.loads(heard.body)["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return "wrong", f"status {heard.status} without words: {heard.body[:200]!r}"
    words = f"status {heard.status}, {code}: {message}"
    if heard.status not in _REFUSALS or not heard.retry_after:
        return "wrong", words
    # What these say is that the cluster is not whole, not that it is busy.
    return ("broken off" if code in ("worker_lost", "unavailable") else "refused"), words


@dataclass
class StreamRecord:
    """One phase as the client saw it. `words`: deviations and their number."""

    judgements: Counter[AnswerKind] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds) if self.seconds else 0.0

    @property
    def longest_s(self) -> float:
        return max(self.seconds, default=0.0)


class StreamingClient:
    """A thread that asks, one answer after the other, between `resume` and `pause`. `references`: name of a request ->
    its body, canonical."""

    def __init__(self, target: Target, references: Mapping[str, bytes]) -> None:
        self._target = target
        self._references = references
        self._lock = threading.Lock()
        self._record = StreamRecord()
        self._asking = threading.Lock()
        self._asking.acquire()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="client", daemon=True)
        self._thread.start()

    def take(self) -> StreamRecord:
        """Returns the record since the last call."""
        with self._lock:
            record, self._record = self._record, StreamRecord()
        return record

    def resume(self) -> None:
        self._asking.release()

    def pause(self) -> None:
        """Returns after the answer that it waits for; nothing is under way then."""
        self._asking.acquire()

    def close(self) -> None:
        self._closing.set()
        self._asking.release()
        self._thread.join()

    def _run(self) -> None:
        for name in itertools.cycle(self._references):
            with self._asking:
                if self._closing.is_set():
                    return
                exact = self._ask(name, self._references[name])
            self._closing.wait(_PAUSE_S if exact else _LONG_PAUSE_S)

    def _ask(self, name: str, reference: bytes) -> bool:
        started = time.monotonic()
        kind, words = classify(ask(self._target, name), reference)
        spent_s = time.monotonic() - started
        with self._lock:
            self._record.judgements[kind] += 1
            if kind == "exact":
                self._record.seconds.append(spent_s)
            else:
                self._record.words[f"{name}: {words}"] += 1
        return kind == "exact"
