"""The switch's process: how it starts, answers, sleeps and ends, and that nothing of it stays."""

import json
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.process.lab.testbed.switched import INTERFACE, Devices, RunningSwitch, why_no_switch
from tests.process.lab.testbed.traffic import open_udp, round_trip_s
from tpiedge.errors import ResourceError, UserError
from tpiedge.lab.testbed.switch.control import SwitchClient
from tpiedge.lab.testbed.switch.plan import SwitchLink, SwitchPlan

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
def test_it_ends_and_leaves_nothing(
    devices: Devices, switch: RunningSwitch, end: Callable[[RunningSwitch], None]
) -> None:
    assert devices.interfaces("a") == devices.interfaces("b") == {"lo", INTERFACE}
    round_trip_s(devices, "a", "b", 5)
    end(switch)
    assert switch.wait() == 0
    assert devices.interfaces("a") == devices.interfaces("b") == {"lo"}
    assert not switch.path.exists()


def test_killed_it_leaves_no_interface_and_the_next_one_starts(devices: Devices, tmp_path: Path) -> None:
    killed = RunningSwitch(_plan(devices), tmp_path)
    killed.kill()
    assert devices.interfaces("a") == devices.interfaces("b") == {"lo"}
    assert killed.path.exists()
    with pytest.raises(ResourceError, match="does not answer"):
        killed.client.counters()
    with RunningSwitch(_plan(devices), tmp_path):
        assert round_trip_s(devices, "a", "b", 5)[0] >= 0.0019


def test_the_interface_is_as_planned(devices: Devices, tmp_path: Path) -> None:
    port, other = devices.ports()
    with RunningSwitch(replace(_plan(devices), ports=(replace(port, mtu=1280), other)), tmp_path):
        with devices.inside("a"):
            shown = subprocess.run(["ip", "-j", "addr"], capture_output=True, check=True).stdout
        lo, eth0 = json.loads(shown)
    assert "UP" in lo["flags"]
    assert {"UP", "NOARP"} <= set(eth0["flags"])
    assert (eth0["mtu"], eth0["address"]) == (1280, port.mac)
    assert [(a["local"], a["prefixlen"]) for a in eth0["addr_info"]] == [(port.address, port.prefix)]


def _ip(devices: Devices, name: str, command: str, *words: str) -> None:
    with devices.inside(name):
        subprocess.run(["ip", "link", command, INTERFACE, *words], check=True)


def test_a_device_may_take_its_interface_down_for_a_while(devices: Devices, switch: RunningSwitch) -> None:
    _ip(devices, "b", "set", "down")
    with open_udp(devices, "a") as one:
        one.sendto(b"in vain", (devices.addresses["b"], 9))
    deadline = time.monotonic() + 5
    while switch.client.counters()["totals"]["undelivered"] == 0:
        assert time.monotonic() < deadline
    _ip(devices, "b", "set", "up")
    assert round_trip_s(devices, "a", "b", 5)[0] >= 0.0019


def test_it_sleeps_while_packets_wait_and_when_an_interface_is_deleted(
    devices: Devices, tmp_path: Path
) -> None:
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
    """What it uses meanwhile. Not for something to happen: nothing must."""
    before = process.cpu_times()
    threading.Event().wait(seconds)
    used = process.cpu_times()
    return float(used.user + used.system - before.user - before.system)


def test_what_it_has_no_room_for_is_counted_and_it_stays_calm(devices: Devices, tmp_path: Path) -> None:
    slots, more = 16384, 100
    with RunningSwitch(_plan(devices, latency_s=50.0), tmp_path) as switch:

        def has_crowded_out(count: int) -> bool:
            totals = switch.client.counters()["totals"]
            assert totals["received"] <= slots
            return bool(totals["crowded_out"] == count)

        with open_udp(devices, "a") as one:
            for _ in range(slots + more):
                one.sendto(b"too much", (devices.addresses["b"], 9))
        deadline = time.monotonic() + 10
        while not has_crowded_out(more):
            assert time.monotonic() < deadline
        assert switch.client.counters()["totals"]["received"] == slots
        # With no room its descriptor must be given up all the same.
        _ip(devices, "a", "del")
        assert _cpu_s(psutil.Process(switch.process.pid), 0.5) < 0.1
        assert switch.client.counters()["totals"]["delivered"] == 0
        switch.client.set_links({"there": {"latency_s": 0.0}})
        while switch.client.counters()["totals"]["delivered"] < slots:
            assert time.monotonic() < deadline + 10


def test_short_of_descriptors_it_goes_on(devices: Devices, switch: RunningSwitch) -> None:
    process = psutil.Process(switch.process.pid)
    limits = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds(), limits[1]))
    with pytest.raises(ResourceError, match="does not answer"):
        SwitchClient(switch.path, timeout_s=0.2).counters()
    round_trip_s(devices, "a", "b", 5)
    process.rlimit(psutil.RLIMIT_NOFILE, limits)
    assert switch.client.counters()["totals"]["received"] == 10


