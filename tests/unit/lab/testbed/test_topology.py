import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.lab.testbed.description import Description, Device, Link, NetworkRouter, load_scenario
from tpiedge.lab.testbed.running import timing_over
from tpiedge.lab.testbed.switch import SwitchPlan
from tpiedge.lab.testbed.topology import Topology
from tpiedge.launch.bootstrap import Timing

LINKS = st.builds(
    Link,
    latency_s=st.sampled_from([0.0, 0.001, 0.003, 0.01]),
    jitter_s=st.sampled_from([0.0, 0.002]),
    loss=st.sampled_from([0.0, 0.0, 0.0, 0.1]),
    bytes_per_s=st.sampled_from([None, 1e6, 5e7]),
)


@st.composite
def descriptions(draw: st.DrawFn) -> Description:
    routers = [NetworkRouter("r0", None, Link(), Link())]
    for number in range(1, draw(st.integers(1, 6))):
        uplink = draw(st.sampled_from(routers)).name
        routers.append(NetworkRouter(f"r{number}", uplink, draw(LINKS), draw(LINKS)))
    devices = [
        Device(f"d{number}", draw(st.sampled_from(routers)).name, draw(LINKS), draw(LINKS))
        for number in range(draw(st.integers(1, 5)))
    ]
    return Description("", tuple(draw(st.permutations(routers))), tuple(devices))


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
def test_scenario_paths_have_the_expected_latency_and_rate(
    name: str, source: str, target: str, latency_ms: float, megabits: float | None
) -> None:
    found = Topology(load_scenario(name).description).expected(source, target)
    assert found.latency_s == pytest.approx(latency_ms / 1000)
    assert found.bytes_per_s == (None if megabits is None else megabits * 125_000)


@given(descriptions())
def test_every_path_is_the_shortest(description: Description) -> None:
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
def test_switch_plan_describes_the_whole_topology(description: Description) -> None:
    topology = Topology(description)
    namespaces = {device.name: Path("/run/netns") / device.name for device in description.devices}
    plan = topology.switch_plan(namespaces)
    assert SwitchPlan.from_json(plan.to_json()) == plan
    assert len({port.address for port in plan.ports}) == len(plan.ports)
    for source, target in itertools.permutations(namespaces, 2):
        links = [plan.links[number] for number in plan.paths[source][target]]
        assert [link.name for link in links] == [" ".join(step) for step in topology.path(source, target)]
        assert math.fsum(link.latency_s for link in links) == topology.expected(source, target).latency_s
    queues = {None: 1 << 22, 1e6: 1 << 18, 5e7: 2_500_000}  # a twentieth of a second, within bounds
    assert all(link.queue_bytes == queues[link.bytes_per_s] for link in plan.links)
    for port in plan.ports:
        assert port.namespace == str(namespaces[port.device])


@pytest.mark.fault("P10", "slow and lossy links are given more time before a node counts as lost")
def test_slow_and_lossy_paths_get_longer_timeouts() -> None:
    assert timing_over(0.02, 0.01) == Timing()
    assert Timing().timeout_s + Timing().heartbeat_s < 2, "links of a room keep the promise of two seconds"
    assert timing_over(0.4, 0.0).timeout_s == 8 * 0.4
    assert timing_over(0.4, 0.05).timeout_s == 3 * 8 * 0.4
