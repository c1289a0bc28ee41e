"""A client that does not read is dropped."""

import asyncio

import pytest
import uvicorn
from uvicorn.server import ServerState

from tpiedge.api.connection import FairTurns, HttpConnection
from tpiedge.api.limits import Limits

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Wire(asyncio.Transport):
    """As asyncio's, whose connection ends when the test says so."""

    def __init__(self):
        super().__init__({})
        self.unsent, self.closing, self.aborted = 0, False, asyncio.Event()

    def get_extra_info(self, name, default=None):
        return default

    def get_write_buffer_size(self):
        return self.unsent

    def is_closing(self):
        return self.closing

    def write(self, data):
        assert isinstance(data, bytes)

    def close(self):
        self.closing = True

    def abort(self):
        self.closing = True
        self.aborted.set()

    def pause_reading(self):
        pass

    resume_reading = pause_reading

    def set_write_buffer_limits(self, high=None, low=None):
        pass


class Exchange:
    """A connection with one request, and its answer, which waits for `say`."""

    def __init__(self, request):
        self._say = asyncio.Event()
        self.wire = Wire()
        config = uvicorn.Config(
            self._answer, http="h11", interface="asgi3", proxy_headers=False, log_config=None
        )
        self.connection = HttpConnection(
            Limits(write_s=0.05),
            FairTurns(),
            config=config,
            server_state=ServerState(),
            app_state={},
            _loop=None,
        )
        self.connection.connection_made(self.wire)
        self.connection.get_buffer(-1)[: len(request)] = request
        self.connection.buffer_updated(len(request))

    async def _answer(self, scope, receive, send):
        await self._say.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    async def say(self):
        self._say.set()
        while not self.connection.cycle.response_complete:
            await asyncio.sleep(0)


def seen(story):
    async def run():
        async with asyncio.timeout(20):
            return await story(Exchange(REQUEST))

    return asyncio.run(run())


def test_only_who_does_not_read_at_all_is_dropped():
    async def story(exchange):
        await exchange.say()
        exchange.wire.unsent = 100
        for _ in range(3):
            exchange.connection._look()
        assert not exchange.wire.closing, "it may ask more"
        exchange.wire.closing = True
        while exchange.wire.unsent > 1:
            exchange.wire.unsent -= 1
            exchange.connection._look()
        assert not exchange.wire.aborted.is_set()
        await exchange.wire.aborted.wait()
        exchange.connection.connection_lost(None)

    seen(story)


@pytest.mark.parametrize(
    ("descriptors", "connections"), [(256, 128), (1024, 512), (10_240, 4096), (1 << 62, 4096)]
)
def test_half_of_the_descriptors_are_for_workers(descriptors: int, connections: int) -> None:
    assert Limits().of_descriptors(descriptors).connections == connections
