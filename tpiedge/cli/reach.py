"""Talking to a running master over HTTP: requests, streamed answers, and what to tell the user where none answers.

A master that records its answers (`tpiedge master --journal`) names the request in the head of a stream and numbers the
events. Then a connection that breaks is made anew, for RECOVERY_GRACE_S at most, and the events go on after the last
one that came: none is missing, none comes twice. Whoever stops reading has the answer deleted there. Of another
master's answer a break is the end, for both.
"""

import contextlib
import json
import re
import ssl
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tpiedge.cli.tls import by_fingerprint, refusal_of
from tpiedge.errors import ContextFull, PeerError, ResourceError, TpiedgeError, UserError
from tpiedge.host.private_file import read_private
from tpiedge.local.paths import master_state
from tpiedge.master.reconciler import RECOVERY_GRACE_S
from tpiedge.sanitise import sanitised

_DEFAULT_URL = "http://127.0.0.1:8080"
_TIMEOUT = httpx.Timeout(connect=5.0, read=60.0, write=60.0, pool=5.0)
_RETRY_S = 0.5
#: Whoever stops an answer does not wait for long.
_DELETE_S = 2.0
#: Names of the last events of Anthropic's streams and of Responses, which have no [DONE].
_LAST_EVENTS = ("message_stop", "response.completed", "response.incomplete", "response.failed")
_MAX_ERROR = 65_536
_NUMBER = re.compile(r"[0-9]{1,18}")
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
        return self.status == httpx.codes.TOO_MANY_REQUESTS or httpx.codes.is_server_error(self.status)

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
            while True:
                try:
                    with self._connected() as answer:
                        yield from self._read(answer)
                    return
                except HttpRefusal as refusal:
                    if self.begun and refusal.status == httpx.codes.NOT_FOUND:
                        raise PeerError(
                            "the master has the rest of this answer no longer: ask again"
                        ) from None
                    if not self.begun or not refusal.starting or self._given_up():
                        raise
                except _BROKEN:
                    if not self._request or self._given_up():
                        raise
                time.sleep(_RETRY_S)
        except BaseException as error:
            if self._request and not isinstance(error, Exception):
                # The reader stopped: closed the generator, pressed Ctrl-C. The master would wait for it to come back.
                with contextlib.suppress(httpx.HTTPError):
                    self._http.delete(f"{self._path}/{self._request}", timeout=_DELETE_S)
            raise

    @contextlib.contextmanager
    def _connected(self) -> Iterator[httpx.Response]:
        """The answer, or the rest of it."""
        if self.begun:
            headers = {"Last-Event-ID": str(self._last)}
            stream = self._http.stream("GET", f"{self._path}/{self._request}", headers=headers)
        else:
            stream = self._http.stream("POST", self._path, json=self._body)
        with stream as answer:
            if answer.status_code != httpx.codes.OK:
                raise HttpRefusal(answer.status_code, answer.read())
            if self.begun:
                self._note("connected again, the answer goes on")
            elif "x-resumable" in answer.headers:
                self._request = answer.headers.get("x-request-id", "")
            self.begun = True
            yield answer

    def _given_up(self) -> bool:
        """The connection broke; returns whether it has been broken for too long."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + RECOVERY_GRACE_S
            self._note(f"the connection broke; trying again for {RECOVERY_GRACE_S:.0f} s")
        return now > self._deadline

    def _read(self, answer: httpx.Response) -> Iterator[str]:
        number, name = 0, ""
        for line in answer.iter_lines():
            kind, _, value = line.partition(": ")
            if line == "data: [DONE]":
                return
            if kind in ("", "data"):  # a ping, too: the connection stands
                self._deadline = None
            if kind == "" and _READING.fullmatch(value):
                self._progress(value)
            elif kind == "" and value not in ("", "ping"):
                self._note(f"the answer pauses: {sanitised(value)}")
            elif kind == "id":
                if not _NUMBER.fullmatch(value):
                    raise PeerError("the master sent an event without a number")
                number = int(value)
            elif kind == "event":
                name = value
            elif kind == "data":
                if not 0 < number <= self._last:
                    self._last = max(self._last, number)  # a ping that is an event has no number
                    yield value
                number = 0
                if name in _LAST_EVENTS:
                    return
        raise PeerError("the master ended the answer early")


class MasterClient:
    """Requests with one key. A context manager. Errors are ours, in one line."""

    def __init__(
        self, url: str, key: str | None, trust: ssl.SSLContext | None = None, *, own: bool = False
    ) -> None:
        """`trust`: whose certificate is the master's; None for those of this computer's CAs. `own`: whether the master
        is this computer's, so that what its computer lacks is lacking here."""
        if trust is not None and urlsplit(url).scheme != "https":
            raise UserError(
                f"{sanitised(url)[:80]} is without TLS, for which a certificate was given: write https://"
            )
        self._url = url
        self._own = own
        try:
            if key is not None and not key.isprintable():
                raise ValueError("a header is one line")
            # The environment's proxies are for the internet, not for a machine in the same room.
            self._http = httpx.Client(
                base_url=url,
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=_TIMEOUT,
                trust_env=False,
                verify=trust or True,
            )
        except (httpx.InvalidURL, UnicodeEncodeError, ValueError):
            raise UserError("the URL or the API key holds characters that neither can have") from None

    def __enter__(self) -> "MasterClient":
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.close()

    def get(self, path: str) -> dict[str, object]:
        return self._call("GET", path, None)

    def post(self, path: str, body: Mapping[str, object]) -> dict[str, object]:
        return self._call("POST", path, body)

    @contextlib.contextmanager
    def stream(
        self,
        path: str,
        body: Mapping[str, object],
        note: Callable[[str], None],
        progress: Callable[[str], None],
    ) -> Iterator[Iterator[str]]:
        """The events of an answer, without the last one ([DONE]), for as long as the block lasts. `note` and
        `progress` as of AnswerStream."""
        answer = AnswerStream(self._http, path, body, note, progress)
        with self._failing(answer), contextlib.closing(answer.events()) as events:
            yield events

    def _call(self, method: str, path: str, body: Mapping[str, object] | None) -> dict[str, object]:
        with self._failing():
            answer = self._http.request(method, path, json=body)
            if answer.status_code != httpx.codes.OK:
                raise HttpRefusal(answer.status_code, answer.content)
        value = _json(answer.content)
        if not isinstance(value, dict):
            raise UserError("the answer is not JSON: is that a master of tpiedge?")
        return value

    @contextlib.contextmanager
    def _failing(self, answer: AnswerStream | None = None) -> Iterator[None]:
        """`answer`: what the errors are about, once it has begun."""
        advice = " (one with TLS wants https://)" if urlsplit(self._url).scheme == "http" else ""
        try:
            yield
        except HttpRefusal as refusal:
            raise self._error_of(refusal) from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise refusal_of(error, self._url) or UserError(
                f"no master answers at {self._url}: start one with 'tpiedge master MODEL', or give its --url"
            ) from None
        except httpx.TimeoutException:
            raise PeerError(f"the master at {self._url} has been silent for a minute") from None
        except (httpx.RemoteProtocolError, httpx.NetworkError) as error:
            if answer is not None and answer.begun:
                raise PeerError(
                    f"the master at {self._url} ended in the middle of the answer: ask again, once it runs; answers "
                    "outlive a master that was started with --journal"
                ) from None
            if isinstance(error, httpx.RemoteProtocolError):
                raise PeerError(f"the master at {self._url} ended the connection early{advice}") from None
            raise PeerError(
                f"the connection to {self._url} broke: if the master has not ended, is that the address which it "
                f"prints as 'serving … at'?{advice}"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UserError(f"cannot talk to {self._url}: {sanitised(str(error))[:200]}") from None

    def _error_of(self, refusal: HttpRefusal) -> TpiedgeError:
        """OpenAI's error as ours."""
        if refusal.status == httpx.codes.UNAUTHORIZED:
            wants = "does not know this key" if "Authorization" in self._http.headers else "wants a key"
            return UserError(f"the master {wants}: give --api-key, or set TPIEDGE_API_KEY")
        body = _json(refusal.data)
        error = body.get("error") if isinstance(body, dict) else None
        message, code = (error.get("message"), error.get("code")) if isinstance(error, dict) else (None, None)
        text = sanitised(
            str(message or f"HTTP status {refusal.status} without a word: is that a master of tpiedge?")
        )
        if code == "context_length_exceeded":
            return ContextFull(text)
        if self._own and code in ("resource_error", "out_of_memory"):
            return ResourceError(text)
        return PeerError(text) if refusal.passing else UserError(text)


def master_at(
    url: str | None, state: Path | None, key: str | None, trust: ssl.SSLContext | None
) -> MasterClient:
    """The API at --url, or of this computer's master, or at the default. Raises UserError."""
    if url is None:
        own, _, certificate = _read_admin(state) or (_DEFAULT_URL, "", None)
        return MasterClient(own, key, trust or certificate)
    if not _is_url(url):
        raise UserError(f"--url {sanitised(url)[:80]!r} is not a URL like {_DEFAULT_URL}")
    return MasterClient(url.rstrip("/").removesuffix("/v1"), key, trust)


def admin_of(state: Path | None) -> MasterClient:
    """The administration of this computer's master. Raises UserError where none runs."""
    url, secret, certificate = _admin(state)
    return MasterClient(url, secret, certificate, own=True)


def admin_key(state: Path | None) -> str:
    """The administrator's key of this computer's master. Raises UserError where none runs."""
    return _admin(state)[1]


def _admin(state: Path | None) -> tuple[str, str, ssl.SSLContext | None]:
    admin = _read_admin(state)
    if admin is None:
        raise UserError(
            "no master runs on this computer (for this user): start one with 'tpiedge master MODEL'"
        )
    return admin


def _read_admin(state: Path | None) -> tuple[str, str, ssl.SSLContext | None] | None:
    """What a running master leaves for its own user: its URL, a secret, and its certificate where it speaks TLS."""
    path = master_state(state) / "admin.json"
    values = read_private(path)
    if values is None:
        return None
    match values:
        case {"url": str(url), "secret": str(secret)} if _is_url(url):
            fingerprint = values.get("tls_sha256")
            return url, secret, by_fingerprint(fingerprint) if isinstance(fingerprint, str) else None
    raise UserError(f"{path} is damaged: restart the master")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets, or a port that is none
        return False


def _json(data: bytes) -> object:
    """None for what is no JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
