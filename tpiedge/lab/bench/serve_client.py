"""Streams requests to an OpenAI-compatible server in one thread. Parses answers after the measurement, because client
and server may share processors."""

import contextlib
import http.client
import json
import selectors
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

import h11

from tpiedge.clock import Clock
from tpiedge.errors import PeerError, UserError
from tpiedge.lab.bench.serve_figures import TimedAnswer
from tpiedge.sanitise import sanitised, sanitised_line

ServePrompt = str | tuple[int, ...]

Arrival = tuple[float, bytes]
"""(Arrival in seconds, the bytes that arrived)."""

_SILENT_S = 900.0
"""The longest wait for a byte."""


class _Unreadable(Exception):
    """The bytes are not an answer."""


def read_answer(
    sent_s: float, pieces: Sequence[Arrival], ended_s: float, prompt_tokens: int, failure: str = ""
) -> TimedAnswer:
    """Parses a `/v1/completions` stream. `failure`: the client's own error. The server's count of the prompt replaces
    `prompt_tokens`."""
    arrivals: list[float] = []
    done, tokens, cached = False, 0, 0
    try:
        for time_s, payload in _events(pieces):
            done = done or payload == b"[DONE]"
            value = None if done else _value(payload)
            match value:
                case {"error": {"message": message}} | {"error": str(message)}:
                    raise _Unreadable(sanitised_line(str(message), 200))
                case {"choices": list(choices), **more}:
                    match more.get("usage"):
                        case {"prompt_tokens": int(prompt), "completion_tokens": int(count)}:
                            prompt_tokens, tokens = prompt, count
                    match more.get("usage"):
                        case {"prompt_tokens_details": {"cached_tokens": int(found)}}:
                            cached = found
                    arrivals += [time_s] * sum(map(_tokens_of, choices))
        error = "" if done else "the server ended the answer early"
    except _Unreadable as unreadable:
        error = str(unreadable)
    # Tokens that the server counted but did not show came with the last one that it showed.
    arrivals += arrivals[-1:] * (tokens - len(arrivals))
    return TimedAnswer(sent_s, tuple(arrivals), ended_s, prompt_tokens, failure or error, cached)


def _tokens_of(choice: object) -> int:
    match choice:
        case {"token_ids": list(ids)}:
            return len(ids)
        case {"text": str(text)}:
            return 1 if text else 0
    return 0


def _value(payload: bytes) -> object:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        raise _Unreadable("the server sent an event that is not JSON") from None


def _events(pieces: Sequence[Arrival]) -> Iterator[Arrival]:
    """Yields each event as (the time when its line was whole, its data)."""
    status, rest = 0, b""
    for time_s, event in _parsed(pieces):
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            *lines, rest = (rest + bytes(event.data)).split(b"\n") if status == 200 else [rest + event.data]
            for line in lines:
                if line.startswith(b"data: "):
                    yield time_s, line.removeprefix(b"data: ").strip()
    if not status:
        raise _Unreadable("the server closed the connection without an answer")
    if status != 200:
        raise _Unreadable(_refusal(status, rest))


def _parsed(pieces: Sequence[Arrival]) -> Iterator[tuple[float, h11.Event]]:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "server")]))
    connection.send(h11.EndOfMessage())
    for time_s, data in pieces:
        try:
            connection.receive_data(data)
            while isinstance(event := connection.next_event(), h11.Event):
                yield time_s, event
                if isinstance(event, h11.EndOfMessage):
                    return
        except h11.RemoteProtocolError as error:
            raise _Unreadable(f"the server does not speak HTTP as it should: {error}") from None


def _refusal(status: int, body: bytes) -> str:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        message = "no reason is given"
    return f"HTTP status {status}: {sanitised_line(str(message), 200)}"


