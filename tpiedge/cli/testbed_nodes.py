"""`--testbed NAME`: the nodes of a local cluster on the devices of a testbed instead of side by side.

Most runs have no testbed, so what brings one up is imported where one is given.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import click

from tpiedge.errors import UserError
from tpiedge.nodes.cluster import Place
from tpiedge.testbed.description import Device

__all__ = ["Emulated", "emulated", "places_on", "testbed_option"]

testbed_option = click.option(
    "--testbed",
    "testbed_name",
    metavar="NAME",
    help="Run the nodes on the devices of this testbed (see 'tpiedge testbed ls'); root only.",
)


@dataclass(frozen=True)
class Emulated:
    """The testbed's name or file, and its first devices: one per node, in the order of ranks."""

    given: str
    devices: tuple[Device, ...]

    @property
    def most_threads(self) -> int:
        """What the smallest device has processors for: all nodes get the same number."""
        return min(max(1, math.ceil(cpus)) for cpus in self.speeds)

    @property
    def speeds(self) -> tuple[float, ...]:
        """The devices' processors, at most those of this computer."""
        from tpiedge.testbed.groups import processors

        return tuple(min(device.cpus or math.inf, float(processors())) for device in self.devices)

    def memory_bytes(self, rank: int, wanted: int | None) -> int | None:
        """The device's limit, or less where less is wanted."""
        limits = [limit for limit in (self.devices[rank].memory_bytes, wanted) if limit is not None]
        return min(limits, default=None)


def emulated(given: str | None, nodes: int | None) -> Emulated | None:
    """The first `nodes` devices, by default all. None without a testbed. Raises UserError."""
    if given is None:
        return None
    from tpiedge.testbed.running import describe

    devices = describe(given).devices
    if nodes is not None and nodes > len(devices):
        raise UserError(f"--nodes {nodes} is more than the testbed {given} has devices: {len(devices)}")
    return Emulated(given, devices[:nodes])


@contextmanager
def places_on(testbed: Emulated | None) -> Iterator[tuple[Place, ...]]:
    """Where the nodes are to run; nowhere in particular without a testbed. Within the block this thread's network is
    the first device's. A testbed that was not up is taken down at the end."""
    if testbed is None:
        yield ()
        return
    from tpiedge.testbed.running import open_testbed

    with open_testbed(testbed.given, say=_say) as running:
        devices: Sequence[Device] = testbed.devices
        places = tuple(device.place for device in running.devices[: len(devices)])
        with running.inside(running.devices[0]):
            yield places


def _say(line: str) -> None:
    click.echo(line, err=True)
