import asyncio
import contextlib
import gc
import json
import resource
import socket
import sys
import threading
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import httpx
import psutil
import pytest

from tests.http.conftest import SECRET, wait_until
from tpiedge.api.limits import Limits
from tpiedge.sanitise import LINES

LIMIT_S = 20.0
CLIENTS = 2000
BODY, SLOW = (json.dumps({"model": "babbler", "prompt": prompt}).encode() for prompt in ("x", "slow"))
REQUEST, SLOW_REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    for body in (BODY, SLOW)
)
_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="system: addresses of 127.0.0.0/8 and prlimit are Linux's"
)


@contextlib.contextmanager
def silent(url, count):
    address = httpx.URL(url).host, httpx.URL(url).port
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(address, LIMIT_S)) for _ in range(count)]


def answer_to(connection, request):
    """All that comes, though the other end may close before it has read the request."""
    answer = b""
    with contextlib.suppress(ConnectionError):
        connection.sendall(request)
    with contextlib.suppress(ConnectionError):
        while some := connection.recv(4096):
            answer += some
    return answer


def status(url, source, limit_s=LIMIT_S):
    """Returns the status of /health for a client at `source`; 0 if the connection or `limit_s` ends first."""
    with httpx.Client(transport=httpx.HTTPTransport(local_address=source), timeout=limit_s) as http:
        try:
            return http.get(f"{url}/health").status_code
        except httpx.TransportError:
            return 0


def ask_from(url, source, prompt="x"):
    """The answer to a completion as a client at `source` gets it."""
    with httpx.Client(transport=httpx.HTTPTransport(local_address=source), timeout=LIMIT_S) as http:
        return http.post(f"{url}/v1/completions", json={"model": "babbler", "prompt": prompt})


def wait_healthy(url):
    wait_until(lambda: status(url, "127.0.0.1") == 200)


@pytest.mark.fault("H8", "one address has half of the connections at most: other clients are served")
@_linux
def test_address_using_all_its_connections_blocks_no_other(serve, caplog):
    server = serve(limits=Limits(connections=64, headers_s=600))
    with silent(server.url, 32):
        for late in range(100):
            with silent(server.url, 1) as (refused,):
                head, _, body = answer_to(refused, REQUEST if late % 2 else b"").partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nRetry-After: " in head
            assert json.loads(body)["error"]["code"] == "too_many_connections"
        assert status(server.url, "127.0.0.2") == 200
    wait_healthy(server.url)
    assert caplog.messages == ["refused an HTTP connection from 127.0.0.1: all places are taken"] * LINES


def test_silent_connections_are_closed_after_a_timeout(serve):
    server = serve(limits=Limits(connections=32, headers_s=0.5))
    with silent(server.url, 16):
        wait_healthy(server.url)


@pytest.fixture
def descriptors():
    """Enough of them for clients and server in one process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 3 * CLIENTS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"system: this process may open {hard} files, not {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def ask(address):
    """The connection, still open, and the head of the answer."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(REQUEST)
    return writer, await reader.readuntil(b"\r\n\r\n")


@pytest.mark.fault(
    "H8", "each of two thousand is answered, or told 429 and when to come again; `/health` answers"
)
@pytest.mark.usefixtures("descriptors")
def test_two_thousand_concurrent_clients_each_get_a_response(serve, service):
    """Four are served, all others are told to come back; no connection is cut off, and none is left over."""
    server = serve(limits=Limits(quiet_s=0.1, headers_s=600))
    files = psutil.Process().num_fds()

    async def everybody():
        async with asyncio.timeout(3 * LIMIT_S):
            found = await asyncio.gather(*(ask(server.address) for _ in range(CLIENTS)))
        assert await asyncio.to_thread(status, server.url, "127.0.0.1") == 200
        for writer, _ in found:
            writer.close()
        return [head for _, head in found]

    heads = asyncio.run(everybody())
    assert Counter(head.split()[1] for head in heads) == {b"200": 4, b"429": CLIENTS - 4}
    assert all(b"\r\nretry-after: " in head.lower() for head in heads if head.split()[1] == b"429")
    for _ in range(4):
        assert service.generations.get(timeout=LIMIT_S).cancelled.wait(LIMIT_S)
    gc.collect()
    wait_until(lambda: psutil.Process().num_fds() <= files + 4)


class Child:
    """A server in a process of its own, which may soon open no more files than it has."""

    def __init__(self, popen):
        self.url = httpx.URL(popen.stdout.readline().strip())
        self.process = psutil.Process(popen.pid)
        self._limits = self.process.rlimit(psutil.RLIMIT_NOFILE)
        wait_healthy(self.url)

    def allow(self, descriptors):
        self.process.rlimit(psutil.RLIMIT_NOFILE, (descriptors, self._limits[1]))

    def relieve(self):
        self.process.rlimit(psutil.RLIMIT_NOFILE, self._limits)


