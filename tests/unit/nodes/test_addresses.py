"""The address that a master tells others, where the routing table does not know it."""

import socket
from types import SimpleNamespace

import pytest

from tpiedge.nodes.addresses import lan_host


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
