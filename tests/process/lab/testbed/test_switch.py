"""A real switch between real network namespaces does to packets what its plan says."""

import collections
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from tests.process.lab.testbed.switched import Devices, RunningSwitch, why_no_switch
from tests.process.lab.testbed.traffic import (
    goodput,
    lateness_s,
    message_s,
    one_way_s,
    open_udp,
    receive_stamped,
    round_trip_s,
    transfer,
)
from tpiedge.lab.testbed.switch.plan import SwitchLink, SwitchPlan

_REASON = why_no_switch()
pytestmark = [pytest.mark.alone, pytest.mark.skipif(_REASON is not None, reason=str(_REASON))]

_MEGABIT = 125_000
_HEADER_BYTES = 28
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

    def make(*links: SwitchLink, segmentation: bool = True) -> tuple[Devices, RunningSwitch]:
        devices = stack.enter_context(Devices("ab"))
        both = [replace(link, name=f"{way}{i}") for way in ("ab", "ba") for i, link in enumerate(links)]
        there, back = tuple(range(len(links))), tuple(range(len(links), 2 * len(links)))
        ports = devices.ports(segmentation=segmentation)
        plan = SwitchPlan(ports, tuple(both), {"a": {"b": there}, "b": {"a": back}}, seed=11)
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


@pytest.mark.parametrize(("megabits", "segmentation"), [(50, True), (300, False)])
def test_a_connection_uses_the_rate(joined: Joined, megabits: int, segmentation: bool) -> None:
    link = SwitchLink("", 0.0005, bytes_per_s=megabits * _MEGABIT)
    devices, switch = joined(link, link, segmentation=segmentation)
    rates = [goodput(devices, "a", "b", 1.2)]
    while rates[-1] < 0.95 * megabits * _MEGABIT and len(rates) < 8:
        rates.append(goodput(devices, "a", "b", 1.2))
    # 52 bytes of 1500 are headers.
    assert 0.95 <= rates[-1] / (megabits * _MEGABIT) <= 0.975
    link_bytes = switch.client.counters()["links"]["ab1"]["bytes"]
    assert link_bytes >= sum(rates) * 0.8


def test_a_burst_is_not_stored_at_each_hop(joined: Joined) -> None:
    """Ten packets in one frame over three links: the time of ten on one, and of one on each other."""
    link = SwitchLink("", 0.0, bytes_per_s=100 * _MEGABIT)
    devices, _ = joined(link, link, link)
    expected_s = 12 * 1500 / link.bytes_per_s  # type: ignore[operator]
    times = [message_s(devices, "a", "b", 10 * 1448, 40)]
    while times[-1] >= expected_s + 0.0007 and len(times) < 10:
        times.append(message_s(devices, "a", "b", 10 * 1448, 40))
    assert min(times) >= expected_s - _HOST_S
    assert times[-1] < expected_s + 0.0007


def test_as_many_are_lost_as_the_plan_says(joined: Joined) -> None:
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


