"""The server that clients are pointed at: it writes down what they send, and answers plausibly."""

import json
import re
import tempfile
import threading
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from tools.clients.answers import answer

_USE = "/record/"
_LIMIT_S = 20.0
#: What says who the user is, where the server is, or which of many versions and systems it was.
_DROPPED = frozenset(
    (
        "host", "content-length", "connection", "authorization", "x-api-key", "api-key", "cookie",
        "transfer-encoding", "x-stainless-arch", "x-stainless-os", "x-stainless-package-version",
        "x-stainless-runtime-version", "traceparent", "idempotency-key", "x-request-id", "x-codex-turn-metadata",
        "x-codex-window-id", "x-client-request-id", "x-ms-client-request-id", "session-id", "thread-id",
        "x-claude-code-session-id", "date", "x-ms-date", "tracestate", "baggage",
    )
)  # fmt: skip
#: Of the texts of prompts and descriptions, whose length says nothing.
_CUT = ("content", "description", "instructions", "output", "text")
_CUT_CHARACTERS = 160
#: Names that differ each time, and folders of this computer.
_CHANGING = (
    (
        re.compile(r"(?<![0-9a-f])[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"),
        "00000000-0000-0000-0000-000000000000",
    ),
    (re.compile(r"(?<![0-9a-f])[0-9a-f]{32,}"), "0" * 32),
    (re.compile(re.escape(tempfile.gettempdir()) + r"/[\w./-]+"), "/folder"),
    (re.compile(r"\b20\d\d-\d\d-\d\d\b"), "2026-01-01"),
    (re.compile(r"\b1[789]\d{11}\b"), "0"),
    (re.compile(r"\bcall_[A-Za-z0-9]{8,}\b"), "call_1"),
)


@dataclass
class Recorder:
    """Serves on a free port of loopback, from `start` to `stop`; `requests` are what came, each once."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    #: Paths that no known client asks for.
    unknown: list[str] = field(default_factory=list)
    _use: str = ""

    def start(self) -> str:
        config = uvicorn.Config(
            self._app, host="127.0.0.1", port=0, log_level="error", lifespan="off", interface="asgi3"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        deadline = threading.Event()
        for _ in range(int(_LIMIT_S / 0.05)):
            if self._server.started:
                port = self._server.servers[0].sockets[0].getsockname()[1]
                return f"http://127.0.0.1:{port}"
            deadline.wait(0.05)
        raise RuntimeError("the recording server did not start")

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(_LIMIT_S)

    async def _app(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        data, more = b"", True
        while more:
            message = await receive()
            data += message.get("body", b"")
            more = message.get("more_body", False)
        status, kind, body = self._heard(scope, data)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _heard(self, scope: MutableMapping[str, Any], data: bytes) -> tuple[int, str, bytes]:
        method, path = scope["method"], scope["path"]
        if path.startswith(_USE):  # the driver says what comes next
            self._use = path.removeprefix(_USE).replace("_", " ")
            return 200, "text/plain", b""
        body = json.loads(data) if data else None
        query = scope["query_string"].decode()
        request = {
            "method": method,
            "path": f"{path}?{query}" if query else path,
            "headers": _kept((name.decode(), value.decode()) for name, value in scope["headers"]),
            "body": _settled(body),
        }
        if not any({**known, "use": ""} == {**request, "use": ""} for known in self.requests):
            self.requests.append({"use": self._use, **request})
        try:
            kind, answered = answer(method, path, body)
        except KeyError:
            self.unknown.append(f"{method} {path}")
            return 404, "application/json", b'{"error": {"message": "not found"}}'
        return 200, kind, answered


def _kept(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    found = {name: value for name, value in headers if name not in _DROPPED}
    if "user-agent" in found:
        found["user-agent"] = _without_version(found["user-agent"])
    return dict(sorted(found.items()))


def _settled(value: Any, key: str = "") -> Any:
    """The value without what differs each time that the client is used, and with the beginnings of long texts."""
    if isinstance(value, dict):
        return {name: _settled(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_settled(one, key) for one in value]
    if not isinstance(value, str):
        return value
    for pattern, settled in _CHANGING:
        value = pattern.sub(settled, value)
    return value[:_CUT_CHARACTERS] if key in _CUT else value


def _without_version(agent: str) -> str:
    """The client's name: `OpenAI/Python` of `OpenAI/Python 1.2.3`, `python-httpx` of `python-httpx/0.28`."""
    first = agent.partition(" (")[0].partition(" ")[0]
    name, _, version = first.rpartition("/")
    return name if name and version[:1].isdigit() else first
