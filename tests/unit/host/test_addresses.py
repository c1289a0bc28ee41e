"""The addresses that machines tell each other: which are believed, and where nodes listen."""

import ipaddress
import socket
from types import SimpleNamespace

import psutil
import pytest

from tpiedge.errors import ProtocolError, UserError
from tpiedge.host import addresses
from tpiedge.host.addresses import (
    FILES_OFFSET,
    Address,
    check_endpoint,
    data_endpoint,
    endpoint_at,
    lan_host,
    listening_address,
    own_networks,
    parse_address,
    resolve,
)


def test_the_ports_of_a_master_are_beside_one_another() -> None:
    assert Address("192.0.2.1", 7070).beside(FILES_OFFSET) == Address("192.0.2.1", 7072)


def record(address: str, family: int = socket.AF_INET) -> SimpleNamespace:
    return SimpleNamespace(family=family, address=address)


@pytest.mark.parametrize(
    ("interfaces", "expected"),
    [
        ({}, None),
        ({"lo": [record("127.0.0.1")]}, None),
        ({"lo": [record("127.0.0.1")], "eth0": [record("10.1.2.3")]}, "10.1.2.3"),
        ({"wlan0": [record("fe80::1", socket.AF_INET6), record("192.168.7.9")]}, "192.168.7.9"),
        ({"eth0": [record("169.254.3.4")], "eth1": [record("172.16.0.5")]}, "172.16.0.5"),
    ],
)
def test_the_first_address_that_others_can_reach(
    interfaces: dict[str, list[SimpleNamespace]], expected: str | None
) -> None:
    assert lan_host(interfaces) == expected


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://127.0.0.1:7071",
        "tcp://0.0.0.0:1",
        "tcp://192.168.1.20:65535",
        "tcp://[::1]:7071",
        "tcp://[2001:db8::1:2]:7071",
        "tcp://[fe80::1%eth0]:7071",
    ],
)
def test_a_numeric_address_is_believed(endpoint: str) -> None:
    assert check_endpoint(endpoint) == endpoint


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "tcp://",
        "tcp://:7071",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:",
        "tcp://127.0.0.1:*",
        "tcp://127.0.0.1:0",
        "tcp://127.0.0.1:65536",
        "tcp://127.0.0.1:-1",
        "tcp://127.0.0.1:+80",
        "tcp://127.0.0.1: 80",
        "tcp://127.0.0.1:8_0",
        "tcp://127.0.0.1:٨٠",
        "tcp://127.0.0.1:80 ",
        "tcp://127.0.0.1:80\n",
        "tcp://127.0.0.256:80",
        "tcp://127.1:80",
        "tcp://eth0:80",
        "tcp://example.org:80",
        "tcp://*:80",
        "tcp://127.0.0.1:5;127.0.0.1:80",
        "tcp://::1:80",
        "tcp://[::1:80",
        "tcp://[127.0.0.1]:80",
        "tcp://[fe80::1%a/b]:80",
        "tcp://224.0.0.1:80",
        "tcp://[ff02::1]:80",
        "ipc:///tmp/x:80",
        "pgm://127.0.0.1:80",
        "udp://127.0.0.1:80",
        "TCP://127.0.0.1:80",
    ],
)
def test_what_is_no_numeric_address_is_refused_in_words(endpoint: str) -> None:
    """No name that somebody else would have to look up, and nothing that a socket reads otherwise."""
    with pytest.raises(ProtocolError, match=r"it says that it listens at .* which is no address"):
        check_endpoint(endpoint)


def test_a_node_listens_where_it_reaches_the_master_from() -> None:
    assert listening_address("tcp://127.0.0.1:7070") == "tcp://127.0.0.1:*"


@pytest.mark.skipif(not socket.has_ipv6, reason="system: this computer has no IPv6")
def test_a_node_listens_on_ipv6_where_the_master_does() -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("system: this computer has no IPv6 loopback address")
    assert listening_address("tcp://[::1]:7070") == "tcp://[::1]:*"


@pytest.mark.parametrize("control", ["tcp://255.255.255.255:1", "tcp://[fe80::1%nowhere]:7070"])
def test_a_node_that_cannot_reach_the_master_listens_for_itself_alone(control: str) -> None:
    assert listening_address(control) == "tcp://127.0.0.1:*"


