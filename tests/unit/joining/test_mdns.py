import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.host.addresses import Address, parse_address
from tpiedge.joining.mdns import SERVICE, AnnouncedMaster, labels, read_record

PROTOCOL = 41


OWN = [ipaddress.IPv4Network(one) for one in ("127.0.0.0/8", "192.168.1.0/24", "10.0.0.0/16")]
CLUSTER = "0f3a9bc2"
SAID = {b"protocol": str(PROTOCOL).encode(), b"cluster": CLUSTER.encode()}


def desk(addresses=("192.168.1.10",)):
    return read_record(f"desk.{SERVICE}", addresses, 7070, SAID, OWN)


def test_a_master_is_found_under_its_name_and_address():
    assert desk() == AnnouncedMaster("desk", Address("192.168.1.10", 7070), PROTOCOL, CLUSTER)
    assert desk().words(PROTOCOL) == "desk at 192.168.1.10:7070"
    assert desk().words(PROTOCOL + 1) == "desk at 192.168.1.10:7070, which is of another version of tpiedge"


@pytest.mark.parametrize(
    ("addresses", "found"),
    [
        (["192.168.1.10"], "192.168.1.10"),
        (["8.8.8.8", "10.0.9.1"], "10.0.9.1"),
        (["10.0.9.1", "192.168.1.10"], "10.0.9.1"),
        *(
            ([address], None)
            for address in ("8.8.8.8", "127.0.0.1", "127.8.8.8", "224.0.0.251", "0.0.0.0", "fe80::1")
        ),
        (["192.168.1.10\n", "x", ""], None),
        ([], None),
    ],
)
def test_only_local_network_addresses_are_used(addresses, found):
    master = desk(addresses)
    assert (master and master.address.host) == found


@pytest.mark.fault(
    "H12", "names that others announce in the network are shown without control characters, or not at all"
)
@given(
    st.text() | st.text().map(lambda text: f"{text}.{SERVICE}"),
    st.lists(st.text() | st.ip_addresses().map(str) | st.just("192.168.1.10"), max_size=8),
    st.none() | st.integers(-(2**40), 2**40) | st.integers(1, 65535),
    st.dictionaries(st.binary(max_size=20), st.none() | st.binary(max_size=40))
    | st.fixed_dictionaries({b"protocol": st.none() | st.binary(max_size=10)}),
)
def test_any_mdns_announcement_is_sanitised(name, addresses, port, said):
    master = read_record(name, addresses, port, said, OWN)
    if master is None:
        return
    assert 1 <= len(master.name) <= 64
    line = master.words(PROTOCOL)
    assert line.isprintable()
    assert line.isascii()
    assert parse_address(str(master.address)) == master.address
    assert -1 <= master.protocol < 10**6
    assert len(master.cluster) in (0, 8)


@given(st.text())
def test_announced_name_is_a_valid_dns_label(host):
    names = labels(host, CLUSTER)
    assert len(set(names)) == 2
    for name in names:
        assert 1 <= len(name.encode()) <= 63
        assert "." not in name
        assert name.isprintable()
