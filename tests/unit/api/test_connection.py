"""What a connection says of the bytes of an answer: whether the system has them. And whose turn it is."""

import asyncio

import pytest
import uvicorn
from uvicorn.server import ServerState

from tpiedge.api.connection import ConnectionMaker, FairTurns
from tpiedge.api.limits import Limits

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
CLOSED = b"GET / HTTP/1.0\r\n\r\n"


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


class Exchange:
    """A connection with one request, and its answer, which waits for `say`."""

    def __init__(self, request):
        self._say = asyncio.Event()
        self.wire = Wire()
        config = uvicorn.Config(
            self._answer, http="h11", interface="asgi3", proxy_headers=False, log_config=None
        )
        make = ConnectionMaker(Limits(write_s=0.05), None)
        self.connection = make(config=config, server_state=ServerState(), app_state={}, _loop=None)
        self.connection.connection_made(self.wire)
        self.connection.get_buffer(-1)[: len(request)] = request
        self.connection.buffer_updated(len(request))

    async def _answer(self, scope, receive, send):
        self.state = scope["state"]
        await self._say.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    async def say(self):
        self._say.set()
        while not self.connection.cycle.response_complete:
            await asyncio.sleep(0)

    async def end(self, error=None):
        await asyncio.sleep(0)
        self.connection.connection_lost(error)
        return self.state["unsent"]()


def seen(story, request=REQUEST):
    async def run():
        async with asyncio.timeout(20):
            return await story(Exchange(request))

    return asyncio.run(run())


@pytest.mark.parametrize("request_", [REQUEST, CLOSED])
def test_an_answer_that_went_out_has_left_nothing_whoever_closed(request_):
    async def story(exchange):
        await exchange.say()
        exchange.wire.unsent = 7
        counted = exchange.state["unsent"]()
        exchange.wire.unsent = 0
        return counted, await exchange.end()

    assert seen(story, request_) == (7, 0)


async def fails(exchange):
    await exchange.say()
    return await exchange.end(ConnectionResetError())


async def dropped(exchange):
    await exchange.say()
    exchange.state["drop"]()
    return await exchange.end()


async def left_before(exchange):
    await asyncio.sleep(0)
    exchange.connection.eof_received()
    await exchange.say()
    return await exchange.end()


async def lost_before(exchange):
    await asyncio.sleep(0)
    return await exchange.end()


@pytest.mark.parametrize("story", [fails, dropped, left_before, lost_before])
def test_what_the_system_did_not_take_is_lost(story):
    assert seen(story) is None


def test_whoever_does_not_read_the_last_answer_is_dropped():
    async def story(exchange):
        await exchange.say()
        exchange.wire.unsent = 7
        assert exchange.wire.closing
        await exchange.wire.aborted.wait()
        return await exchange.end()

    assert seen(story, CLOSED) is None


def test_whoever_reads_slowly_or_is_not_waited_for_is_not_dropped():
    async def story(exchange):
        await exchange.say()
        exchange.wire.unsent = 100
        for _ in range(3):
            exchange.connection._look()
        assert not exchange.wire.closing, "it may ask more"
        exchange.wire.closing = True
        while exchange.wire.unsent:
            exchange.wire.unsent -= 1
            exchange.connection._look()
        return exchange.wire.aborted.is_set(), await exchange.end()

    assert seen(story) == (False, 0)


def test_in_a_turn_of_the_loop_each_client_does_one_thing() -> None:
    """Though one asks for much, and another comes later; what fails stops nobody."""
    turns, done, errors = FairTurns(), list[tuple[int, str]](), list[BaseException]()

    async def story() -> None:
        loop, number = asyncio.get_running_loop(), 0
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))

        def ask(client: str, *, fails: bool = False) -> None:
            def act() -> None:
                done.append((number, client))
                if fails:
                    raise ValueError

            turns.ask(client, act)

        for nth in range(6):
            ask("a", fails=nth == 2)
        ask("b")
        while len(done) < 9:
            assert number < 50
            if number == 3:
                ask("c")
                ask("a")
            await asyncio.sleep(0)
            number += 1

    asyncio.run(story())
    assert done[:2] == [(0, "a"), (0, "b")]
    assert (3, "c") in done
    of_a = [number for number, client in done if client == "a"]
    assert len(set(of_a)) == len(of_a) == 7
    assert [type(error) for error in errors] == [ValueError]


@pytest.mark.parametrize(
    ("descriptors", "connections"), [(256, 128), (1024, 512), (10_240, 4096), (1 << 62, 4096)]
)
def test_half_of_the_descriptors_are_for_workers(descriptors: int, connections: int) -> None:
    assert Limits().of_descriptors(descriptors).connections == connections
