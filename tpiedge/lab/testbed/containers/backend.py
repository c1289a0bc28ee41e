"""Testbeds of containers as the commands want them: see backends.py."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from tpiedge.errors import ResourceError, TpiedgeError, UserError
from tpiedge.lab.testbed.containers import testbed as containers
from tpiedge.lab.testbed.containers.engine import ContainerEngine
from tpiedge.lab.testbed.containers.plan import container_name
from tpiedge.lab.testbed.containers.terminal import run_here
from tpiedge.lab.testbed.containers.testbed import Containers
from tpiedge.lab.testbed.description import Device, Link
from tpiedge.lab.testbed.measuring import Measured, longest_rtt_s
from tpiedge.lab.testbed.reading import Scenario
from tpiedge.lab.testbed.state import Network
from tpiedge.lab.testbed.topology import Expected, Topology, links_of, pairs_of

_LISTING_S = 2.0
_UNKNOWN: Mapping[str, Any] = {
    "used_bytes": None,
    "peak_bytes": None,
    "limit_bytes": None,
    "oom_kills": 0,
    "processes": [],
}


class DockerTestbeds:
    """The same methods as NamespaceTestbeds. The engine stays its owner's."""

    def __init__(self, engine: ContainerEngine, image: str) -> None:
        self._engine = engine
        self._image = image

    @property
    def may_look(self) -> bool:
        return True

    def names(self) -> list[str]:
        return containers.known_names(self._engine)

    def up(self, scenario: Scenario, say: Callable[[str], object]) -> None:
        containers.bring_up(self._engine, scenario, self._image, say)

    def down(self, name: str) -> bool:
        return containers.remove(self._engine, name)

    def status(self, name: str) -> dict[str, Any] | None:
        found = containers.find(self._engine, name)
        return None if found is None else _status(self._engine, found)

    def change_link(self, name: str, member: str, change: Callable[[Link, Link], tuple[Link, Link]]) -> None:
        containers.change_link(self._engine, self._running(name), member, change)

    def attach(self, name: str) -> "AttachedContainers":
        return AttachedContainers(self._engine, self._running(name))

    def _running(self, name: str) -> Containers:
        found = containers.find(self._engine, name)
        if found is None or found.state in ("starting", "abandoned"):
            raise UserError(f"the testbed {name} is not up: tpiedge testbed up {name} --backend docker")
        if found.state == "broken":
            raise UserError(f"the switch of the testbed {name} has ended: tpiedge testbed down {name}")
        return found


def in_containers(name: str) -> bool:
    """Whether there is such a testbed of containers; not where no engine says so at once: who asks needs none."""
    try:
        with ContainerEngine.connect(_LISTING_S) as engine:
            return name in containers.known_names(engine)
    except TpiedgeError:
        return False


class AttachedContainers:
    """A testbed of containers that is up, as RunningTestbed is."""

    def __init__(self, engine: ContainerEngine, found: Containers) -> None:
        self._engine = engine
        self._found = found
        self.name: str = found.name
        self.network: Network = "switch"
        self.device_names = tuple(device.name for device in found.topology.description.devices)

    @cached_property
    def _topology(self) -> Topology:
        state = containers.ask(self._engine, self._found, {"do": "state", "pids": {}})
        return containers.current_topology(self._found, state)

    def expected(self, source: str, target: str) -> Expected:
        return self._topology.expected(source, target)

    def measure(self, source: str, target: str) -> Measured:
        longest_s = longest_rtt_s(self.expected(source, target), self.expected(target, source))
        return containers.measure(self._engine, self._found, source, target, longest_s)

    def execute(self, device: str, command: Sequence[str]) -> int:
        self._found.topology.description.device(device)
        container = self._found.devices.get(device)
        if container is None or not container.running:
            raise ResourceError(f"the container of {device} has ended: tpiedge testbed down {self.name}")
        return run_here(self._engine, container.id, command)


def _status(engine: ContainerEngine, found: Containers) -> dict[str, Any]:
    if found.switch is None:  # nothing says what it was
        return _record(found, [], [], [])
    state: dict[str, Any] = {"counters": {"links": {}}, "links": {}, "devices": {}}
    with contextlib.suppress(TpiedgeError):  # a switch that has ended says nothing
        state = containers.ask(engine, found, {"do": "state", "pids": found.pids})
    topology = containers.current_topology(found, state)
    devices = [_device(found, topology, device, state) for device in topology.description.devices]
    return _record(found, devices, links_of(topology, state["counters"]["links"]), pairs_of(topology))


def _record(
    found: Containers, devices: list[dict[str, Any]], links: list[dict[str, Any]], pairs: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "backend": "docker",
        "name": found.name,
        "state": found.state,
        "network": "switch",
        "switch_pids": [found.switch.pid] if found.switch and found.switch.running else [],
        "owner_pid": None,
        "devices": devices,
        "links": links,
        "pairs": pairs,
    }


def _device(
    found: Containers, topology: Topology, device: Device, state: Mapping[str, Any]
) -> dict[str, Any]:
    use = {**_UNKNOWN, **state["devices"].get(device.name, {})}
    container = found.devices.get(device.name)
    return {
        "name": device.name,
        "address": topology.addresses[device.name],
        "container": container_name(found.name, device.name),
        "there": found.connected(device.name),
        "cpus": device.cpus,
        "cpus_limited": container is not None and container.cpus_limited,
        "memory_limit_bytes": use["limit_bytes"],
        "swap_bytes": device.swap_bytes,
        "memory_used_bytes": use["used_bytes"],
        "memory_peak_bytes": use["peak_bytes"],
        "oom_kills": use["oom_kills"],
        "processes": use["processes"],
    }
