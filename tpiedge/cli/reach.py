"""HTTP client of a running master. Answers survive a broken connection if the master has `--journal`. Ctrl-C deletes
the answer on the master."""

import contextlib
import hmac
import json
import re
import ssl
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tpiedge.cli.options import Location, option
from tpiedge.errors import ContextFull, PeerError, ResourceError, TpiedgeError, UserError
from tpiedge.host.certificate import fingerprint_of
from tpiedge.host.private_file import ADMIN, master_state, running_master
from tpiedge.master.reconciler import RECOVERY_GRACE_S
from tpiedge.sanitise import sanitised

_DEFAULT_URL = "http://127.0.0.1:8080"
_RETRY_S = 0.5
#: The last events of streams that have no [DONE]: Anthropic's and those of Responses.
_LAST_EVENTS = ("message_stop", "response.completed", "response.incomplete", "response.failed")
_READING = re.compile(r"reading [0-9]+ of [0-9]+ tokens(, [0-9]+ s left)?")  # as `api/transcript.py` says it
_Tell = Callable[[str], None]
_BROKEN = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.TimeoutException)


class HttpRefusal(Exception):
    def __init__(self, status: int, data: bytes) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status
        self.data = data[:65_536]

    @property
    def starting(self) -> bool:
        soon = b'"shutting_down"' in self.data or b'"too_many_connections"' in self.data
        return self.status == 429 or (self.status == 503 and soon)


@dataclass(eq=False)
class AnswerStream:
    """The streamed answer to the request `_body`. `_note` gets lines about interruptions, `_progress` about the
    prompt."""

    _http: httpx.Client
    _path: str
    _body: Mapping[str, object]
    _note: _Tell
    _progress: _Tell
    begun: bool = False  # whether the head of the answer came
    _request: str = ""  # its id; empty if the master does not record it
    _last: int = 0  # the number of the last event that came
    _deadline: float | None = None  # while the connection is broken, and nothing has come since

    def events(self) -> Generator[str, None, None]:
        """Yields the data of each event, without [DONE]. Raises HttpRefusal, PeerError, httpx's errors."""
        try:
            while True:
                try:
                    with self._connected() as answer:
                        yield from self._read(answer)
                    return
                except HttpRefusal as refusal:
                    if self.begun and refusal.status == httpx.codes.NOT_FOUND:
                        raise PeerError(
                            "the master no longer has the rest of this answer: ask again"
                        ) from None
                    if not self.begun or not refusal.starting or self._given_up():
                        raise
                except _BROKEN:
                    if not self._request or self._given_up():
                        raise
                time.sleep(_RETRY_S)
        except BaseException as error:
            if self._request and not isinstance(error, Exception):
                # The reader stopped (Ctrl-C), so the master must not wait for it.
                with contextlib.suppress(httpx.HTTPError):
                    self._http.delete(f"{self._path}/{self._request}", timeout=2.0)
            raise

    @contextlib.contextmanager
    def _connected(self) -> Iterator[httpx.Response]:
        if self.begun:
            headers = {"Last-Event-ID": str(self._last)}
            stream = self._http.stream("GET", f"{self._path}/{self._request}", headers=headers)
        else:
            stream = self._http.stream("POST", self._path, json=self._body)
        with stream as answer:
            if answer.status_code != httpx.codes.OK:
                raise HttpRefusal(answer.status_code, answer.read())
            if self.begun:
                self._note("reconnected")
            elif "x-resumable" in answer.headers:
                self._request = answer.headers.get("x-request-id", "")
            self.begun = True
            yield answer

    def _given_up(self) -> bool:
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + RECOVERY_GRACE_S
            self._note(f"connection lost, reconnecting for up to {RECOVERY_GRACE_S:.0f} s")
        return now > self._deadline

    def _read(self, answer: httpx.Response) -> Iterator[str]:
        number, name = 0, ""
        for line in answer.iter_lines():
            kind, _, value = line.partition(": ")
            if line == "data: [DONE]":
                return
            if kind in ("", "data"):  # a ping, too, shows a connection
                self._deadline = None
            if kind == "" and _READING.fullmatch(value):
                self._progress(value)
            elif kind == "" and value not in ("", "ping"):
                self._note(f"paused: {sanitised(value)}")
            elif kind == "id":
                if not (value.isascii() and value.isdecimal() and len(value) < 19):
                    raise PeerError("the master sent an event without a number")
                number = int(value)
            elif kind == "event":
                name = value
            elif kind == "data":
                if not 0 < number <= self._last:
                    self._last = max(self._last, number)  # pings have no number
                    yield value
                number = 0
                if name in _LAST_EVENTS:
                    return
        raise PeerError("the master ended the answer early")