def _ask(path: Path, *lines: bytes) -> list[dict[str, object]]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5.0)
        connection.connect(str(path))
        connection.sendall(b"".join(line + b"\n" for line in lines))
        with connection.makefile("rb") as answers:
            return [json.loads(answers.readline()) for _ in lines]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"counters",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b"{}",
        b'{"do": "dance"}',
        b'{"do": {"a": 1}}',
        b'{"do": "set"}',
        b'{"do": "set", "links": {"sideways": {"latency_s": 1}}}',
        b'{"do": "set", "links": {"there": {"latency_s": 1, "loss": 2}}}',
        b'{"do": "set", "links": {"there": {"latency_s": 1}, "back": {"latency_s": -1}}}',
        b'{"do": "set", "links": {"there": {"bytes_per_s": 1e999}}}',
    ],
    ids=lambda line: line[:50].decode(errors="replace"),
)
def test_a_malformed_request_changes_nothing(devices: Devices, switch: RunningSwitch, line: bytes) -> None:
    refusal, counters = _ask(switch.path, line, b'{"do": "counters"}')
    assert set(refusal) == {"error"}
    assert "\n" not in str(refusal["error"])
    assert set(counters) == {"links", "totals"}
    assert round_trip_s(devices, "a", "b", 5)[0] < 1.0


def test_an_endless_line_is_cut_off(switch: RunningSwitch) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5.0)
        connection.connect(str(switch.path))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.sendall(bytes(64 << 20))
    assert switch.client.counters()["totals"]["received"] == 0


def test_a_client_that_says_nothing_holds_nobody_up(switch: RunningSwitch) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(switch.path))
        silent.sendall(b'{"do": "cou')
        assert switch.client.counters()["totals"]["received"] == 0


def test_the_socket_is_for_its_user_only(switch: RunningSwitch) -> None:
    assert stat.S_IMODE(switch.path.stat().st_mode) == 0o600


def test_a_running_switch_keeps_its_socket(devices: Devices, switch: RunningSwitch, tmp_path: Path) -> None:
    elsewhere = tuple(replace(port, interface="eth1") for port in devices.ports())
    second = RunningSwitch(replace(_plan(devices), ports=elsewhere), tmp_path)
    assert second.said.startswith(f"error: the switch cannot listen at {switch.path}")
    assert second.wait() == 1
    assert switch.client.counters()["totals"]["received"] == 0
    assert devices.interfaces("a") == {"lo", INTERFACE}


def test_what_the_switch_refuses_is_a_users_error(switch: RunningSwitch) -> None:
    with pytest.raises(UserError, match="there is no link 'sideways'; there are: there, back"):
        switch.client.set_links({"sideways": {"latency_s": 1.0}})


def test_an_interface_that_is_there_already_is_an_error(
    devices: Devices, switch: RunningSwitch, tmp_path: Path
) -> None:
    (tmp_path / "second").mkdir()
    second = RunningSwitch(_plan(devices), tmp_path / "second")
    assert second.said.startswith(f"error: the switch could not make the interface {INTERFACE} of a")
    assert second.wait() == 1
    round_trip_s(devices, "a", "b", 5)


def test_a_namespace_that_is_not_there_is_an_error(devices: Devices, tmp_path: Path) -> None:
    port, other = devices.ports()
    gone = replace(other, namespace=str(tmp_path / "gone"))
    switch = RunningSwitch(replace(_plan(devices), ports=(port, gone)), tmp_path)
    assert switch.said.startswith("error: ")
    assert str(tmp_path / "gone") in switch.said
    assert switch.wait() == 1
    assert devices.interfaces("a") == {"lo"}


@pytest.mark.parametrize("line", ["", "no plan", '{"ports": []}'])
def test_what_is_no_plan_is_an_error(tmp_path: Path, line: str) -> None:
    command = [sys.executable, "-m", "tpiedge.lab.testbed.switch.process", str(tmp_path / "switch")]
    ended = subprocess.run(
        command, input=line + "\n", capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.stdout == "error: not a plan of a switch (" + ended.stdout.partition("(")[2]
    assert (ended.stdout.count("\n"), ended.stderr, ended.returncode) == (1, "", 1)


def test_it_is_small() -> None:
    program = (
        "import sys, tpiedge.lab.testbed.switch.process; print({'torch', 'zmq', 'numpy'} & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"


def test_a_client_waits_no_longer_than_it_says(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "dumb"))
        listener.listen()
        started_s = time.monotonic()
        with pytest.raises(ResourceError, match="does not answer"):
            SwitchClient(tmp_path / "dumb", timeout_s=0.2).counters()
    assert 0.2 <= time.monotonic() - started_s < 30.0
    with pytest.raises(ResourceError, match="does not answer"):
        SwitchClient(tmp_path / "nobody").counters()
