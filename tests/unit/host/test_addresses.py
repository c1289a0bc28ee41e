import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tpiedge.errors import ProtocolError, UserError
from tpiedge.host import addresses


def record(address: str, family: int = socket.AF_INET) -> SimpleNamespace:
    return SimpleNamespace(family=family, address=address)


@pytest.mark.parametrize(
    ("interfaces", "expected"),
    [
        ({}, None),
        ({"lo": [record("127.0.0.1")], "eth0": [record("10.1.2.3")]}, "10.1.2.3"),
        ({"wlan0": [record("fe80::1", socket.AF_INET6), record("192.168.7.9")]}, "192.168.7.9"),
        ({"eth0": [record("169.254.3.4")], "eth1": [record("172.16.0.5")]}, "172.16.0.5"),
        ({"down": [record("10.1.2.3")]}, None),
    ],
)
def test_outgoing_host_without_a_route_is_an_interface_address(
    interfaces: dict[str, list[SimpleNamespace]], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_way(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(socket.socket, "connect", no_way)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces)
    states = {name: SimpleNamespace(isup=name != "down") for name in interfaces}
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
    assert addresses.outgoing_host() == expected


@pytest.mark.parametrize(
    "endpoint",
    ["tcp://127.0.0.1:7071", "tcp://192.168.1.20:65535", "tcp://[::1]:1", "tcp://[fe80::1%eth0]:7071"],
)
def test_numeric_endpoint_is_accepted(endpoint: str) -> None:
    assert addresses.check_endpoint(endpoint) == endpoint


@pytest.mark.parametrize(
    "endpoint",
    [
        *("", "tcp://:7071", "tcp://127.0.0.1", "tcp://127.0.0.1:*", "tcp://127.0.0.1:0"),
        "tcp://127.0.0.1:65536",
        *("tcp://127.0.0.1:+80", "tcp://127.0.0.1:8_0", "tcp://127.0.0.1:٨٠", "tcp://127.0.0.1:80\n"),
        *("tcp://127.0.0.256:80", "tcp://127.1:80", "tcp://example.org:80", "tcp://127.0.0.1:5;127.0.0.1:80"),
        *("tcp://::1:80", "tcp://[127.0.0.1]:80", "tcp://[fe80::1%a/b]:80", "tcp://224.0.0.1:80"),
        *("tcp://[ff02::1]:80", "ipc:///tmp/x:80"),
    ],
)
def test_invalid_endpoint_is_refused(endpoint: str) -> None:
    """No name that somebody else would have to look up, and nothing that a socket reads otherwise."""
    with pytest.raises(ProtocolError, match=r"it says that it listens at .* which is no address"):
        addresses.check_endpoint(endpoint)


@pytest.mark.parametrize(
    ("control", "listens"),
    [
        ("tcp://127.0.0.1:7070", "tcp://127.0.0.1:*"),
        ("tcp://255.255.255.255:1", "tcp://127.0.0.1:*"),
        ("tcp://[fe80::1%nowhere]:7070", "tcp://127.0.0.1:*"),
    ],
)
def test_node_listens_on_loopback_for_a_local_or_unreachable_master(control: str, listens: str) -> None:
    assert addresses.listening_address(control) == listens


@pytest.mark.parametrize(
    ("endpoint", "control", "expected"),
    [
        ("tcp://0.0.0.0:7071", "tcp://10.0.0.1:7070", "tcp://10.0.0.1:7071"),
        ("tcp://[::]:7071", "tcp://[fe80::1%eth0]:7070", "tcp://[fe80::1%eth0]:7071"),
        ("tcp://10.0.0.7:5", "tcp://10.0.0.1:7070", "tcp://10.0.0.7:5"),
        ("tcp://[fe80::2%wlan0]:5", "tcp://[fe80::1%eth0]:7070", "tcp://[fe80::2%eth0]:5"),
        ("tcp://[fd00::2]:5", "tcp://[fe80::1%eth0]:7070", "tcp://[fd00::2]:5"),
    ],
)
def test_data_endpoint_is_completed_from_the_control_address(
    endpoint: str, control: str, expected: str
) -> None:
    assert addresses.data_endpoint(endpoint, control) == expected


@pytest.mark.parametrize(
    ("source", "endpoint", "expected"),
    [
        ("", "tcp://10.0.0.7:5", "tcp://10.0.0.7:5"),
        ("10.0.0.7", "tcp://192.0.2.1:22", "tcp://10.0.0.7:22"),
        ("::ffff:10.0.0.7", "tcp://10.0.0.7:5", "tcp://10.0.0.7:5"),
        ("fe80::2%eth0", "tcp://[fe80::2%wlan0]:5", "tcp://[fe80::2%eth0]:5"),
    ],
)
def test_endpoint_host_is_replaced_by_the_source_address(source: str, endpoint: str, expected: str) -> None:
    assert addresses.endpoint_at(source, endpoint) == expected


def test_a_link_local_address_needs_its_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    scope = 4
    family = socket.AF_INET6, socket.SOCK_STREAM, 6, ""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(*family, ("fe80::1", 7070, 0, scope))])
    monkeypatch.setattr(socket, "if_indextoname", {4: "eth0"}.__getitem__)
    address = addresses.resolve(addresses.parse_address("fe80::1%eth0", 7070))
    assert str(address) == "[fe80::1%eth0]:7070"
    assert address.beside(1).zmq == "tcp://[fe80::1%eth0]:7071"
    assert addresses.parse_address(str(address)) == address
    scope = 0
    with pytest.raises(UserError, match=r"needs an interface: write it like fe80::1%eth0"):
        addresses.resolve(addresses.Address("fe80::1", 7070))


