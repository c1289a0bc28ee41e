"""A peer without a key of the cluster changes nothing, from any place and by any bytes."""

import contextlib
import random
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.process.command import run_command, wait_for
from tests.process.conftest import PROMPT, TOKENS
from tests.process.network.cluster import NetworkCluster
from tests.process.network.namespaces import BRIDGE, Namespaces
from tests.process.network.observed.proxy import Proxy
from tests.process.network.observed.recorded import STORY, Observed
from tests.process.serving.serving import START_S
from tpiedge.host.addresses import DATA_OFFSET, FILES_OFFSET, PAIRING_OFFSET, Address
from tpiedge.joining.identity import peer_name
from tpiedge.transport.admission import UnknownPeerPolicy
from tpiedge.transport.endpoint import CONTROL
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub

_PORTS = (0, DATA_OFFSET, FILES_OFFSET, PAIRING_OFFSET)
_SILENT = 100


def _greeting(mechanism: bytes) -> bytes:
    return b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)


def _client_hello() -> bytes:
    out = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="master").do_handshake()
    return out.read()


def _payloads() -> list[bytes]:
    noise = random.Random(7)
    return [
        noise.randbytes(4096),
        b"\xff" + noise.randbytes(63),
        b"GET / HTTP/1.1\r\nHost: master\r\n\r\n",
        _client_hello(),
        _greeting(b"CURVE") + noise.randbytes(4096),
        _greeting(b"CURVE") + b"\x06" + struct.pack("!Q", 1 << 62),
        _greeting(b"NULL") + b"\x04\x05\x05READY",
        _greeting(b"PLAIN") + b"\x04\x0a\x05HELLO\x01a\x01b",
        b"",
    ]


@pytest.mark.fault("W1", "connections are closed within seconds, and the answer under way goes on")
@pytest.mark.fault("W7", "a hundred of them on every port are closed within seconds, and members are served")
def test_garbage_connections_are_closed(
    observed: Observed, cluster: NetworkCluster, namespaces: Namespaces, story: str, exact
) -> None:
    """The answer is under way until all callers are there."""
    master = psutil.Process(cluster.master.pid)
    files = master.num_fds()
    with cluster.streaming(PROMPT, STORY) as stream, contextlib.ExitStack() as stack:
        with observed.held.holding():
            callers = stack.enter_context(_callers(cluster, namespaces))
        left = _wait_closed(callers, time.monotonic() + START_S)
        assert left == []
    assert (stream.error, stream.text) == (None, story)
    exact(cluster)
    wait_for(lambda: master.num_fds() <= files + 4, START_S)
    cluster.wait_until(lambda status: all(node["state"] == "ready" for node in status["nodes"]))


@contextlib.contextmanager
def _callers(cluster: NetworkCluster, namespaces: Namespaces) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        callers = []
        for offset in _PORTS:
            for payload in [*_payloads(), *[b""] * _SILENT]:
                with namespaces.inside("worker2"):
                    caller = stack.enter_context(_connected(cluster.address.beside(offset)))
                with contextlib.suppress(ConnectionError):  # it need not listen to the end
                    caller.sendall(payload)
                callers.append(caller)
        yield callers


def _connected(address: Address) -> socket.socket:
    deadline = time.monotonic() + START_S
    while True:
        try:
            return socket.create_connection((address.host, address.port), 5)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _wait_closed(callers: list[socket.socket], deadline: float) -> list[str]:
    waiting = {caller.fileno(): caller for caller in callers}
    poller = select.poll()
    for number in waiting:
        poller.register(number, select.POLLIN)
    while waiting and (remaining_s := deadline - time.monotonic()) > 0:
        for number, _ in poller.poll(remaining_s * 1000):
            if _has_ended(waiting[number]):
                poller.unregister(number)
                del waiting[number]
    return [str(caller.getpeername()) for caller in waiting.values()]


def _has_ended(caller: socket.socket) -> bool:
    try:
        return not caller.recv(4096)
    except ConnectionError:
        return True


