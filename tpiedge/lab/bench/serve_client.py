"""Requests to an OpenAI-compatible server, from one thread that does little: it shares the server's processors.

A request has a connection of its own and asks for a stream. What arrives is kept with its time, and is read when the
measurement is over (`serve_events`).
"""

import contextlib
import http.client
import json
import selectors
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

from tpiedge.clock import Clock
from tpiedge.errors import PeerError, UserError
from tpiedge.lab.bench.serve_events import Arrival, read_answer
from tpiedge.lab.bench.serve_figures import TimedAnswer
from tpiedge.lab.bench.serve_prompts import ServePrompt
from tpiedge.sanitise import sanitised, sanitised_line

_CONNECT_S = 10.0
_GET_S = 30.0
_SILENT_S = 900.0
"""Without a byte of any answer: a prompt that takes longer is no prompt to measure with."""
_READ_BYTES = 65536
_OWN = "tpiedge"


@dataclass(frozen=True)
class ServerAddress:
    """Where a server answers, and the key that it wants."""

    host: str
    port: int
    key: str | None = field(default=None, repr=False)

    @staticmethod
    def of_url(url: str, key: str | None) -> "ServerAddress":
        """Raises UserError for what is no plain HTTP URL."""
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
        """Of every request."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        common = {"Host": f"{host}:{self.port}", "Connection": "close", "Content-Type": "application/json"}
        return common | ({"Authorization": f"Bearer {self.key}"} if self.key else {})

    def get(self, path: str) -> tuple[int, dict[str, object]]:
        """Status and JSON object. Raises PeerError where nobody answers, or not so."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=_GET_S)
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
    """A server, and what it says of its model; None for what it does not say."""

    address: ServerAddress
    model: str
    context_tokens: int | None
    vocabulary: int | None
    tells_ids: bool
    """Whether it can tell the ids of an answer's tokens, so that they can be counted where they have no text."""

    @staticmethod
    def at(address: ServerAddress) -> "MeasuredServer":
        """Asks the server. Raises PeerError."""
        status, found = address.get("/v1/models")
        match found:
            case {"data": [{"id": str(model), **card}, *_]}:
                meta = card.get("meta")
                more: Mapping[str, object] = meta if isinstance(meta, dict) else {}
                context = card.get("context_length") or card.get("max_model_len") or more.get("n_ctx")
                own = card.get("owned_by") == _OWN
                return MeasuredServer(address, model, _count(context), _count(more.get("n_vocab")), own)
        error = found.get("error")
        words = error.get("message") if isinstance(error, dict) else "it names no model"
        raise PeerError(f"/v1/models answers with HTTP status {status}: {sanitised_line(str(words), 200)}")

    def request(self, prompt: ServePrompt, tokens: int) -> bytes:
        """What is sent for a greedy answer of so many tokens, whether or not it comes to an end before."""
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
    """One request and what came back so far."""

    def __init__(self, sent_s: float, prompt_tokens: int) -> None:
        self.sent_s = sent_s
        self.ended_s: float | None = None
        self.failure = ""
        self.pieces: list[Arrival] = []
        self.events = 0
        """Of the stream so far, as nearly as can be told at a glance."""
        self._prompt_tokens = prompt_tokens

    def take(self, time_s: float, data: bytes) -> None:
        """What has arrived."""
        self.pieces.append((time_s, data))
        self.events += data.count(b"data: ")

    def answer(self) -> TimedAnswer:
        """Once it has ended."""
        ended_s = self.sent_s if self.ended_s is None else self.ended_s
        return read_answer(self.sent_s, self.pieces, ended_s, self._prompt_tokens, self.failure)


class Streams:
    """The requests that are under way to one server. A context manager, of one thread."""

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
        """Requests whose answer has not ended."""
        return len(self._selector.get_map())

    def start(self, prompt: ServePrompt, tokens: int) -> StreamedRequest:
        """Sends a request. Where the server cannot be reached, the exchange has ended already."""
        request = self.server.request(prompt, tokens)
        address = self.server.address
        exchange = StreamedRequest(self.clock.now(), len(prompt) if isinstance(prompt, tuple) else 0)
        try:
            connection = socket.create_connection((address.host, address.port), _CONNECT_S)
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
        """Blocks until something arrives, at most so long. Those that ended with it."""
        ready = self._selector.select(min(limit_s, _SILENT_S))
        if not ready and limit_s >= _SILENT_S:
            return self._silent()
        return [key.data for key, _ in ready if self._read(key.data, key.fileobj)]  # type: ignore[arg-type]

    def cancel(self, exchange: StreamedRequest) -> None:
        """Leaves: the server ends the answer. Does nothing where it has ended."""
        for key in list(self._selector.get_map().values()):
            if key.data is exchange:
                self._end(exchange, key.fileobj)  # type: ignore[arg-type]

    def _read(self, exchange: StreamedRequest, connection: socket.socket) -> bool:
        """Whether that was the end."""
        try:
            data = connection.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            exchange.failure, data = f"the connection broke: {error.strerror}", b""
        if data:
            exchange.take(self.clock.now(), data)
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
