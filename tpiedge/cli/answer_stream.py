"""The events of a streamed answer, over as many connections as it takes.

A master that records its answers (`tpiedge master --journal`) names the request in the head and numbers the events.
Then a connection that breaks is made anew, for RECOVERY_GRACE_S at most, and the events go on
after the last one that came: none is missing, none comes twice. Whoever stops reading has the answer deleted there.
Of another master's answer a break is the end, for both.
"""

import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress

import httpx

from tpiedge.errors import PeerError
from tpiedge.master.reconciler import RECOVERY_GRACE_S
from tpiedge.sanitise import sanitised

_REQUEST_ID, _RESUMABLE = "x-request-id", "x-resumable"
_RETRY_S = 0.5
#: Whoever stops an answer does not wait for long.
_DELETE_S = 2.0
#: Names of the last events of Anthropic's streams and of Responses, which have no [DONE].
_LAST_EVENTS = ("message_stop", "response.completed", "response.incomplete", "response.failed")
_MAX_ERROR = 65_536
_MOST_DIGITS = 18
#: As `api/transcript.py` says it.
_READING = re.compile(r"reading [0-9]+ of [0-9]+ tokens(, [0-9]+ s left)?")
_SOON = (b'"shutting_down"', b'"too_many_connections"')
_BROKEN = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.TimeoutException)


class HttpRefusal(Exception):
    """The master answers with another status than 200: `data` is the beginning of the body."""

    def __init__(self, status: int, data: bytes) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status
        self.data = data[:_MAX_ERROR]

    @property
    def passing(self) -> bool:
        """Whether it may be gone a moment later."""
        return (
            self.status == httpx.codes.TOO_MANY_REQUESTS or self.status >= httpx.codes.INTERNAL_SERVER_ERROR
        )

    @property
    def starting(self) -> bool:
        """Whether the master ends, or has too many guests: another one, or it itself, will answer. What else it says of
        an answer is the end of that."""
        soon = self.status == httpx.codes.SERVICE_UNAVAILABLE and any(code in self.data for code in _SOON)
        return soon or self.status == httpx.codes.TOO_MANY_REQUESTS


class AnswerStream:
    """One answer, which is asked for with `body` at `path`.

    `note` gets what is to be said beside it: why it pauses, again and again while it does, that the connection broke,
    and that there is one again. `progress` gets how far the prompt is read, again and again.
    """

    def __init__(
        self,
        http: httpx.Client,
        path: str,
        body: Mapping[str, object],
        note: Callable[[str], None],
        progress: Callable[[str], None],
    ) -> None:
        self._http = http
        self._path = path
        self._body = body
        self._note = note
        self._progress = progress
        self.begun = False  # whether the head of the answer came
        self._request = ""  # its id; none where the master does not record it
        self._last = 0  # the number of the last event that came
        self._deadline: float | None = None  # while the connection is broken, and nothing has come since

    def events(self) -> Generator[str, None, None]:
        """Without the last one ([DONE]). Raises HttpRefusal, PeerError, and the errors of httpx."""
        try:
            yield from self._events()
        except BaseException as error:
            if not isinstance(error, Exception):  # the reader stopped: closed the generator, pressed Ctrl-C
                self._delete()
            raise

    def _events(self) -> Iterator[str]:
        try:
            with self._http.stream("POST", self._path, json=self._body) as answer:
                _check(answer)
                self.begun = True
                if _RESUMABLE in answer.headers:
                    self._request = answer.headers.get(_REQUEST_ID, "")
                yield from self._read(answer)
                return
        except _BROKEN:
            if not self._request:
                raise
            self._broke()
        while True:
            try:
                with self._connected_again() as answer:
                    self._note("connected again, the answer goes on")
                    yield from self._read(answer)
                    return
            except _BROKEN:
                if self._broke():
                    raise
            time.sleep(_RETRY_S)

    def _delete(self) -> None:
        """Has the master stop at once, which otherwise waits for who may have lost its connection."""
        if self._request:
            with suppress(httpx.HTTPError):  # then the master's patience ends it
                self._http.delete(f"{self._path}/{self._request}", timeout=_DELETE_S)

    def _broke(self) -> bool:
        """The connection did; returns whether it is given up."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + RECOVERY_GRACE_S
            self._note(f"the connection broke; trying again for {RECOVERY_GRACE_S:.0f} s")
        return now > self._deadline

    @contextmanager
    def _connected_again(self) -> Iterator[httpx.Response]:
        """The rest of the answer. Raises what there is no use in trying again after, or no time for."""
        headers = {"Last-Event-ID": str(self._last)}
        while True:
            with self._http.stream("GET", f"{self._path}/{self._request}", headers=headers) as answer:
                try:
                    _check(answer)
                except HttpRefusal as refusal:
                    if refusal.status == httpx.codes.NOT_FOUND:
                        raise PeerError(
                            "the master has the rest of this answer no longer: ask again"
                        ) from None
                    if not refusal.starting or self._broke():
                        raise
                else:
                    yield answer
                    return
            time.sleep(_RETRY_S)

    def _read(self, answer: httpx.Response) -> Iterator[str]:
        number, name = 0, ""
        for line in answer.iter_lines():
            if line == "data: [DONE]":
                return
            if line.startswith(": ") and line != ": ping":
                self._comment(line.removeprefix(": "))
            if line.startswith((":", "data: ")):  # a ping, too: the connection stands
                self._deadline = None
            if line.startswith("id: "):
                number = _number(line.removeprefix("id: "))
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            if line.startswith("data: "):
                if not 0 < number <= self._last:
                    self._last = max(self._last, number)  # a ping that is an event has no number
                    yield line.removeprefix("data: ")
                number = 0
                if name in _LAST_EVENTS:
                    return
        raise PeerError("the master ended the answer early")

    def _comment(self, text: str) -> None:
        if _READING.fullmatch(text):
            self._progress(text)
        else:
            self._note(f"the answer pauses: {sanitised(text)}")


def _check(answer: httpx.Response) -> None:
    """Raises HttpRefusal."""
    if answer.status_code != httpx.codes.OK:
        raise HttpRefusal(answer.status_code, answer.read())


def _number(text: str) -> int:
    """Raises PeerError for what is no number of an event."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise PeerError("the master sent an event without a number")
    return int(text)
