"""A testbed for a program: brought up if it is not, its devices, and being on one of them. Linux, root."""

import contextlib
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from tpiedge.errors import ResourceError, UserError
from tpiedge.lab.testbed import enter, forwarding
from tpiedge.lab.testbed.containers.backend import in_containers
from tpiedge.lab.testbed.description import Description, Device, Link
from tpiedge.lab.testbed.groups import Controllers, processors
from tpiedge.lab.testbed.measuring import Measured, longest_rtt_s, measure_pair
from tpiedge.lab.testbed.namespaces import NAMESPACES, inside
from tpiedge.lab.testbed.reading import load_scenario
from tpiedge.lab.testbed.state import Network, Owner, TestbedState, names, prefix_of, read_state, require_root
from tpiedge.lab.testbed.testbed import change_link, down, up
from tpiedge.lab.testbed.topology import Expected, Topology
from tpiedge.launch.child import Place
from tpiedge.launch.timing import Timing
from tpiedge.progress import say


@dataclass(frozen=True)
class RunningDevice:
    """`described`: its limits. A command after `enter_command` runs on it, as the same process: its id, its signals and
    its standard input are the command's own."""

    described: Device
    address: str
    namespace: Path
    enter_command: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.described.name

    @property
    def place(self) -> Place:
        """The place for a node that runs on the device."""
        return Place(self.address, self.enter_command)


class RunningTestbed:
    """One that is up. `devices` in the order of the description."""

    def __init__(self, made: TestbedState) -> None:
        self._made = made
        self.name = made.name
        self.network: Network = made.network
        self.devices = tuple(
            RunningDevice(
                device,
                made.topology.addresses[device.name],
                NAMESPACES / f"{prefix_of(made.name)}{device.name}",
                enter_command(made.name, device.name),
            )
            for device in made.topology.description.devices
        )

    def device(self, name: str) -> RunningDevice:
        """Raises UserError that lists the names."""
        self._made.topology.description.device(name)
        return next(device for device in self.devices if device.name == name)

    @contextlib.contextmanager
    def inside(self, device: RunningDevice | str) -> Iterator[None]:
        """This thread's network is the device's: the sockets, threads and processes that it makes belong there and stay
        there. Its limits do not count for this process."""
        found = self.device(device) if isinstance(device, str) else device
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(inside(found.namespace))
            except OSError as error:
                raise ResourceError(f"cannot enter {found.namespace}: {error.strerror}") from None
            yield

    @property
    def links(self) -> Mapping[str, tuple[Link, Link]]:
        """The links as they are now, upwards and downwards, by the member below each."""
        members = self._made.topology.description.members
        return {member.name: (member.up, member.down) for member in members if member.uplink is not None}

    def set_all(self, links: Mapping[str, tuple[Link, Link]]) -> None:
        """Change links while they run; `links` as the property gives them. Raises UserError, ResourceError."""

        def becomes(pair: tuple[Link, Link]) -> Callable[[Link, Link], tuple[Link, Link]]:
            return lambda _up, _down: pair

        for name, pair in links.items():
            self._made = change_link(self.name, name, becomes(pair))

    def set_links(self, member: str, **changes: Any) -> None:
        """Changes the link between `member` and its uplink, in both directions, while it runs: latency_s, jitter_s,
        loss, bytes_per_s (None: no limit). Raises UserError, ResourceError.
        """

        def changed(up_link: Link, down_link: Link) -> tuple[Link, Link]:
            return replace(up_link, **changes), replace(down_link, **changes)

        self._made = change_link(self.name, member, changed)

    def expected(self, source: RunningDevice | str, target: RunningDevice | str) -> Expected:
        """What the way between two devices should give, as the links are now."""
        names = [item if isinstance(item, str) else item.name for item in (source, target)]
        return self._made.topology.expected(names[0], names[1])

    @property
    def device_names(self) -> tuple[str, ...]:
        return tuple(device.name for device in self.devices)

    def measure(self, source: str, target: str) -> Measured:
        """Takes some seconds. Raises ResourceError where nothing arrives."""
        longest_s = longest_rtt_s(self.expected(source, target), self.expected(target, source))
        return measure_pair(self, self.device(source), self.device(target), longest_s)

    def execute(self, device: str, command: Sequence[str]) -> NoReturn:
        """This process becomes the command on the device. Raises UserError for a device that is not there."""
        where = self.device(device)
        sys.stdout.flush()
        sys.stderr.flush()
        for number in (signal.SIGTSTP, signal.SIGPIPE):  # the command's own business
            signal.signal(number, signal.SIG_DFL)
        words = [*where.enter_command, *command]
        os.execv(words[0], words)