@pytest.mark.fault("P14", "without a descriptor left, clients wait, and those that are there are served")
@_linux
def test_new_clients_wait_while_no_descriptors_are_free(server_process):
    child = Child(server_process)
    with httpx.Client(base_url=child.url, timeout=LIMIT_S) as connected:
        assert connected.get("/health").status_code == 200
        child.allow(4)
        with silent(child.url, 50):
            assert status(child.url, "127.0.0.1", 1.0) == 0
            assert connected.get("/health").status_code == 200
            child.relieve()
            wait_healthy(child.url)


@pytest.fixture
def at_once(service):
    service.script = lambda generation: generation.finish("stop")


@pytest.mark.fault(
    "H8", "bodies that do not arrive take half of the places and bytes, at most: others are served"
)
@pytest.mark.parametrize("limits", [Limits(preparing=16), Limits(bodies_bytes=16_000)], ids=["many", "large"])
@pytest.mark.usefixtures("at_once")
@_linux
def test_client_withholding_request_bodies_blocks_no_other(serve, limits):
    server = serve(limits=limits)
    begun = REQUEST.removesuffix(BODY).replace(b"Length: %d" % len(BODY), b"Length: 2000") + b" " * 1000
    with silent(server.url, 8) as slow:
        for connection in slow:
            connection.sendall(begun)
        wait_until(lambda: ask_from(server.url, "127.0.0.1").status_code == 429)
        assert "arriving at once" in ask_from(server.url, "127.0.0.1").json()["error"]["message"]
        assert ask_from(server.url, "127.0.0.2").status_code == 200
    wait_until(lambda: ask_from(server.url, "127.0.0.1").status_code == 200)


@pytest.fixture
def slow_tokenizer(service, monkeypatch):
    """Makes the tokenizer wait at the text "slow": a semaphore counts its waits, an event ends them."""
    begun, go_on = threading.Semaphore(0), threading.Event()

    class Slow:
        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def encode(self, text, **options):
            if text == "slow":
                begun.release()
                assert go_on.wait(LIMIT_S)
            return tokenizer.encode(text, **options)

    tokenizer = service.tokenizer
    monkeypatch.setattr(service, "tokenizer", Slow())
    return begun, go_on


@pytest.mark.fault(
    "H8", "prompts that take long to prepare make neither other clients nor the administrator wait"
)
@pytest.mark.usefixtures("at_once")
@_linux
def test_client_flooding_slow_prompts_delays_no_other(serve, slow_tokenizer):
    begun, go_on = slow_tokenizer
    url = serve(limits=Limits(preparing=32)).url
    with ThreadPoolExecutor(17) as pool:
        flood = [pool.submit(ask_from, url, "127.0.0.1", "slow") for _ in range(17)]
        try:
            assert all(begun.acquire(timeout=LIMIT_S) for _ in range(2))
            (refused,) = wait(flood, LIMIT_S, FIRST_COMPLETED).done
            assert refused.result().status_code == 429
            assert "16 of them yours" in refused.result().json()["error"]["message"]
            assert ask_from(url, "127.0.0.2").status_code == 200
            secret = {"Authorization": f"Bearer {SECRET}"}
            for path in ("nodes", "cluster"):
                assert httpx.get(f"{url}/admin/{path}", headers=secret, timeout=LIMIT_S).status_code == 200
            assert not begun.acquire(blocking=False)
        finally:
            go_on.set()
        assert {one.result().status_code for one in flood if one is not refused} <= {200, 429}


@pytest.mark.fault("H6", "while the prompt is prepared, or waits for that: what has not begun never does")
@pytest.mark.usefixtures("at_once")
def test_prompt_preparation_stops_when_its_client_leaves(serve, slow_tokenizer):
    """The places are free at once, and what had not begun never does."""
    begun, go_on = slow_tokenizer
    server = serve(limits=Limits(preparing=16))

    def wait_until_taken(places):
        wait_until(lambda: server._api._intake._places.used == places)

    try:
        with silent(server.url, 8) as leaving:
            for connection in leaving:
                connection.sendall(SLOW_REQUEST)
            wait_until_taken(8)
            assert all(begun.acquire(timeout=LIMIT_S) for _ in range(2))
        wait_until_taken(0)
    finally:
        go_on.set()
    assert ask_from(server.url, "127.0.0.1").status_code == 200
    assert not begun.acquire(blocking=False)