class MasterClient:
    """A client of one master, used as a context manager. Raises TpiedgeErrors."""

    def __init__(
        self, url: str, key: str | None, trust: ssl.SSLContext | None = None, *, own: bool = False
    ) -> None:
        """`trust`: None for this computer's CAs. `own`: whether the master is on this computer; then its lack
        of memory raises ResourceError."""
        if trust is not None and urlsplit(url).scheme != "https":
            raise UserError(
                f"{sanitised(url)[:80]} is without TLS, for which a certificate was given: write https://"
            )
        self.url = url
        self._own = own
        self.key = key
        try:
            if key is not None and not key.isprintable():
                raise ValueError("a header is one line")
            # The environment's proxies are for the internet, not for the LAN.
            self._http = httpx.Client(
                base_url=url,
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=httpx.Timeout(connect=5.0, read=60.0, write=60.0, pool=5.0),
                trust_env=False,
                verify=trust or True,
            )
        except (httpx.InvalidURL, UnicodeEncodeError, ValueError):
            raise UserError("the URL or the API key has invalid characters") from None

    def __enter__(self) -> "MasterClient":
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.close()

    def get(self, path: str) -> dict[str, object]:
        return self._call("GET", path, None)

    def delete(self, path: str) -> dict[str, object]:
        return self._call("DELETE", path, None)

    def post(self, path: str, body: Mapping[str, object]) -> dict[str, object]:
        return self._call("POST", path, body)

    @contextlib.contextmanager
    def stream(
        self, path: str, body: Mapping[str, object], note: _Tell, progress: _Tell
    ) -> Iterator[Iterator[str]]:
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
            raise UserError("the answer is not JSON: is it a tpiedge master?")
        return value

    @contextlib.contextmanager
    def _failing(self, answer: AnswerStream | None = None) -> Iterator[None]:
        advice = " (one with TLS wants https://)" if urlsplit(self.url).scheme == "http" else ""
        try:
            yield
        except HttpRefusal as refusal:
            raise self._error_of(refusal) from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _tls_refusal(error, self.url) or UserError(
                f"no master answers at {self.url}: start one with 'tpiedge master MODEL', or give its --url"
            ) from None
        except httpx.TimeoutException:
            raise PeerError(f"the master at {self.url} has been silent for a minute") from None
        except (httpx.RemoteProtocolError, httpx.NetworkError):
            if answer is not None and answer.begun:
                raise PeerError(
                    f"the master at {self.url} ended during the answer: ask again once it runs; with --journal a "
                    "restarted master resumes its answers"
                ) from None
            raise PeerError(f"the master at {self.url} ended the connection early{advice}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UserError(f"cannot talk to {self.url}: {sanitised(str(error))[:200]}") from None

    def _error_of(self, refusal: HttpRefusal) -> TpiedgeError:
        if refusal.status == httpx.codes.UNAUTHORIZED:
            wants = "refuses this API key" if "Authorization" in self._http.headers else "needs an API key"
            makes = "'tpiedge keys add NAME' on its computer makes one"
            return UserError(f"the master {wants}: give --api-key, or set TPIEDGE_API_KEY ({makes})")
        body = _json(refusal.data)
        error = body.get("error") if isinstance(body, dict) else None
        message, code = (error.get("message"), error.get("code")) if isinstance(error, dict) else (None, None)
        text = sanitised(
            str(message or f"HTTP status {refusal.status} without a message: is it a tpiedge master?")
        )
        if code == "context_length_exceeded":
            return ContextFull(text)
        if self._own and code in ("resource_error", "out_of_memory"):
            return ResourceError(text)
        return PeerError(text) if refusal.status == 429 or refusal.status >= 500 else UserError(text)


def master_at(
    url: str | None, state: Path | None, key: str | None, trust: ssl.SSLContext | None
) -> MasterClient:
    """Makes a client of the master at `url`; None: this computer's master. Raises UserError."""
    if url is None:
        own, _, certificate = _read_admin(state) or (_DEFAULT_URL, "", None)
        return MasterClient(own, key, trust or certificate)
    if not _is_url(url):
        raise UserError(f"--url {sanitised(url)[:80]!r} is not a URL like {_DEFAULT_URL}")
    return MasterClient(url.rstrip("/").removesuffix("/v1"), key, trust)


def admin_of(state: Path | None) -> MasterClient:
    """Makes an admin client for this computer's master. Raises UserError."""
    admin = _read_admin(state)
    if admin is None:
        raise UserError(
            "no master runs on this computer (for this user): start one with 'tpiedge master MODEL'"
        )
    url, secret, certificate = admin
    return MasterClient(url, secret, certificate, own=True)


def _read_admin(state: Path | None) -> tuple[str, str, ssl.SSLContext | None] | None:
    values = running_master(state)
    if not values:
        return None
    match values:
        case {"url": str(url), "secret": str(secret)} if _is_url(url):
            fingerprint = values.get("tls_sha256")
            return url, secret, _by_fingerprint(fingerprint) if isinstance(fingerprint, str) else None
    raise UserError(f"{master_state(state) / ADMIN} is damaged: restart the master")


class _Pinned(ssl.SSLContext):
    fingerprint: str


class _PinnedSocket(ssl.SSLSocket):
    """Refuses, in the handshake, all certificates but one."""

    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        found = fingerprint_of(self.getpeercert(True) or b"")
        if isinstance(self.context, _Pinned) and not hmac.compare_digest(found, self.context.fingerprint):
            raise ssl.SSLCertVerificationError(1, f"its SHA-256 fingerprint is {found}")


def _by_fingerprint(text: str) -> ssl.SSLContext:
    fingerprint = text.strip().replace(":", "").lower()
    if not re.fullmatch(r"[0-9a-f]{64}", fingerprint):
        raise UserError(
            "the fingerprint is not a SHA-256, which has 64 hex digits: the master prints it at its start"
        )
    context = _Pinned(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the fingerprint is compared instead
    context.fingerprint = fingerprint
    context.sslsocket_class = _PinnedSocket
    return context


def trust_of(ca: Path | None, fingerprint: str | None) -> ssl.SSLContext | None:
    """Returns the TLS context of --tls-ca or --tls-fingerprint, if given. Raises UserError."""
    if ca is not None and fingerprint is not None:
        raise UserError("give either --tls-ca or --tls-fingerprint")
    if fingerprint is not None:
        return _by_fingerprint(fingerprint)
    try:
        return None if ca is None else ssl.create_default_context(cafile=ca)
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror
        raise UserError(f"cannot take certificates from {ca} ({reason}): is it in PEM?") from None


def _tls_refusal(error: BaseException, url: str) -> UserError | None:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = getattr(cause, "verify_message", cause.strerror)
            return UserError(
                f"the certificate of {url} is not trusted ({why}): give --tls-fingerprint with what the master prints "
                "at its start, or its CA's certificate with --tls-ca"
            )
        if isinstance(cause, ssl.SSLError):
            return UserError(f"no TLS with {url} ({cause.reason or cause.strerror}): does it need http:// ?")
        cause = cause.__cause__ or cause.__context__
    return None


tls_ca_option = option(
    "--tls-ca",
    "PEM file with the certificate of the master's CA.  [default: the CAs of this computer]",
    Location(dir_okay=False),
)
tls_fingerprint_option = option(
    "--tls-fingerprint", "SHA-256 of the certificate, which the master prints at its start."
)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets, or no number as its port
        return False


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
