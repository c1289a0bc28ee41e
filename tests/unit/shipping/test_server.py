import queue
import time
from typing import Any

import pytest

from tests.fakes.clock import ManualClock
from tpiedge.errors import UserError
from tpiedge.shipping.server import ShipServer
from tpiedge.transport.endpoint import EndpointClosed, Envelope
from tpiedge.wire.codec import decode
from tpiedge.wire.data import Fetch, FetchFailed

LIMIT_S = 30.0


class Hub:
    """Gives one request, then nothing until it is closed."""

    def __init__(self, request: Fetch) -> None:
        self._requests = [Envelope("w", request)]
        self.answers: queue.Queue[bytes] = queue.Queue()
        self._closed = False

    def recv(self, _timeout_s: float) -> Envelope | None:
        if self._closed:
            raise EndpointClosed
        return self._requests.pop() if self._requests else None

    def send_frame(self, frame: bytes, _name: str, _timeout_s: float) -> None:
        self.answers.put(bytes(frame))

    def close(self) -> None:
        self._closed = True


def test_non_utf8_path_in_error_keeps_server_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(_server: ShipServer, _request: Fetch) -> Any:
        raise UserError("cannot read /srv/mod\udcff/layer: No such file or directory")

    monkeypatch.setattr(ShipServer, "_answer", unreadable)
    hub: Any = Hub(Fetch(0, 7, "p", "manifest", "", 0, 1))
    clock = ManualClock()
    server = ShipServer(hub, (), clock)
    server.start()
    try:
        answer = decode(hub.answers.get(timeout=LIMIT_S))
        deadline = time.monotonic() + LIMIT_S
        while server._requesters and time.monotonic() < deadline:
            clock.advance(31.0)
        assert not server._requesters
    finally:
        server.close()
    assert isinstance(answer, FetchFailed)
    assert (answer.number, answer.message) == (
        7,
        "cannot read /srv/mod\\udcff/layer: No such file or directory",
    )
