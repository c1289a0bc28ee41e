"""Opens a testbed of namespaces. Reports its devices and status. Needs Linux and root."""

import contextlib
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from tpiedge.errors import ResourceError, TpiedgeError, UserError
from tpiedge.lab.testbed import enter
from tpiedge.lab.testbed.containers import in_containers
from tpiedge.lab.testbed.description import Description, Device, Link, load_scenario
from tpiedge.lab.testbed.isolation import Controllers, inside, processors
from tpiedge.lab.testbed.measuring import End, Measured, longest_rtt_s, measure_pair
from tpiedge.lab.testbed.state import (
    Owner,
    TestbedState,
    names,
    prefix_of,
    read_state,
    require_root,
    socket_of,
)
from tpiedge.lab.testbed.switch import SwitchClient
from tpiedge.lab.testbed.testbed import change_link, down, members, namespaces_of, switches, up
from tpiedge.lab.testbed.topology import Expected, Topology, device_record, links_of, pairs_of
from tpiedge.launch.bootstrap import Timing
from tpiedge.launch.child import Place
from tpiedge.local.layout import Devices
from tpiedge.progress import say


@dataclass(frozen=True)
class RunningDevice(End):
    """A device of a running testbed. `enter_command`: a prefix that runs a command on the device."""

    enter_command: tuple[str, ...]

    @property
    def place(self) -> Place:
        return Place(self.address, self.enter_command)


class RunningTestbed:
    """A running testbed. `devices` have the order of the description."""

    def __init__(self, made: TestbedState) -> None:
        self._made = made
        self.name = made.name
        topology, namespaces = made.topology, namespaces_of(made)
        self.devices = tuple(
            RunningDevice(name, topology.addresses[name], path, enter_command(made.name, name, path))
            for name, path in namespaces.items()
        )

    def device(self, name: str) -> RunningDevice:
        self._made.topology.description.device(name)
        return next(device for device in self.devices if device.name == name)

    @contextlib.contextmanager
    def inside(self, device: RunningDevice | str) -> Iterator[None]:
        """Puts this thread into the device's network for the block. New sockets and processes stay there."""
        found = self.device(device) if isinstance(device, str) else device
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(inside(found.namespace))
            except OSError as error:
                raise ResourceError(f"cannot enter {found.namespace}: {error.strerror}") from None
            yield

    @property
    def links(self) -> Mapping[str, tuple[Link, Link]]:
        """The current (up, down) of each member with an uplink."""
        members = self._made.topology.description.members
        return {member.name: (member.up, member.down) for member in members if member.uplink is not None}

    def set_all(self, links: Mapping[str, tuple[Link, Link]]) -> None:
        """Changes links. `links`: the new (up, down) by member."""
        for name, pair in links.items():
            self._made = change_link(self.name, name, partial(_both, *pair))

    def expected(self, source: RunningDevice | str, target: RunningDevice | str) -> Expected:
        names = [item if isinstance(item, str) else item.name for item in (source, target)]
        return self._made.topology.expected(names[0], names[1])

    @property
    def device_names(self) -> tuple[str, ...]:
        return tuple(device.name for device in self.devices)

    def measure(self, source: str, target: str) -> Measured:
        """Measures a pair for some seconds."""
        longest_s = longest_rtt_s(self.expected(source, target), self.expected(target, source))
        return measure_pair(self.device(source), self.device(target), longest_s)

    def execute(self, device: str, command: Sequence[str]) -> NoReturn:
        """Replaces this process by the command on the device."""
        where = self.device(device)
        sys.stdout.flush()
        sys.stderr.flush()
        for number in (signal.SIGTSTP, signal.SIGPIPE):  # the command's own business
            signal.signal(number, signal.SIG_DFL)
        words = [*where.enter_command, *command]
        os.execv(words[0], words)


@contextlib.contextmanager
def open_testbed(
    given: str, *, name: str | None = None, say: Callable[[str], object] = len
) -> Iterator[RunningTestbed]:
    """Yields a running testbed, or brings one up for the block."""
    require_root()
    running = _running(given, name)
    if running is not None:
        yield RunningTestbed(running)
        return
    scenario = load_scenario(given, name)
    made = up(scenario, say, Owner.own())
    try:
        yield RunningTestbed(made)
    finally:
        down(made.name, made.owner)


def _both(up: Link, down: Link, *_before: Link) -> tuple[Link, Link]:
    return up, down


def describe(given: str) -> Description:
    """Returns the description of the testbed that `open_testbed` opens."""
    require_root()
    running = _running(given, None)
    return running.topology.description if running is not None else load_scenario(given).description


