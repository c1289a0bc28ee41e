"""The real server on a real socket, before a cluster that answers by script."""

import asyncio
import inspect
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import h11
import httpx
import openai
import pytest

from tests.fakes.service import FakeService
from tpiedge.api.guard import Guard
from tpiedge.api.keys import ApiKeys
from tpiedge.api.limits import Limits
from tpiedge.api.records import RecordFolder
from tpiedge.api.server import ApiServer
from tpiedge.host.addresses import Address
from tpiedge.model.template import ChatTemplate
from tpiedge.model.tokenizer import Tokenizer

DEMO = Path(__file__).parents[2] / "tpiedge" / "model" / "demo"
SECRET = "the-admin-secret"
PACK = "pack-1"
USUAL = Limits()
ACCESS = {"insecure", "origins", "public_names", "proxies", "share_prefixes", "scope_key"}


class InstantTemplate(ChatTemplate):
    """The rendering itself is tested elsewhere, and takes a process."""

    def __init__(self, text="") -> None:
        super().__init__({}, {})
        self._text = text

    def source(self, *, tools):
        return self._text

    def render(self, messages, *, add_generation_prompt=True, tools=None, variables=None):
        said = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        return said + ("<think>\n" if "opens" in self._text else "")


class KnowingTemplate(InstantTemplate):
    """A template of a model that thinks and calls tools."""

    def __init__(self) -> None:
        super().__init__("{{ tools }}<tool_call></tool_call><think></think>")


def answers(service, text, reason="stop"):
    def script(generation):
        generation.say(*service.tokenizer.encode(text, add_special=False))
        generation.finish(reason)

    service.script = script
    return service.tokenizer.decode(service.tokenizer.encode(text, add_special=False))


def leave_early(server, service, body):
    """The generation of a completion whose client leaves as soon as the work has begun: for one that left before, it
    never does."""
    body = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(server.address, 30) as leaving:
        leaving.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return service.generations.get(timeout=30)


@pytest.fixture(scope="session", autouse=True)
def _long_httpx_timeout():
    """Raises the default timeout of httpx, five seconds, which is too short beside other tests."""
    with pytest.MonkeyPatch.context() as patch:
        for one in (httpx.Client.__init__, httpx.request, httpx.get, httpx.post, httpx.delete, httpx.stream):
            patch.setitem(inspect.unwrap(one).__kwdefaults__, "timeout", httpx.Timeout(60.0))
        yield


@pytest.fixture(scope="session")
def tokenizer():
    return Tokenizer.open(DEMO)


@pytest.fixture
def service(tokenizer):
    made = FakeService(tokenizer, InstantTemplate(), vocab_size=2048)
    yield made
    made.template = None  # a test's own has a process


def wait_until(condition):
    pause = threading.Event()
    for _ in range(2000):
        if condition():
            return
        pause.wait(0.01)
    pytest.fail("not within the limit")


@pytest.fixture
def serve(service):
    """Starts servers, which are closed at the end of the test. Until then no other process gets their ports, even if a
    server is replaced."""
    servers, kept = [], []

    def start(*, keys=(), key_file=None, host="127.0.0.1", port=0, secret=SECRET, limits=USUAL, **options):
        if (host, port) == ("127.0.0.1", 0):
            kept.append(socket.socket())
            kept[-1].setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # the server may listen there beside it
            kept[-1].bind((host, 0))
            port = kept[-1].getsockname()[1]
        access = {name: options.pop(name) for name in ACCESS & options.keys()}
        guard = Guard(host, ApiKeys(keys, key_file), secret, **access)
        server = ApiServer(service, guard, Address(host, port), limits, **options)
        servers.append(server)
        server.start()
        return server

    yield start
    for one in [*servers, *kept]:
        one.close()


@pytest.fixture
def server_process():
    """A server in a process of its own, which prints its URL."""
    command = [sys.executable, "-m", "tests.http.served"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes, text=True) as popen:
        try:
            yield popen
        finally:
            try:
                popen.communicate(timeout=20)
            finally:
                popen.kill()
    assert popen.returncode == 0


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "answers"


@pytest.fixture
def keep(serve, folder):
    """A server that records, on the folder that another one may have left."""
    return lambda **options: serve(records=RecordFolder(folder, PACK), **options)


@pytest.fixture
def pieces(monkeypatch):
    """Lists the bytes of each piece that is parsed; fails if an iteration parses two pieces of one client."""
    sizes, now = [], set()
    receive = h11.Connection.receive_data

    def noted(http, data):
        if http.our_role is h11.CLIENT:  # of httpx
            receive(http, data)
            return
        assert not now
        now.add(http)
        asyncio.get_running_loop().call_soon(now.remove, http)
        sizes.append(len(data))
        receive(http, data)

    monkeypatch.setattr(h11.Connection, "receive_data", noted)
    return sizes


@pytest.fixture
def client(serve):
    server = serve(limits=Limits(ping_s=0.2))
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client
