"""What the commands make of a testbed's devices."""

from tpiedge.lab.testbed.description import Device, Link
from tpiedge.lab.testbed.groups import processors
from tpiedge.lab.testbed.running import Emulated
from tpiedge.launch.timing import Timing


def emulated(*cpus: float | None) -> Emulated:
    devices = (Device(f"d{number}", "core", Link(), Link(), cpus=each) for number, each in enumerate(cpus))
    return Emulated("x", tuple(devices), Timing())


def test_a_device_has_at_most_the_processors_of_this_computer() -> None:
    """More are no limit."""
    there = float(processors())
    assert emulated(None, 0.25, 900.0).speeds == (there, 0.25, there)
    assert emulated(900.0, None).most_threads == there
    assert emulated(900.0, 0.25).most_threads == 1
