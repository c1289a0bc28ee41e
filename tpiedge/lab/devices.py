"""`--testbed NAME`: the nodes of a local cluster on the devices of a testbed instead of side by side."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tpiedge.errors import UserError
from tpiedge.lab.testbed.description import Device
from tpiedge.lab.testbed.groups import processors
from tpiedge.lab.testbed.running import describe, open_testbed
from tpiedge.lab.testbed.topology import Topology
from tpiedge.launch.child import Place
from tpiedge.launch.timing import Timing
from tpiedge.progress import say


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