@dataclass(frozen=True)
class ServerAddress:
    host: str
    port: int
    key: str | None = field(default=None, repr=False)

    @staticmethod
    def of_url(url: str, key: str | None) -> "ServerAddress":
        try:
            parts = urlsplit(url)
            port = parts.port or 80
        except ValueError:
            raise UserError(
                f"--url {sanitised(url)[:80]!r} is not a URL like http://127.0.0.1:8080"
            ) from None
        if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") not in ("", "v1"):
            raise UserError(
                f"--url {sanitised(url)[:80]!r} is not one like http://127.0.0.1:8080 (without TLS, which costs time)"
            )
        if key is not None and not (key.isascii() and key.isprintable()):
            raise UserError("the API key holds characters that it cannot have")
        return ServerAddress(parts.hostname, port, key)

    @property
    def headers(self) -> dict[str, str]:
        host = f"[{self.host}]" if ":" in self.host else self.host
        common = {"Host": f"{host}:{self.port}", "Connection": "close", "Content-Type": "application/json"}
        return common | ({"Authorization": f"Bearer {self.key}"} if self.key else {})

    def get(self, path: str) -> tuple[int, dict[str, object]]:
        """Returns (HTTP status, JSON object). Raises PeerError if no readable answer comes."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30.0)
        try:
            connection.request("GET", path, headers=self.headers)
            answer = connection.getresponse()
            value = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            words = sanitised_line(error) or type(error).__name__
            raise PeerError(f"no server answers at {self.host}:{self.port}{path}: {words}") from None
        finally:
            connection.close()
        return answer.status, value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class MeasuredServer:
    address: ServerAddress
    model: str
    context_tokens: int | None
    vocabulary: int | None
    tells_ids: bool
    """Whether the server sends token ids, so that tokens without text can be counted."""

    @staticmethod
    def at(address: ServerAddress) -> "MeasuredServer":
        status, found = address.get("/v1/models")
        match found:
            case {"data": [{"id": str(model), **card}, *_]}:
                meta = card.get("meta")
                more: Mapping[str, object] = meta if isinstance(meta, dict) else {}
                context = card.get("context_length") or card.get("max_model_len") or more.get("n_ctx")
                own = card.get("owned_by") == "tpiedge"
                return MeasuredServer(address, model, _count(context), _count(more.get("n_vocab")), own)
        error = found.get("error")
        words = error.get("message") if isinstance(error, dict) else "it names no model"
        raise PeerError(f"/v1/models answers with HTTP status {status}: {sanitised_line(str(words), 200)}")

    def request(self, prompt: ServePrompt, tokens: int) -> bytes:
        """Returns a greedy HTTP request for exactly `tokens` tokens."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.tells_ids:
            body["return_token_ids"] = True
        data = json.dumps(body).encode()
        headers = self.address.headers | {"Content-Length": str(len(data))}
        lines = ["POST /v1/completions HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + data


class StreamedRequest:
    def __init__(self, sent_s: float, prompt_tokens: int) -> None:
        self.sent_s = sent_s
        self.ended_s: float | None = None
        self.failure = ""
        self.pieces: list[Arrival] = []
        self.events = 0
        """The estimated number of events so far."""
        self._prompt_tokens = prompt_tokens

    def feed(self, time_s: float, data: bytes) -> None:
        self.pieces.append((time_s, data))
        self.events += data.count(b"data: ")

    def answer(self) -> TimedAnswer:
        ended_s = self.sent_s if self.ended_s is None else self.ended_s
        return read_answer(self.sent_s, self.pieces, ended_s, self._prompt_tokens, self.failure)


class Streams:
    """Sends requests to one server. A context manager for one thread."""

    def __init__(self, server: MeasuredServer, clock: Clock) -> None:
        self.server = server
        self.clock = clock
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._selector.get_map().values()):
            self._end(key.data, key.fileobj)  # type: ignore[arg-type]
        self._selector.close()

    @property
    def running(self) -> int:
        return len(self._selector.get_map())

    def start(self, prompt: ServePrompt, tokens: int) -> StreamedRequest:
        """Sends a request. If the server is unreachable, the returned request has already ended."""
        request = self.server.request(prompt, tokens)
        address = self.server.address
        exchange = StreamedRequest(self.clock.now(), len(prompt) if isinstance(prompt, tuple) else 0)
        try:
            connection = socket.create_connection((address.host, address.port), 10.0)
        except OSError as error:
            return self._failed(exchange, error)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(request)
        except OSError as error:
            connection.close()
            return self._failed(exchange, error)
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, exchange)
        return exchange

    def wait(self, limit_s: float = _SILENT_S) -> list[StreamedRequest]:
        """Blocks for at most `limit_s`. Returns the requests that ended."""
        ready = self._selector.select(min(limit_s, _SILENT_S))
        if not ready and limit_s >= _SILENT_S:
            return self._silent()
        return [key.data for key, _ in ready if self._read(key.data, key.fileobj)]  # type: ignore[arg-type]

    def cancel(self, exchange: StreamedRequest) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data is exchange:
                self._end(exchange, key.fileobj)  # type: ignore[arg-type]

    def _read(self, exchange: StreamedRequest, connection: socket.socket) -> bool:
        """Returns whether the answer has ended."""
        try:
            data = connection.recv(65536)
        except BlockingIOError:
            return False
        except OSError as error:
            exchange.failure, data = f"the connection broke: {error.strerror}", b""
        if data:
            exchange.feed(self.clock.now(), data)
            return False
        self._end(exchange, connection)
        return True

    def _silent(self) -> list[StreamedRequest]:
        ended = [(key.data, key.fileobj) for key in self._selector.get_map().values()]
        for exchange, connection in ended:
            exchange.failure = f"nothing came for {_SILENT_S:.0f} s"
            self._end(exchange, connection)  # type: ignore[arg-type]
        return [exchange for exchange, _ in ended]

    def _failed(self, exchange: StreamedRequest, error: OSError) -> StreamedRequest:
        exchange.failure = f"no server answers: {error.strerror or error}"
        exchange.ended_s = self.clock.now()
        return exchange

    def _end(self, exchange: StreamedRequest, connection: socket.socket) -> None:
        exchange.ended_s = self.clock.now()
        self._selector.unregister(connection)
        with contextlib.suppress(OSError):
            connection.close()


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