@contextlib.contextmanager
def open_testbed(
    given: str, *, name: str | None = None, network: Network | None = None, say: Callable[[str], object] = len
) -> Iterator[RunningTestbed]:
    """`given`: that of a testbed that is up, one that comes along, or a file. Where it is not up it is brought up, and
    taken down at the end of the block; if this process is killed, by the next command that uses the name.

    `name`: another than that of the file. Raises UserError, ResourceError.
    """
    require_root()
    running = _running(given, name)
    if running is not None:
        yield RunningTestbed(running)
        return
    scenario = load_scenario(given, name)
    made = up(scenario, network, say, Owner.own())
    try:
        yield RunningTestbed(made)
    finally:
        down(made.name, made.owner)


def describe(given: str) -> Description:
    """What `open_testbed` would give, without bringing it up: as it is, where it is up. Raises UserError, also where
    this user could not open it."""
    require_root()
    running = _running(given, None)
    return running.topology.description if running is not None else load_scenario(given).description


def attach(name: str) -> RunningTestbed:
    """One that is up already. Raises UserError where it is not."""
    made = read_state(name)
    if made is None or made.abandoned or not made.ready:
        raise UserError(f"the testbed {name[:40]} is not up: tpiedge testbed up {name[:40]}")
    return RunningTestbed(made)


def enter_command(name: str, device: str) -> tuple[str, ...]:
    """What a command is put after, so that it runs on the device."""
    full = f"{prefix_of(name)}{device}"
    groups = [folder / "cgroup.procs" for folder in Controllers.here().folders(full)]
    there = [str(members) for members in groups if members.exists()]
    return (sys.executable, "-I", "-S", enter.__file__, str(NAMESPACES / full), *there, "--")


def _running(given: str, name: str | None) -> TestbedState | None:
    """The testbed of that name, if it is up and says the same. Raises UserError where it cannot be used."""
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
    if found.network == "switch" and not forwarding.switches(wanted):
        raise UserError(f"the switch of the testbed {wanted} has ended: tpiedge testbed down {wanted}")
    return found


@dataclass(frozen=True)
class Emulated:
    """The testbed's name or file, and its first devices: one per node, in the order of ranks. `timing` suits its
    slowest and its worst way. It is a `Devices` of `local/launch.py`."""

    given: str
    devices: tuple[Device, ...]
    timing: Timing

    def __len__(self) -> int:
        return len(self.devices)

    @property
    def most_threads(self) -> int:
        """The processors of the smallest device: all nodes get the same number of threads."""
        return min(max(1, math.ceil(cpus)) for cpus in self.speeds)

    @property
    def speeds(self) -> tuple[float, ...]:
        """The devices' processors, at most those of this computer."""
        return tuple(min(device.cpus or math.inf, float(processors())) for device in self.devices)

    def memory_bytes(self, rank: int, wanted: int | None) -> int | None:
        """The smaller of the device's limit and `wanted`; None if there is neither."""
        limits = [limit for limit in (self.devices[rank].memory_bytes, wanted) if limit is not None]
        return min(limits, default=None)

    @contextmanager
    def places(self) -> Iterator[tuple[Place, ...]]:
        """The nodes' places, in rank order. Within the block this thread's network is the first device's. A testbed
        that was not up is taken down at the end."""
        with open_testbed(self.given, say=say) as running:
            places = tuple(device.place for device in running.devices[: len(self.devices)])
            with running.inside(running.devices[0]):
                yield places


def emulated(given: str, nodes: int | None) -> Emulated:
    """The first `nodes` devices, by default all. Raises UserError."""
    description = describe(given)
    devices = description.devices
    if nodes is not None and nodes > len(devices):
        raise UserError(f"--nodes {nodes} is more than the testbed {given} has devices: {len(devices)}")
    ways = Topology(description).expected_pairs().values()
    latency_s = max((way.latency_s + way.jitter_s for way in ways), default=0.0)
    timing = Timing.over(2 * latency_s, max((way.loss for way in ways), default=0.0))
    return Emulated(given, devices[:nodes], timing)
