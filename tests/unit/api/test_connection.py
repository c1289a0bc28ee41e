import asyncio

import pytest
import uvicorn
from uvicorn.server import ServerState

from tpiedge.api.connection import HttpConnection, RoundRobin
from tpiedge.api.limits import Limits


class Wire(asyncio.Transport):
    """A transport like asyncio's whose connection ends when the test says so."""

    def __init__(self):
        super().__init__({})
        self.unsent, self.closing, self.aborted = 0, False, asyncio.Event()

    def get_extra_info(self, name, default=None):
        return default

    def get_write_buffer_size(self):
        return self.unsent

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    def abort(self):
        self.closing = True
        self.aborted.set()

    def set_write_buffer_limits(self, high=None, low=None):
        pass


def test_non_reading_client_is_dropped_and_slow_one_kept():
    async def story():
        wire = Wire()
        config = uvicorn.Config(
            lambda _scope, _receive, _send: None,
            http="h11",
            interface="asgi3",
            proxy_headers=False,
            log_config=None,
        )
        more = {"server_state": ServerState(), "app_state": {}, "_loop": None}
        connection = HttpConnection(Limits(write_s=0.05), RoundRobin(), config=config, **more)
        other = HttpConnection(Limits(), RoundRobin(), config=config, **more)
        assert connection.get_buffer(-1) is not other.get_buffer(-1), "another server has another thread"
        connection.connection_made(wire)
        wire.unsent = 100
        for _ in range(3):
            connection._look()
        assert not wire.closing, "it may ask more"
        wire.closing = True
        while wire.unsent > 1:
            wire.unsent -= 1
            connection._look()
        assert not wire.aborted.is_set()
        async with asyncio.timeout(20):
            await wire.aborted.wait()
        connection.connection_lost(None)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("descriptors", "connections"), [(256, 128), (1024, 512), (10_240, 4096), (1 << 62, 4096)]
)
def test_half_of_the_descriptors_are_for_workers(descriptors: int, connections: int) -> None:
    assert Limits.of_context(512, descriptors).connections == connections
