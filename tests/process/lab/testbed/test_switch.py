"""A real switch between real network namespaces does to packets what its plan says."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from tests.process.lab.testbed.switched import Devices, RunningSwitch, why_no_switch
from tests.process.lab.testbed.traffic import (
    goodput,
    lateness_s,
    open_udp,
    receive_stamped,
    round_trip_s,
    transfer,
)
from tpiedge.lab.testbed.switch import SwitchLink, SwitchPlan

_REASON = why_no_switch()
pytestmark = [pytest.mark.alone, pytest.mark.skipif(_REASON is not None, reason=str(_REASON))]

_MEGABIT = 125_000
_WAIT_S = 10.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


#: The part of a way that the computer itself takes: a packet is delivered so much earlier.
_HOST_S = 0.00005
Joined = Callable[..., tuple[Devices, RunningSwitch]]


@pytest.fixture
def joined(stack: ExitStack, tmp_path: Path) -> Joined:
    """Devices "a" and "b" with the same links each way, named "ab0", "ab1" ... and "ba0" ..., and their switch."""

    def make(*links: SwitchLink) -> tuple[Devices, RunningSwitch]:
        devices = stack.enter_context(Devices("ab"))
        both = [replace(link, name=f"{way}{i}") for way in ("ab", "ba") for i, link in enumerate(links)]
        there, back = tuple(range(len(links))), tuple(range(len(links), 2 * len(links)))
        plan = SwitchPlan(devices.ports(), tuple(both), {"a": {"b": there}, "b": {"a": back}}, seed=11)
        return devices, stack.enter_context(RunningSwitch(plan, tmp_path))

    return make


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


@pytest.mark.parametrize("latency_ms", [5])
def test_a_round_trip_takes_both_latencies(joined: Joined, latency_ms: int) -> None:
    devices, _ = joined(*[SwitchLink("", latency_ms / 2000)] * 2)
    expected_s = 2 * latency_ms / 1000
    within_s = 0.05 * expected_s + lateness_s()
    # Whatever else the machine does can only add to it.
    trips = [round_trip_s(devices, "a", "b")]
    while abs(trips[-1][1] - expected_s) > within_s and len(trips) < 10:
        trips.append(round_trip_s(devices, "a", "b"))
    assert min(least for least, _ in trips) >= expected_s - 2 * _HOST_S
    assert min(abs(median - expected_s) for _, median in trips) <= within_s


@pytest.mark.parametrize("megabits", [50, 300])
def test_throughput_reaches_the_link_rate(joined: Joined, megabits: int) -> None:
    link = SwitchLink("", 0.0005, bytes_per_s=megabits * _MEGABIT)
    devices, switch = joined(link, link)
    rates = [goodput(devices, "a", "b", 1.2)]
    while rates[-1] < 0.95 * megabits * _MEGABIT and len(rates) < 8:
        rates.append(goodput(devices, "a", "b", 1.2))
    # 52 bytes of 1500 are headers.
    assert 0.95 <= rates[-1] / (megabits * _MEGABIT) <= 0.975
    link_bytes = switch.client.counters()["links"]["ab1"]["bytes"]
    assert link_bytes >= sum(rates) * 0.8


def test_packet_loss_matches_the_plan(joined: Joined) -> None:
    count, loss = 6000, 0.05
    devices, switch = joined(SwitchLink("", 0.001, loss=loss))
    with open_udp(devices, "a") as one, open_udp(devices, "b") as other:
        for number in range(count):
            one.sendto(number.to_bytes(4), other.getsockname())
        _until(lambda: switch.client.counters()["totals"]["received"] == count)
        link = switch.client.counters()["links"]["ab0"]
        numbers = [int.from_bytes(other.recv(2048)) for _ in range(link["packets"])]
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.recv(2048)
    assert numbers == sorted(set(numbers))
    assert link["packets"] + link["lost"] == count
    assert link["dropped"] == 0
    assert abs(link["lost"] - loss * count) <= 5 * (count * loss * (1 - loss)) ** 0.5


def test_a_full_queue_drops_the_rest(joined: Joined) -> None:
    """100 packets at once for a queue of 20, on a link that sends one in 120 ms."""
    devices, switch = joined(SwitchLink("", 0.0, bytes_per_s=_MEGABIT / 10, queue_bytes=30_000))
    with open_udp(devices, "a") as one:
        for _ in range(100):
            one.sendto(bytes(1472), (devices.addresses["b"], 9))
    _until(lambda: switch.client.counters()["totals"]["received"] == 100)
    link = switch.client.counters()["links"]["ab0"]
    assert link["packets"] + link["dropped"] == 100
    assert 20 <= link["packets"] <= 24


def test_link_settings_change_while_the_switch_runs(joined: Joined) -> None:
    devices, switch = joined(SwitchLink("", 0.001))
    switch.client.set_links({"ab0": {"latency_s": 0.02}, "ba0": {"latency_s": 0.01}})
    assert 0.03 - 2 * _HOST_S <= round_trip_s(devices, "a", "b", 5)[0] < 0.05
    switch.client.set_links({"ab0": {"latency_s": 0.0, "loss": 1.0}})
    with open_udp(devices, "a") as one, open_udp(devices, "b") as other:
        one.sendto(b"lost", other.getsockname())
        _until(lambda: switch.client.counters()["links"]["ab0"]["lost"] == 1)
        switch.client.set_links({"ab0": {"loss": 0, "bytes_per_s": 1000.0}})
        started_s = time.time()
        one.sendto(bytes(72), other.getsockname())
        assert 0.1 - _HOST_S <= receive_stamped(other)[1] - started_s < 0.2


@pytest.mark.parametrize("loss", [0.01, 0.0])
def test_data_sent_through_the_switch_arrives_unchanged(joined: Joined, loss: float) -> None:
    """Packets are lost one by one where links lose any; otherwise frames are long."""
    data = os.urandom(8_000_000)
    devices, switch = joined(SwitchLink("", 0.0005, 0.0002, loss))
    assert transfer(devices, "a", "b", data) == sha256(data).digest()
    counters = switch.client.counters()
    assert (counters["links"]["ab0"]["lost"] > 0) == (loss > 0)
    packets = counters["links"]["ab0"]["packets"]
    assert packets >= len(data) // 1500
    assert (counters["totals"]["received"] < packets / 4) == (not loss)
