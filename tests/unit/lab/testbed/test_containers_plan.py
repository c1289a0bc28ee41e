"""What containers are made of a description: limits, names, labels, commands."""

import json

import pytest

from tpiedge.lab.testbed.containers.plan import (
    LABEL,
    MEMBER,
    SWITCH,
    TEXT,
    Maker,
    agent_command,
    container_name,
    device_specs,
    maker_of,
    switch_spec,
)
from tpiedge.lab.testbed.reading import parse_description
from tpiedge.units import MIB

TEXT_OF_FILE = """
[[router]]
name = "router"
[[device]]
name = "free"
uplink = "router"
[[device]]
name = "small"
uplink = "router"
cpus = 0.25
memory = "64 MiB"
[[device]]
name = "large"
uplink = "router"
cpus = 4
memory = "8 GB"
swap = "4 GB"
"""
DESCRIPTION = parse_description(TEXT_OF_FILE, "test")
MAKER = Maker("here", 4711, 1234.5, "a-boot")


def specs(processors: int = 8):
    return {spec.hostname: spec for spec in device_specs("home", DESCRIPTION, "an-image", processors)}


def test_devices_have_the_limits_of_the_file() -> None:
    """Short periods, as namespaces have; memory and swap are counted together."""
    small, large = specs()["small"], specs()["large"]
    assert (small.cpu_quota_us, small.cpu_period_us) == (2500, 10_000)
    assert (small.memory_bytes, small.memory_and_swap_bytes) == (64 * MIB, 64 * MIB)
    assert (large.cpu_quota_us, large.cpu_period_us) == (40_000, 10_000)
    assert (large.memory_bytes, large.memory_and_swap_bytes) == (8_000_000_000, 12_000_000_000)


def test_a_device_without_limits_has_none() -> None:
    free = specs()["free"]
    assert (free.cpu_quota_us, free.memory_bytes, free.memory_and_swap_bytes) == (None, None, None)


@pytest.mark.parametrize(("processors", "limited"), [(3, False), (4, False), (5, True)])
def test_as_many_processors_as_the_engine_has_are_no_limit(processors: int, limited: bool) -> None:
    assert (specs(processors)["large"].cpu_quota_us is not None) is limited


def test_devices_wait_without_rights() -> None:
    """In the order of the file; with docker's init, which reaps; none sees the computer's processes or devices."""
    assert list(specs()) == ["free", "small", "large"]
    for name, spec in specs().items():
        assert spec.name == container_name("home", name) == f"tpiedge.home.{name}"
        assert spec.labels == {LABEL: "home", MEMBER: name}
        assert (spec.image, spec.command, spec.init) == ("an-image", ("sleep", "infinity"), True)
        assert (spec.devices, spec.computers_processes, spec.user) == ((), False, "")


def test_the_switch_has_what_it_needs_and_says_what_the_testbed_is() -> None:
    switch = switch_spec("home", TEXT_OF_FILE, "an-image", MAKER)
    assert switch.capabilities == ("NET_ADMIN", "SYS_ADMIN", "SYS_NICE", "SYS_PTRACE")
    assert switch.computers_processes
    assert switch.devices == ("/dev/net/tun:/dev/net/tun:rwm",)
    assert (switch.labels[LABEL], switch.labels[MEMBER]) == ("home", SWITCH)
    assert parse_description(switch.labels[TEXT], "label") == DESCRIPTION
    assert maker_of(switch.labels) == MAKER
    assert switch.name not in [spec.name for spec in specs().values()]


@pytest.mark.parametrize("said", ["", "[]", "[1, 2, 3]", '["a", "b", "c", "d"]', "{", "null", "7"])
def test_a_label_that_makes_no_sense_names_no_maker(said: str) -> None:
    labels = dict(switch_spec("home", TEXT_OF_FILE, "an-image", MAKER).labels)
    key = next(key for key, value in labels.items() if "4711" in value)
    assert maker_of({**labels, key: said}) is None
    assert maker_of({}) is None


def test_a_request_is_the_last_word_of_the_command() -> None:
    request = {"do": "state", "pids": {"a b": 7}}
    assert json.loads(agent_command(request)[-1]) == request
