"""`--testbed NAME`: the nodes of a local cluster on the devices of a testbed instead of side by side.

Most runs have no testbed, so the modules that bring one up are imported only if one is given.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tpiedge.errors import UserError
from tpiedge.launch.child import Place
from tpiedge.launch.timing import Timing
from tpiedge.progress import say
from tpiedge.testbed.description import Device

__all__ = ["Emulated", "emulated", "places_on"]


@dataclass(frozen=True)
class Emulated:
    """The testbed's name or file, and its first devices: one per node, in the order of ranks. `timing` suits its
    slowest and its worst way."""

    given: str
    devices: tuple[Device, ...]
    timing: Timing

    @property
    def most_threads(self) -> int:
        """The processors of the smallest device: all nodes get the same number of threads."""
        return min(max(1, math.ceil(cpus)) for cpus in self.speeds)

    @property
    def speeds(self) -> tuple[float, ...]:
        """The devices' processors, at most those of this computer."""
        from tpiedge.testbed.groups import processors

        return tuple(min(device.cpus or math.inf, float(processors())) for device in self.devices)

    def memory_bytes(self, rank: int, wanted: int | None) -> int | None:
        """The smaller of the device's limit and `wanted`; None if there is neither."""
        limits = [limit for limit in (self.devices[rank].memory_bytes, wanted) if limit is not None]
        return min(limits, default=None)


def emulated(given: str | None, nodes: int | None) -> Emulated | None:
    """The first `nodes` devices, by default all. None without a testbed. Raises UserError."""
    if given is None:
        return None
    from tpiedge.testbed.running import describe
    from tpiedge.testbed.topology import Topology

    description = describe(given)
    devices = description.devices
    if nodes is not None and nodes > len(devices):
        raise UserError(f"--nodes {nodes} is more than the testbed {given} has devices: {len(devices)}")
    ways = Topology(description).expected_pairs().values()
    latency_s = max((way.latency_s + way.jitter_s for way in ways), default=0.0)
    timing = Timing.over(2 * latency_s, max((way.loss for way in ways), default=0.0))
    return Emulated(given, devices[:nodes], timing)


@contextmanager
def places_on(testbed: Emulated | None) -> Iterator[tuple[Place, ...]]:
    """The nodes' places, in rank order; empty without a testbed. Within the block this thread's network is the first
    device's. A testbed that was not up is taken down at the end."""
    if testbed is None:
        yield ()
        return
    from tpiedge.testbed.running import open_testbed

    with open_testbed(testbed.given, say=say) as running:
        devices: Sequence[Device] = testbed.devices
        places = tuple(device.place for device in running.devices[: len(devices)])
        with running.inside(running.devices[0]):
            yield places
