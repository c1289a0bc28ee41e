"""The switch's process: how it starts, answers, sleeps and ends, and that nothing of it stays."""

import json
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.process.lab.testbed.switched import Devices, RunningSwitch, why_no_switch
from tests.process.lab.testbed.traffic import open_udp, round_trip_s
from tpiedge.errors import ResourceError
from tpiedge.lab.testbed.switch import SwitchLink, SwitchPlan
from tpiedge.lab.testbed.switch_process import INTERFACE

_REASON = why_no_switch()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))


@pytest.fixture
def devices() -> Iterator[Devices]:
    with Devices("ab") as devices:
        yield devices


def _plan(devices: Devices, latency_s: float = 0.001) -> SwitchPlan:
    links = (SwitchLink("there", latency_s), SwitchLink("back", latency_s))
    return SwitchPlan(devices.ports(), links, {"a": {"b": (0,)}, "b": {"a": (1,)}})


@pytest.fixture
def switch(devices: Devices, tmp_path: Path) -> Iterator[RunningSwitch]:
    with RunningSwitch(_plan(devices), tmp_path) as switch:
        yield switch


_ENDS: dict[str, Callable[[RunningSwitch], None]] = {
    "SIGTERM": lambda switch: switch.process.send_signal(signal.SIGTERM),
    "SIGINT": lambda switch: switch.process.send_signal(signal.SIGINT),
}


@pytest.mark.parametrize("end", _ENDS.values(), ids=_ENDS)
def test_signalled_switch_ends_and_leaves_no_interfaces(
    devices: Devices, switch: RunningSwitch, end: Callable[[RunningSwitch], None]
) -> None:
    assert devices.interfaces("a") == devices.interfaces("b") == {"lo", INTERFACE}
    round_trip_s(devices, "a", "b", 5)
    end(switch)
    assert switch.wait() == 0
    assert devices.interfaces("a") == devices.interfaces("b") == {"lo"}
    assert not switch.path.exists()


def test_killed_switch_leaves_no_interface_and_can_restart(devices: Devices, tmp_path: Path) -> None:
    killed = RunningSwitch(_plan(devices), tmp_path)
    killed.kill()
    assert devices.interfaces("a") == devices.interfaces("b") == {"lo"}
    assert killed.path.exists()
    with pytest.raises(ResourceError, match="does not answer"):
        killed.client.counters()
    with RunningSwitch(_plan(devices), tmp_path):
        assert round_trip_s(devices, "a", "b", 5)[0] >= 0.0019


def _ip(devices: Devices, name: str, command: str, *words: str) -> None:
    with devices.inside(name):
        subprocess.run(["ip", "link", command, INTERFACE, *words], check=True)


def test_switch_sleeps_while_packets_wait_or_interface_is_deleted(devices: Devices, tmp_path: Path) -> None:
    with RunningSwitch(_plan(devices, latency_s=30.0), tmp_path) as switch:
        with open_udp(devices, "a") as one:
            one.sendto(b"on its way", (devices.addresses["b"], 9))
        process = psutil.Process(switch.process.pid)
        for interfaces in (2, 1):
            assert len(devices.interfaces("a")) == interfaces
            assert _cpu_s(process, 0.5) < 0.1
            if interfaces == 2:
                _ip(devices, "a", "del")
        assert switch.client.counters()["totals"]["received"] == 1


def _cpu_s(process: psutil.Process, seconds: float) -> float:
    before = process.cpu_times()
    threading.Event().wait(seconds)
    used = process.cpu_times()
    return float(used.user + used.system - before.user - before.system)


def _ask(path: Path, *lines: bytes) -> list[dict[str, object]]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5.0)
        connection.connect(str(path))
        connection.sendall(b"".join(line + b"\n" for line in lines))
        with connection.makefile("rb") as answers:
            return [json.loads(answers.readline()) for _ in lines]


def test_a_namespace_that_is_not_there_is_an_error(devices: Devices, tmp_path: Path) -> None:
    port, other = devices.ports()
    gone = replace(other, namespace=str(tmp_path / "gone"))
    switch = RunningSwitch(replace(_plan(devices), ports=(port, gone)), tmp_path)
    assert switch.said.startswith("error: ")
    assert str(tmp_path / "gone") in switch.said
    assert switch.wait() == 1
    assert devices.interfaces("a") == {"lo"}
