"""Ways between devices: hand-made ones, the shipped scenarios' numbers, and trees of any shape."""

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.lab.testbed.description import Description, Device, Link, Router
from tpiedge.lab.testbed.reading import load_scenario, parse_description
from tpiedge.lab.testbed.switch.plan import SwitchPlan
from tpiedge.lab.testbed.topology import Expected, Topology, queue_bytes

LINKS = st.builds(
    Link,
    latency_s=st.sampled_from([0.0, 0.001, 0.003, 0.01]),
    jitter_s=st.sampled_from([0.0, 0.002]),
    loss=st.sampled_from([0.0, 0.0, 0.0, 0.1]),
    bytes_per_s=st.sampled_from([None, 1e6, 5e7]),
)


@st.composite
def descriptions(draw: st.DrawFn) -> Description:
    """Each router hangs below one before it."""
    routers = [Router("r0", None, Link(), Link())]
    for number in range(1, draw(st.integers(1, 6))):
        uplink = draw(st.sampled_from(routers)).name
        routers.append(Router(f"r{number}", uplink, draw(LINKS), draw(LINKS)))
    devices = [
        Device(f"d{number}", draw(st.sampled_from(routers)).name, draw(LINKS), draw(LINKS))
        for number in range(draw(st.integers(1, 5)))
    ]
    return Description("", tuple(draw(st.permutations(routers))), tuple(devices))


def test_a_way_up_and_down_again() -> None:
    mesh = Topology(load_scenario("two-room-mesh").description)
    assert mesh.path("laptop1", "desktop") == (("laptop1", "up"), ("study", "down"), ("desktop", "down"))
    assert mesh.path("desktop", "laptop1") == (("desktop", "up"), ("study", "up"), ("laptop1", "down"))
    assert mesh.path("desktop", "laptop3") == (("desktop", "up"), ("laptop3", "down"))


@pytest.mark.parametrize(
    ("name", "source", "target", "latency_ms", "megabits"),
    [
        ("paper-8", "device1", "device8", 1, 300),
        ("pair", "device1", "device2", 1, 300),
        ("delay-8", "device1", "device2", 1, None),
        ("laptops-4", "dell1", "macpro", 5, 510),
        ("laptops-4", "macair", "dell1", 7, 320),
        ("laptops-4", "dell1", "dell2", 3, 610),
        ("wired-lan", "computer1", "computer4", 0.2, 1000),
        ("two-room-mesh", "laptop1", "laptop2", 3, 250),
        ("two-room-mesh", "laptop1", "laptop3", 5, 150),
        ("wifi-home", "laptop", "desktop", 1.7, 120),
        ("wifi-home", "desktop", "laptop", 1.7, 200),
    ],
)
def test_what_the_scenarios_say(
    name: str, source: str, target: str, latency_ms: float, megabits: float | None
) -> None:
    found = Topology(load_scenario(name).description).expected(source, target)
    assert found.latency_s == pytest.approx(latency_ms / 1000)
    assert found.bytes_per_s == (None if megabits is None else megabits * 125_000)


def test_the_papers_hardware() -> None:
    paper, laptops = load_scenario("paper-8").description, load_scenario("laptops-4").description
    assert [(device.cpus, device.memory_bytes, device.swap_bytes) for device in paper.devices] == [
        (8.0, 8_000_000_000, 4_000_000_000)
    ] * 8
    assert len(paper.routers) == 9
    assert [(device.cpus, device.memory_bytes) for device in laptops.devices] == [
        (8.0, 16_000_000_000),
        (8.0, 8_000_000_000),
        (4.0, 8_000_000_000),
        (8.0, 16_000_000_000),
    ]


def test_losses_add_up_and_the_slowest_link_counts() -> None:
    links = [Link(0.001, 0.0, 0.1, 5.0), Link(0.002, 0.004, 0.5, None), Link(0.0, 0.0, 0.0, 3.0)]
    found = Expected.along(links)
    assert (found.latency_s, found.jitter_s, found.bytes_per_s) == (pytest.approx(0.003), 0.004, 3.0)
    assert found.loss == pytest.approx(0.55)
    assert Expected.along([]) == Expected(0.0, 0.0, 0.0, None)


@given(descriptions())
def test_every_way_is_the_shortest_one(description: Description) -> None:
    topology = Topology(description)
    for (source, target), found in topology.expected_pairs().items():
        path = topology.path(source, target)
        assert path[0] == (source, "up")
        assert path[-1] == (target, "down")
        assert len({name for name, _ in path}) == len(path)
        turned = [(name, {"up": "down", "down": "up"}[way]) for name, way in path]
        assert topology.path(target, source) == tuple(reversed(turned))
        common = set(topology.ascent(source)) & set(topology.ascent(target))
        assert not common & {name for name, _ in path}
        assert len(path) == len(topology.ascent(source)) + len(topology.ascent(target)) - 2 * len(common)
        links = [topology.link(*step) for step in path]
        assert found.latency_s == pytest.approx(math.fsum(link.latency_s for link in links))
        assert (found.loss == 0) == all(link.loss == 0 for link in links)


@given(descriptions())
def test_the_switch_is_told_all_of_it(description: Description) -> None:
    topology = Topology(description)
    namespaces = {device.name: Path("/run/netns") / device.name for device in description.devices}
    plan = topology.switch_plan(namespaces)
    assert SwitchPlan.from_json(plan.to_json()) == plan
    assert (
        len({port.address for port in plan.ports})
        == len({port.mac for port in plan.ports})
        == len(plan.ports)
    )
    for source, target in itertools.permutations(namespaces, 2):
        links = [plan.links[number] for number in plan.paths[source][target]]
        assert [link.name for link in links] == [" ".join(step) for step in topology.path(source, target)]
        assert math.fsum(link.latency_s for link in links) == topology.expected(source, target).latency_s
    for port in plan.ports:
        assert port.segmentation  # loss may change: the switch sees to it
        assert port.namespace == str(namespaces[port.device])


def test_other_links_than_the_description_says() -> None:
    before = Topology(load_scenario("two-room-mesh").description)
    after = before.with_links("study", Link(0.1, loss=0.5), Link(0.2))
    assert after.expected("desktop", "laptop1").latency_s == pytest.approx(0.103)
    assert after.expected("laptop1", "desktop").latency_s == pytest.approx(0.203)
    assert after.expected("laptop1", "laptop2") == before.expected("laptop1", "laptop2")
    assert not after.lossless("laptop2")


def test_addresses_are_those_of_the_order_in_the_file() -> None:
    text = '[[router]]\nname="r"\n' + "".join(f'[[device]]\nname="d{n}"\nuplink="r"\n' for n in range(3))
    topology = Topology(parse_description(text, "f"))
    assert topology.addresses == {"d0": "10.77.0.1", "d1": "10.77.0.2", "d2": "10.77.0.3", "r": "10.77.1.1"}


def test_queues_are_bounded() -> None:
    assert queue_bytes(None) == 1 << 22
    assert queue_bytes(1000.0) == 1 << 18
    assert queue_bytes(37_500_000.0) == 1_875_000
    assert queue_bytes(1e10) == 1 << 22