def test_jitter_spreads_and_keeps_the_order(joined: Joined) -> None:
    latency_s, jitter_s, count = 0.001, 0.006, 120
    devices, _ = joined(SwitchLink("", latency_s, jitter_s))
    times = sorted(one_way_s(devices, "a", "b", count))
    assert latency_s - _HOST_S <= times[0] < latency_s + 0.3 * jitter_s
    assert times[count * 9 // 10] > latency_s + 0.7 * jitter_s
    assert times[count // 2] == pytest.approx(latency_s + jitter_s / 2, abs=0.3 * jitter_s)
    with open_udp(devices, "a") as one, open_udp(devices, "b") as other:
        for number in range(1000):
            one.sendto(number.to_bytes(4), other.getsockname())
        assert [int.from_bytes(other.recv(2048)) for _ in range(1000)] == list(range(1000))


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


def test_what_passes_is_counted(joined: Joined) -> None:
    devices, switch = joined(SwitchLink("", 0.001), SwitchLink("", 0.001))
    round_trip_s(devices, "a", "b", 20)
    counters = switch.client.counters()
    passed = {"packets": 20, "bytes": 20 * (64 + _HEADER_BYTES), "dropped": 0, "lost": 0}
    assert counters["links"] == dict.fromkeys(("ab0", "ab1", "ba0", "ba1"), passed)
    totals = counters["totals"]
    assert (totals["received"], totals["delivered"], totals["foreign"]) == (40, 40, 0)
    assert 0 < totals["late_ns"] <= 40 * totals["latest_ns"]


def test_other_traffic_goes_nowhere(joined: Joined) -> None:
    devices, switch = joined(SwitchLink("", 0.0))
    with open_udp(devices, "a") as one:
        one.setsockopt(1, 6, 1)  # SO_BROADCAST
        one.sendto(b"to all", ("10.214.3.255", 9))
        one.sendto(b"to nobody", ("10.214.3.77", 9))
        one.sendto(b"to itself", one.getsockname())  # does not leave the device
    _until(lambda: switch.client.counters()["totals"]["foreign"] == 2)
    assert switch.client.counters()["totals"]["delivered"] == 0


def test_links_change_while_it_runs(joined: Joined) -> None:
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


def test_nothing_overtakes_when_a_latency_falls(joined: Joined) -> None:
    devices, switch = joined(SwitchLink("", 0.3))
    with open_udp(devices, "a") as one, open_udp(devices, "b") as other:
        one.sendto(b"first", other.getsockname())
        _until(lambda: switch.client.counters()["totals"]["received"] == 1)
        switch.client.set_links({"ab0": {"latency_s": 0.0}})
        one.sendto(b"second", other.getsockname())
        assert [other.recv(2048) for _ in range(2)] == [b"first", b"second"]


def test_a_queue_that_filled_at_a_low_rate_empties_at_a_high_one(joined: Joined) -> None:
    """What waits would have taken 200 s."""
    count, rate = 160, 10_000 / 8
    devices, switch = joined(
        SwitchLink("", 0.001, bytes_per_s=rate, queue_bytes=250_000), SwitchLink("", 0.001)
    )
    with open_udp(devices, "a") as one, open_udp(devices, "b") as other:
        for number in range(count):
            one.sendto(number.to_bytes(4) + bytes(1468), other.getsockname())
        _until(lambda: switch.client.counters()["totals"]["received"] == count)
        switch.client.set_links({"ab0": {"bytes_per_s": 300 * _MEGABIT}})
        one.sendto(count.to_bytes(4), other.getsockname())
        started_s = time.monotonic()
        assert [int.from_bytes(other.recv(2048)[:4]) for _ in range(count + 1)] == list(range(count + 1))
        assert time.monotonic() - started_s < 2.0


def test_what_is_on_its_way_to_a_shared_link_hurries_too(tmp_path: Path) -> None:
    """It waits for the core, which it would reach in 40 s."""
    core = SwitchLink("core", 0.001, bytes_per_s=50 * _MEGABIT)
    with _star(tmp_path, 40.0, core) as (devices, switch), ExitStack() as stack:
        one, third = (stack.enter_context(open_udp(devices, name)) for name in "ac")
        for number in range(20):
            one.sendto(number.to_bytes(4), third.getsockname())
        _until(lambda: switch.client.counters()["totals"]["received"] == 20)
        switch.client.set_links({"a up": {"latency_s": 0.01}})
        assert [int.from_bytes(third.recv(2048)) for _ in range(20)] == list(range(20))


def test_another_loss_does_not_hurry_what_is_under_way(joined: Joined) -> None:
    devices, switch = joined(SwitchLink("", 0.3, bytes_per_s=_MEGABIT), SwitchLink("", 0.001))
    with open_udp(devices, "a") as one, open_udp(devices, "b") as other:
        started_s = time.time()
        one.sendto(bytes(972), other.getsockname())
        _until(lambda: switch.client.counters()["totals"]["received"] == 1)
        switch.client.set_links({"ab0": {"loss": 0.5}, "ab1": {"jitter_s": 0.001}})
        assert receive_stamped(other)[1] - started_s >= 0.309 - _HOST_S


@contextmanager
def _star(tmp_path: Path, a_up_s: float, core: SwitchLink) -> Iterator[tuple[Devices, RunningSwitch]]:
    """From "a" and from "b" to "c" over links of their own and the same core."""
    links = (SwitchLink("a up", a_up_s), SwitchLink("b up", 0.0), core, SwitchLink("back", 0.0))
    back = {"a": (3,), "b": (3,)}
    with Devices("abc") as devices:
        plan = SwitchPlan(devices.ports(), links, {"a": {"c": (0, 2)}, "b": {"c": (1, 2)}, "c": back})
        with RunningSwitch(plan, tmp_path) as switch:
            yield devices, switch


def test_devices_share_the_core_link(tmp_path: Path) -> None:
    count, rate = 400, 50 * _MEGABIT
    core = SwitchLink("core", 0.001, bytes_per_s=rate, queue_bytes=1 << 24)
    with _star(tmp_path, 0.0, core) as (devices, _), ExitStack() as stack:
        one, other, third = (stack.enter_context(open_udp(devices, name)) for name in "abc")
        for _ in range(count):
            one.sendto(bytes(1472), third.getsockname())
            other.sendto(bytes(1472), third.getsockname())
        arrived = [receive_stamped(third) for _ in range(2 * count)]
    assert set(collections.Counter(address for address, _ in arrived).values()) == {count}
    assert arrived[-1][1] - arrived[0][1] == pytest.approx((2 * count - 1) * 1500 / rate, rel=0.05)


def test_what_has_not_reached_the_core_does_not_occupy_it(tmp_path: Path) -> None:
    """What "a" sends reaches the core after 300 ms and keeps it busy for a second; "b" is through by then."""
    core = SwitchLink("core", 0.001, bytes_per_s=_MEGABIT, queue_bytes=1 << 24)
    with _star(tmp_path, 0.3, core) as (devices, switch), ExitStack() as stack:
        one, other, third = (stack.enter_context(open_udp(devices, name)) for name in "abc")
        for _ in range(80):
            one.sendto(bytes(1472), third.getsockname())
        _until(lambda: switch.client.counters()["totals"]["received"] == 80)
        started_s = time.perf_counter()
        other.sendto(b"through", third.getsockname())
        assert third.recv(2048) == b"through"
        assert time.perf_counter() - started_s < 0.25


@pytest.mark.parametrize(("segmentation", "loss"), [(False, 0.01), (True, 0.0)])
def test_a_connection_arrives_byte_for_byte(joined: Joined, segmentation: bool, loss: float) -> None:
    data = os.urandom(20_000_000)
    devices, switch = joined(SwitchLink("", 0.0005, 0.0002, loss), segmentation=segmentation)
    assert transfer(devices, "a", "b", data) == sha256(data).digest()
    counters = switch.client.counters()
    assert (counters["links"]["ab0"]["lost"] > 0) == (loss > 0)
    packets = counters["links"]["ab0"]["packets"]
    assert packets >= len(data) // 1500
    assert (counters["totals"]["received"] < packets / 4) == segmentation


def test_where_a_link_loses_packets_it_loses_them_one_by_one(joined: Joined) -> None:
    """Although the port may have long frames, as long as no packet is lost."""
    devices, switch = joined(SwitchLink("", 0.0005))
    switch.client.set_links({"ab0": {"loss": 0.01}})
    data = os.urandom(2_000_000)
    assert transfer(devices, "a", "b", data) == sha256(data).digest()
    counters = switch.client.counters()
    assert counters["links"]["ab0"]["lost"] > 0
    assert counters["totals"]["received"] >= counters["links"]["ab0"]["packets"]


def test_frames_are_long_again_once_no_packet_is_lost(joined: Joined) -> None:
    devices, switch = joined(SwitchLink("", 0.0005, loss=0.01))
    switch.client.set_links({"ab0": {"loss": 0.0}})
    transfer(devices, "a", "b", bytes(20_000_000))
    counters = switch.client.counters()
    assert counters["totals"]["received"] < counters["links"]["ab0"]["packets"] / 4