@pytest.mark.parametrize(
    ("endpoint", "control", "expected"),
    [
        ("tcp://0.0.0.0:7071", "tcp://10.0.0.1:7070", "tcp://10.0.0.1:7071"),
        ("tcp://0.0.0.0:7071", "tcp://[fd00::1]:7070", "tcp://[fd00::1]:7071"),
        ("tcp://[::]:7071", "tcp://[fe80::1%eth0]:7070", "tcp://[fe80::1%eth0]:7071"),
        ("tcp://10.0.0.7:5", "tcp://10.0.0.1:7070", "tcp://10.0.0.7:5"),
        ("tcp://[fd00::2]:5", "tcp://[fd00::1]:7070", "tcp://[fd00::2]:5"),
        ("tcp://[fe80::2%wlan0]:5", "tcp://[fe80::1%eth0]:7070", "tcp://[fe80::2%eth0]:5"),
        ("tcp://[fd00::2]:5", "tcp://[fe80::1%eth0]:7070", "tcp://[fd00::2]:5"),
    ],
)
def test_where_others_reach_a_node(endpoint: str, control: str, expected: str) -> None:
    """Every address of the master's machine means the one that is known; a link-local one is reached by the own
    interface, whatever its owner calls his."""
    assert data_endpoint(endpoint, control) == expected


@pytest.mark.parametrize(
    ("source", "endpoint", "expected"),
    [
        ("", "tcp://10.0.0.7:5", "tcp://10.0.0.7:5"),
        ("10.0.0.7", "tcp://10.0.0.7:5", "tcp://10.0.0.7:5"),
        ("10.0.0.7", "tcp://192.0.2.1:22", "tcp://10.0.0.7:22"),
        ("10.0.0.7", "tcp://0.0.0.0:5", "tcp://10.0.0.7:5"),
        ("::ffff:10.0.0.7", "tcp://10.0.0.7:5", "tcp://10.0.0.7:5"),
        ("fd00::2", "tcp://[fd00::3]:5", "tcp://[fd00::2]:5"),
        ("fe80::2%eth0", "tcp://[fe80::2%wlan0]:5", "tcp://[fe80::2%eth0]:5"),
    ],
)
def test_a_node_listens_at_the_address_that_it_speaks_from(source: str, endpoint: str, expected: str) -> None:
    assert endpoint_at(source, endpoint) == expected


def test_the_networks_of_this_machine_have_loopback() -> None:
    assert ipaddress.IPv4Network("127.0.0.0/8") in own_networks()


def link_local(monkeypatch: pytest.MonkeyPatch, scope: int) -> None:
    """The resolver finds a link-local address, as glibc and Python tell it: the interface is a number of its own."""
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1", 7070, 0, scope))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "if_indextoname", {4: "eth0"}.__getitem__)
    interfaces = {"lo": [], "eth0": [], "wlan0": []}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces)


def test_a_link_local_address_keeps_its_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    link_local(monkeypatch, 4)
    address = resolve(parse_address("fe80::1%eth0", 7070))
    assert str(address) == "[fe80::1%eth0]:7070"
    assert address.beside(1).zmq == "tcp://[fe80::1%eth0]:7071"
    assert parse_address(str(address)) == address


def test_a_link_local_address_without_an_interface_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    link_local(monkeypatch, 0)
    words = (
        r"link-local address, which needs an interface: like fe80::1%eth0 \(interfaces here: eth0, wlan0\)"
    )
    with pytest.raises(UserError, match=words):
        resolve(parse_address("fe80::1", 7070))


def test_an_interface_that_only_the_master_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token has the master's name of it."""
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"lo": [], "wlan0": []})
    words = r"no interface nowhere0 to reach fe80::1%nowhere0: say by which, like fe80::1%wlan0"
    with pytest.raises(UserError, match=words):
        resolve(parse_address("fe80::1%nowhere0", 7070))


@pytest.mark.parametrize(
    ("own", "expected"),
    [("192.168.7.9", "tcp://[fe80::2%enp3s0]:5"), ("127.0.0.1", "tcp://[fe80::2%eth0]:5")],
)
def test_a_node_that_knows_the_master_by_another_address_reaches_link_local_ones_by_its_own_interface(
    own: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the master's machine the interface has the name that the master says."""
    monkeypatch.setattr(addresses, "_own_address", lambda _control: (own, 1234))
    interfaces = {"lo": [record("127.0.0.1")], "enp3s0": [record("192.168.7.9")]}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces)
    assert data_endpoint("tcp://[fe80::2%eth0]:5", "tcp://192.168.7.1:7070") == expected
