"""The commands of the kernel's own network: who is cabled to whom, which way packets find, what tc is told."""

import ipaddress
from pathlib import Path

import pytest

from tpiedge.lab.testbed.description import Link
from tpiedge.lab.testbed.forwarding import (
    MemberCommand,
    interface_of,
    link_commands,
    network_commands,
    shaping,
)
from tpiedge.lab.testbed.reading import load_scenario, shipped_scenarios
from tpiedge.lab.testbed.topology import Topology


def commands(name: str) -> tuple[Topology, list[MemberCommand]]:
    topology = Topology(load_scenario(name).description)
    return topology, list(
        network_commands(topology, {member: Path("/n", member) for member in topology.members})
    )


def routes(found: list[MemberCommand]) -> dict[str, dict[str, str]]:
    """Member -> (destination -> interface)."""
    tables: dict[str, dict[str, str]] = {}
    for member, words in found:
        if words[:3] == ("ip", "route", "add"):
            tables.setdefault(member, {})[words[3]] = words[words.index("dev") + 1]
    return tables


@pytest.mark.parametrize("name", list(shipped_scenarios()))
def test_packets_follow_the_tree_whatever_hop_decides(name: str) -> None:
    """Every router looks into its own table only, as the kernel does; the ends of cables say where that leads."""
    topology, found = commands(name)
    tables = routes(found)
    uplinks = {member.name: interface_of(member) for member in topology.description.members}
    for (source, target), _ in topology.expected_pairs().items():
        at, way = source, []
        while at != target:
            table = tables[at]
            interface = table.get(f"{topology.addresses[target]}/32") or table["default"]
            if interface == uplinks[at]:
                way.append((at, "up"))
                at = topology.members[at].uplink or ""
            else:
                way.append((interface, "down"))
                at = interface
        assert tuple(way) == topology.path(source, target)


def test_the_commands_for_two_devices() -> None:
    _, found = commands("pair")
    assert [" ".join((member, *words)) for member, words in found[:7]] == [
        "router sh -c echo 1 > /proc/sys/net/ipv4/ip_forward",
        "device1 ip link add name eth0 type veth peer name device1 netns /n/router",
        "device1 ip link set dev eth0 up",
        "device1 ip addr add 10.77.0.1/32 dev eth0",
        "router ip link set dev device1 up",
        "router ip addr add 10.77.1.1/32 dev device1",
        "device1 ip route add default via 10.77.1.1 dev eth0 onlink",
    ]
    assert ("router", ("ip", "route", "add", "10.77.0.2/32", "dev", "device2")) in found
    assert [member for member, words in found if words[0] == "tc"] == [
        "device1",
        "router",
        "device2",
        "router",
    ]


def test_a_router_below_a_router_is_the_next_hop() -> None:
    topology, found = commands("two-room-mesh")
    study = topology.addresses["study"]
    wanted = (
        "ip",
        "route",
        "add",
        f"{topology.addresses['desktop']}/32",
        "via",
        study,
        "dev",
        "study",
        "onlink",
    )
    assert ("livingroom", wanted) in found
    assert all(ipaddress.ip_address(address) for address in topology.addresses.values())


@pytest.mark.parametrize(
    ("link", "wanted"),
    [
        (Link(), "noqueue"),
        (Link(0.00025), "netem limit 100000 delay 250us"),
        (Link(0.001, 0.002), "netem limit 100000 delay 2000us 1000us rate 100000000000bit"),
        (Link(loss=0.015), "netem limit 100000 delay 0us loss 1.5%"),
        (Link(0.001, bytes_per_s=37_500_000.0), "netem limit 1275 delay 1000us rate 300000000bit"),
        (Link(bytes_per_s=37_500_000.0), "tbf rate 300000000bit burst 65536b limit 1875000b"),
        (Link(bytes_per_s=1.25e8), "tbf rate 1000000000bit burst 125000b limit 4194304b"),
    ],
    ids=str,
)
def test_what_tc_is_told_of_a_link(link: Link, wanted: str) -> None:
    assert " ".join(shaping("eth0", link)) == f"tc qdisc replace dev eth0 root {wanted}"


def test_where_packets_get_lost_they_travel_one_by_one() -> None:
    single = ("ip", "link", "set", "dev", "eth0", "gso_max_segs", "1")
    assert [member for member, words in commands("wifi-home")[1] if words == single] == [
        "desktop",
        "laptop",
        "phone",
        "board",
    ]
    assert single not in [words for _, words in commands("paper-8")[1]]


def test_a_changed_link_is_told_to_both_of_its_ends() -> None:
    topology = Topology(load_scenario("pair").description).with_links("device1", Link(0.005), Link())
    assert list(link_commands(topology, "device1")) == [
        ("device1", shaping("eth0", Link(0.005))),
        ("router", shaping("device1", Link())),
    ]
    assert list(link_commands(topology, "router")) == []