LISTENS = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""
FORKS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LISTENS!r}])"
STARTS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {FORKS!r}])"


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Callable[[str], tuple[int, int]]]:
    """Starts `tpiedge master`, or what it starts in its turn, and gives its pid and the port that it listens on."""
    script = tmp_path / "tpiedge"
    started = []

    def start(program: str) -> tuple[int, int]:
        script.write_text(program)
        command = [sys.executable, script, "master"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return process.pid, int(process.stdout.readline())

    yield start
    for process in started:
        process.communicate(timeout=30)


@pytest.mark.parametrize("program", [LISTENS, STARTS], ids=["itself", "its node"])
def test_port_holder_names_the_tpiedge_command(
    listening: Callable[[str], tuple[int, int]], program: str
) -> None:
    pid, port = listening(program)
    assert addresses.port_state(port, "127.0.0.1") == "in use"
    assert addresses.holder(port) == f"another tpiedge master, pid {pid}"


def test_port_holder_names_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(process: psutil.Process) -> list[str]:
        raise psutil.AccessDenied(process.pid)

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        own = f"{psutil.Process().name()}, pid {os.getpid()}"
        assert addresses.holder(port) == own
        monkeypatch.setattr(psutil.Process, "cmdline", denied)
        assert addresses.holder(port) == own
    assert addresses.holder(port) == "another program"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("pi", "pi", 7070),
        ("10.0.0.1:65000", "10.0.0.1", 65000),
        ("[::1]:5", "::1", 5),
        ("[fe80::1%eth0]", "fe80::1%eth0", 7070),
        ("::1", "::1", 7070),
    ],
)
def test_host_and_port_are_parsed(text: str, host: str, port: int) -> None:
    address = addresses.parse_address(text, 7070)
    assert address == addresses.Address(host, port)
    assert addresses.parse_address(str(address)) == address


_NONE = (
    *("", ":", "pi:", "pi:0", "pi:65532", "pi:x", "pi:١", "a b", "[::1", "[::1]5", "-x:1", "tcp://a:1"),
    *("a/b", "9000", "x" * 300),
)


@pytest.mark.parametrize("text", _NONE)
def test_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not an address"):
        addresses.parse_address(text, 7070)
