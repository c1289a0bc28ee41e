"""Talking to a running master over HTTP, and what to tell the user where none answers."""

import contextlib
import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tpiedge.cli.answer_stream import AnswerStream, HttpRefusal
from tpiedge.cli.trust import by_fingerprint, refusal_of
from tpiedge.errors import ContextFull, PeerError, ResourceError, TpiedgeError, UserError
from tpiedge.host.private_file import read_private
from tpiedge.local.paths import master_state
from tpiedge.sanitise import sanitised

_DEFAULT_URL = "http://127.0.0.1:8080"
_TIMEOUT = httpx.Timeout(connect=5.0, read=60.0, write=60.0, pool=5.0)


@dataclass(frozen=True)
class _Admin:
    """What a running master leaves for its own user. `trust`: in its certificate, where it speaks TLS."""

    url: str
    secret: str
    trust: ssl.SSLContext | None


def master_at(
    url: str | None, state: Path | None, key: str | None, trust: ssl.SSLContext | None
) -> "MasterClient":
    """The API at --url, or of this computer's master, or at the default. Raises UserError."""
    if url is None:
        admin = _read_admin(state)
        if admin is None:
            return MasterClient(_DEFAULT_URL, key, trust)
        return MasterClient(admin.url, key, trust or admin.trust)
    if not _is_url(url):
        raise UserError(f"--url {sanitised(url)[:80]!r} is not a URL like {_DEFAULT_URL}")
    return MasterClient(url.rstrip("/").removesuffix("/v1"), key, trust)


def admin_of(state: Path | None) -> "MasterClient":
    """The administration of this computer's master. Raises UserError where none runs."""
    admin = _admin(state)
    return MasterClient(admin.url, admin.secret, admin.trust, own=True)


def admin_key(state: Path | None) -> str:
    """The administrator's key of this computer's master. Raises UserError where none runs."""
    return _admin(state).secret


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
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._url = url
        self._own = own
        try:
            if key is not None and not key.isprintable():
                raise ValueError("a header is one line")
            # The environment's proxies are for the internet, not for a machine in the same room.
            self._http = httpx.Client(
                base_url=url, headers=headers, timeout=_TIMEOUT, trust_env=False, verify=trust or True
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
        with self._failing(lambda: answer.begun), contextlib.closing(answer.events()) as events:
            yield events

    def _call(self, method: str, path: str, body: Mapping[str, object] | None) -> dict[str, object]:
        with self._failing():
            answer = self._http.request(method, path, json=body)
            if answer.status_code != httpx.codes.OK:
                raise HttpRefusal(answer.status_code, answer.content)
        return _object(answer.content)

    @contextlib.contextmanager
    def _failing(self, begun: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """`begun`: whether an answer has begun, which the errors are then about."""
        try:
            yield
        except HttpRefusal as refusal:
            raise _error_of(refusal, keyed="Authorization" in self._http.headers, own=self._own) from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise refusal_of(error, self._url) or UserError(
                f"no master answers at {self._url}: start one with 'tpiedge master MODEL', or give its --url"
            ) from None
        except httpx.TimeoutException:
            raise PeerError(f"the master at {self._url} has been silent for a minute") from None
        except (httpx.RemoteProtocolError, httpx.NetworkError) as error:
            if begun():
                raise PeerError(
                    f"the master at {self._url} ended in the middle of the answer: ask again, once it runs; answers "
                    "outlive a master that was started with --journal"
                ) from None
            if isinstance(error, httpx.RemoteProtocolError):
                raise PeerError(
                    f"the master at {self._url} ended the connection early{self._advice}"
                ) from None
            raise PeerError(
                f"the connection to {self._url} broke: if the master has not ended, is that the address which it "
                f"prints as 'serving … at'?{self._advice}"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UserError(f"cannot talk to {self._url}: {sanitised(str(error))[:200]}") from None

    @property
    def _advice(self) -> str:
        return " (one with TLS wants https://)" if urlsplit(self._url).scheme == "http" else ""


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets, or a port that is none
        return False


def _admin(state: Path | None) -> _Admin:
    admin = _read_admin(state)
    if admin is None:
        raise UserError(
            "no master runs on this computer (for this user): start one with 'tpiedge master MODEL'"
        )
    return admin


def _read_admin(state: Path | None) -> _Admin | None:
    values = read_private(master_state(state) / "admin.json")
    if values is None:
        return None
    url, secret = values.get("url"), values.get("secret")
    if not isinstance(url, str) or not isinstance(secret, str) or not _is_url(url):
        raise UserError(f"{master_state(state) / 'admin.json'} is damaged: restart the master")
    fingerprint = values.get("tls_sha256")
    return _Admin(url, secret, by_fingerprint(fingerprint) if isinstance(fingerprint, str) else None)


def _object(data: bytes) -> dict[str, object]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UserError("the answer is not JSON: is that a master of tpiedge?")
    return value


def _error_of(refusal: HttpRefusal, *, keyed: bool, own: bool) -> TpiedgeError:
    """OpenAI's error as ours. `keyed`: whether a key was sent; `own` as of MasterClient."""
    if refusal.status == httpx.codes.UNAUTHORIZED:
        wants = "does not know this key" if keyed else "wants a key"
        return UserError(f"the master {wants}: give --api-key, or set TPIEDGE_API_KEY")
    error: object = None
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        error = json.loads(refusal.data).get("error")
    message = error.get("message") if isinstance(error, dict) else None
    text = sanitised(
        str(message or f"HTTP status {refusal.status} without a word: is that a master of tpiedge?")
    )
    code = error.get("code") if isinstance(error, dict) else None
    if code == "context_length_exceeded":
        return ContextFull(text)
    if own and code in ("resource_error", "out_of_memory"):
        return ResourceError(text)
    return PeerError(text) if refusal.passing else UserError(text)
