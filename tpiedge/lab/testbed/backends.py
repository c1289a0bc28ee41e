"""The two ways to make a testbed, behind one interface: network namespaces of this computer, and containers."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tpiedge.errors import TpiedgeError, UserError
from tpiedge.lab.testbed import forwarding, testbed
from tpiedge.lab.testbed.containers.backend import AttachedContainers, DockerTestbeds, in_containers
from tpiedge.lab.testbed.containers.engine import ContainerEngine
from tpiedge.lab.testbed.containers.plan import DEFAULT_IMAGE
from tpiedge.lab.testbed.description import Device, Link
from tpiedge.lab.testbed.groups import Controllers, processors
from tpiedge.lab.testbed.reading import Scenario
from tpiedge.lab.testbed.running import RunningTestbed, attach
from tpiedge.lab.testbed.state import Network, TestbedState, prefix_of, read_state, socket_of
from tpiedge.lab.testbed.switch.control import SwitchClient
from tpiedge.lab.testbed.testbed import members, namespaces_of
from tpiedge.lab.testbed.topology import Topology, links_of, pairs_of


class NamespaceTestbeds:
    """Linux, root. `network`: None is whatever is best.

    Every method raises UserError, ResourceError.
    """

    def __init__(self, network: Network | None = None) -> None:
        self._network = network

    @property
    def may_look(self) -> bool:
        """Whether this user may ask for the status of what others have brought up."""
        return os.geteuid() == 0

    def names(self) -> list[str]:
        """The names of all testbeds that are there or of which something is left."""
        return testbed.known_names() if sys.platform == "linux" else []

    def up(self, scenario: Scenario, say: Callable[[str], object]) -> None:
        """It stays until `down`. What a killed command left of it is removed before."""
        testbed.up(scenario, self._network, say)

    def down(self, name: str) -> bool:
        """End all processes in it and remove it, or what is left of it. Whether there was anything."""
        return testbed.down(name)

    def status(self, name: str) -> dict[str, Any] | None:
        """The record of `status_of`; None where the testbed is not there."""
        made = read_state(name)
        return None if made is None else status_of(made)

    def change_link(
        self, name: str, member: str, change: Callable[[Link, Link], tuple[Link, Link]]
    ) -> object:
        """`change` gets (up, down) of the link between `member` and its uplink, and says what they are from now on."""
        return testbed.change_link(name, member, change)

    def attach(self, name: str) -> RunningTestbed:
        """Raises UserError where it is not up."""
        return attach(name)


Backend = NamespaceTestbeds | DockerTestbeds
"""Both have the same methods."""
Attached = RunningTestbed | AttachedContainers
"""A testbed that is up: its `name`, `network`, `device_names`; `expected`, `measure` and `execute`."""


@contextmanager
def every_backend() -> Iterator[tuple[Backend, ...]]:
    """That of containers only where an engine answers."""
    try:
        engine = ContainerEngine.connect()
    except UserError:
        yield (NamespaceTestbeds(),)
        return
    with engine:
        yield NamespaceTestbeds(), DockerTestbeds(engine, DEFAULT_IMAGE)


@contextmanager
def backend_of(name: str) -> Iterator[Backend]:
    """The one that has the testbed; where none has, the first, which says so."""
    namespaces = NamespaceTestbeds()
    if name in namespaces.names():
        yield namespaces
        return
    with every_backend() as found:
        yield next((backend for backend in found if name in backend.names()), namespaces)


def require_free(name: str, chosen: Backend) -> None:
    """Raises UserError where another backend has a testbed of the name."""
    of_containers = isinstance(chosen, DockerTestbeds)
    if name in NamespaceTestbeds().names() if of_containers else in_containers(name):
        raise UserError(f"the testbed {name} is up already, another way: tpiedge testbed down {name} ends it")


def status_of(made: TestbedState) -> dict[str, Any]:
    """`backend`: namespaces, or docker, whose record has the same keys but `container` for `namespace` and no
    `totals`. `state` is one of: up; starting; abandoned (a command that was to end it was killed, or the computer
    restarted); broken (its switch has ended)."""
    topology = made.topology
    switch_pids = sorted(forwarding.switches(made.name))
    return {
        "backend": "namespaces",
        "name": made.name,
        "state": _state(made, switch_pids),
        "network": made.network,
        "switch_pids": switch_pids,
        "owner_pid": made.owner.pid if made.owner else None,
        "devices": [_device(made, topology, device) for device in topology.description.devices],
        "links": links_of(topology, _counters(made)),
        "pairs": pairs_of(topology),
        "totals": _totals(made),
    }


def _state(made: TestbedState, switch_pids: list[int]) -> str:
    if made.abandoned:
        return "abandoned"
    if not made.ready:
        return "starting"
    return "up" if switch_pids or made.network == "netem" else "broken"


def _device(made: TestbedState, topology: Topology, device: Device) -> dict[str, Any]:
    namespace = namespaces_of(made)[device.name]
    use = Controllers.here().use(f"{prefix_of(made.name)}{device.name}")
    return {
        "name": device.name,
        "address": topology.addresses[device.name],
        "namespace": namespace.name,
        "there": namespace.exists(),
        "cpus": device.cpus,
        "cpus_limited": device.cpus is not None and device.cpus < processors(),
        "memory_limit_bytes": use.limit_bytes,
        "swap_bytes": device.swap_bytes,
        "memory_used_bytes": use.used_bytes,
        "memory_peak_bytes": use.peak_bytes,
        "oom_kills": use.oom_kills,
        "processes": sorted(members(made.name, device.name)),
    }


def _counters(made: TestbedState) -> dict[str, dict[str, Any]]:
    """None of a switch that has ended."""
    with contextlib.suppress(TpiedgeError, OSError):
        return forwarding.counters(made, namespaces_of(made))
    return {}


def _totals(made: TestbedState) -> dict[str, int] | None:
    """TOTALS of switch/library.py; None where no switch answers."""
    if made.network == "switch":
        with contextlib.suppress(TpiedgeError, OSError):
            return dict(SwitchClient(socket_of(made.name)).counters()["totals"])
    return None