def attach(name: str) -> RunningTestbed:
    made = read_state(name)
    if made is None or made.abandoned or not made.ready:
        raise UserError(f"the testbed {name[:40]} is not up: tpiedge testbed up {name[:40]}")
    return RunningTestbed(made)


def enter_command(name: str, device: str, namespace: Path) -> tuple[str, ...]:
    """Returns a prefix that runs a command on the device."""
    groups = [folder / "cgroup.procs" for folder in Controllers.here().folders(f"{prefix_of(name)}{device}")]
    there = [str(members) for members in groups if members.exists()]
    return (sys.executable, "-I", "-S", enter.__file__, str(namespace), *there, "--")


def status_of(made: TestbedState) -> dict[str, Any]:
    """Returns the record of `status`. Docker's records have `container` instead of `namespace`, and no `totals`."""
    topology, namespaces = made.topology, namespaces_of(made)
    switch_pids = sorted(switches(made.name))
    counted: dict[str, Any] = {"links": {}, "totals": None}
    with contextlib.suppress(TpiedgeError, OSError):  # a switch that has ended says nothing
        counted = SwitchClient(socket_of(made.name)).counters()
    state = "starting" if not made.ready else "up" if switch_pids else "broken"
    return {
        "backend": "namespaces",
        "name": made.name,
        "state": "abandoned" if made.abandoned else state,
        "switch_pids": switch_pids,
        "owner_pid": made.owner.pid if made.owner else None,
        "devices": [
            _device_status(made.name, device, topology.addresses[device.name], namespaces[device.name])
            for device in topology.description.devices
        ],
        "links": links_of(topology, counted["links"]),
        "pairs": pairs_of(topology),
        "totals": counted["totals"],
    }


def _device_status(testbed: str, device: Device, address: str, namespace: Path) -> dict[str, Any]:
    use = Controllers.here().use(f"{prefix_of(testbed)}{device.name}")
    return device_record(device, address, asdict(use)) | {
        "namespace": namespace.name,
        "there": namespace.exists(),
        "cpus_limited": device.cpus is not None and device.cpus < processors(),
        "processes": sorted(members(testbed, device.name)),
    }


def _running(given: str, name: str | None) -> TestbedState | None:
    """Returns the state of the running testbed, or None. Raises UserError if the testbed is unusable."""
    is_file = "/" in given or given.endswith(".toml")
    scenario = load_scenario(given, name) if is_file else None
    wanted = name or (scenario.name if scenario else given)
    found = read_state(wanted) if wanted in names() else None
    if found is None and in_containers(wanted):
        raise UserError(
            f"the testbed {wanted} is one of containers, and this needs one of namespaces: tpiedge testbed down "
            f"{wanted}, or start 'tpiedge master' and 'tpiedge worker' on it with 'tpiedge testbed exec'"
        )
    if found is None or found.abandoned or not found.ready or found.owner is not None:
        return None  # `up` decides
    if scenario is not None and scenario.text != found.text:
        raise UserError(f"the testbed {wanted} is up with another description: tpiedge testbed down {wanted}")
    if not switches(wanted):
        raise UserError(f"the switch of the testbed {wanted} has ended: tpiedge testbed down {wanted}")
    return found


def timing_over(round_trip_s: float, loss: float) -> Timing:
    timeout_s = max(Timing().timeout_s, 8 * round_trip_s)
    # Beyond 1 % loss, TCP doubles its waits.
    return Timing(timeout_s=3 * timeout_s if loss > 0.01 else timeout_s)


def emulated(given: str, nodes: int | None) -> Devices:
    """Returns the first `nodes` devices; None means all."""
    description = describe(given)
    devices = description.devices[:nodes]
    if nodes is not None and nodes > len(devices):
        raise UserError(f"--nodes {nodes} is more than the testbed {given} has devices: {len(devices)}")
    ways = Topology(description).expected_pairs().values()
    latency_s = max((way.latency_s + way.jitter_s for way in ways), default=0.0)
    timing = timing_over(2 * latency_s, max((way.loss for way in ways), default=0.0))
    speeds = tuple(min(device.cpus or math.inf, float(processors())) for device in devices)
    most_threads = min((max(1, math.ceil(cpus)) for cpus in speeds), default=1)

    @contextmanager
    def places() -> Iterator[tuple[Place, ...]]:
        with open_testbed(given, say=say) as running, running.inside(running.devices[0]):
            yield tuple(device.place for device in running.devices[: len(devices)])

    return Devices(speeds, tuple(device.memory_bytes for device in devices), most_threads, timing, places)