@pytest.mark.fault("W4", "a worker with a token of another master says so in one line")
@pytest.mark.fault("W6", "the worker says that it is another master, and tells it nothing")
def test_a_master_with_another_key_is_refused(
    cluster: NetworkCluster, namespaces: Namespaces, tmp_path
) -> None:
    place = Address(namespaces.addresses[BRIDGE], cluster.port)
    with namespaces.inside(BRIDGE):
        unknown = UnknownPeerPolicy(peer_name)
        impostor = ZmqHub(place.zmq, CurveKeys.generate(), "impostor", {}, plane=CONTROL, unknown=unknown)
    with impostor, namespaces.inside("worker2"):
        ended = run_command("worker", "--connect", place, "--token", cluster.token(),
                            "--state", tmp_path / "state", "--cache", tmp_path / "cache")  # fmt: skip
        assert impostor.recv(0.0) is None
    assert ended.status == 2
    (line,) = ended.err.splitlines()
    assert f"{place} is a tpiedge master with another key" in line


@pytest.fixture(scope="module")
def proxy(observed: Observed, namespaces: Namespaces) -> Iterator[Proxy]:
    """Breaks the worker's connections, so that it makes new ones, which go through the proxy."""
    cluster = observed.cluster
    cluster.wait_ready(3)
    with Proxy(namespaces, cluster.port, len(_PORTS)) as middle:
        with namespaces.redirected("worker1", BRIDGE, cluster.port, len(_PORTS)):
            with namespaces.resetting("worker1"):
                cluster.wait_until(lambda status: not status["ready"])
            yield middle
        cluster.wait_ready(3)
    cluster.wait_until(lambda status: not status["ready"])


@pytest.mark.fault("W5", "recorded connections that are played again are cut; nothing changes")
def test_replayed_connections_are_closed_and_change_nothing(
    proxy: Proxy, cluster: NetworkCluster, namespaces: Namespaces, exact
) -> None:
    exact(cluster)
    epoch = cluster.status()["epoch"]
    recorded = [(port, bytes(heard)) for port, all_heard in proxy.heard.items() for heard in all_heard]
    assert {port for port, _ in recorded} >= {cluster.port, cluster.port + DATA_OFFSET}
    with contextlib.ExitStack() as stack:
        callers = []
        for port, heard in recorded:
            with namespaces.inside("worker2"):
                caller = stack.enter_context(_connected(Address(cluster.address.host, port)))
            with contextlib.suppress(ConnectionError):  # it need not listen to the end
                caller.sendall(heard)
            callers.append(caller)
        assert _wait_closed(callers, time.monotonic() + START_S) == []
    exact(cluster)
    assert cluster.status()["epoch"] == epoch


@pytest.mark.parametrize(("offset", "to_worker"), [(0, False), (DATA_OFFSET, True)])
@pytest.mark.fault("W5", "on the connection itself: it breaks and is made anew; the answer is exact")
def test_duplicated_data_breaks_only_its_link(
    proxy: Proxy, cluster: NetworkCluster, expected: str, exact, offset: int, to_worker: bool
) -> None:
    check_broken_link(proxy, cluster, expected, exact, offset, lambda port: proxy.repeat(port, to_worker))


@pytest.mark.parametrize(
    ("offset", "to_worker", "at"),
    [(0, True, -1), (DATA_OFFSET, False, 1)],
    ids=["from the master", "length"],
)
@pytest.mark.fault("W8", "the link breaks and is made anew; the answer is exact")
def test_a_flipped_bit_breaks_the_link_and_nothing_else(
    proxy: Proxy, cluster: NetworkCluster, expected: str, exact, offset: int, to_worker: bool, at: int
) -> None:
    check_broken_link(proxy, cluster, expected, exact, offset, lambda port: proxy.flip(port, to_worker, at))


def check_broken_link(
    proxy: Proxy, cluster: NetworkCluster, expected: str, exact, offset: int, harm: Callable[[int], None]
) -> None:
    port = cluster.port + offset
    links = proxy.connections[port]
    with cluster.streaming(PROMPT, TOKENS) as stream:
        harm(port)
        stream.join()
    wait_for(lambda: not proxy.pending, START_S)  # what is said now and then may be said after the answer
    assert (stream.error, stream.text) == (None, expected)
    wait_for(lambda: proxy.connections[port] > links, START_S)
    cluster.wait_ready(3)
    exact(cluster)
