"""What an idle testbed gives is what its file says, within 5 %: by this project's own probes, ping and iperf3."""

import json
import shutil
import statistics
import subprocess
from pathlib import Path

import pytest

from tests.process.command import run_command, wait_for
from tests.process.lab.testbed.beds import why_no_testbed, written
from tests.process.lab.testbed.traffic import lateness_s
from tpiedge.errors import ResourceError
from tpiedge.lab.testbed.measuring import (
    expected_payload,
    expected_rtt_s,
    longest_rtt_s,
    measure_pair,
    ping_rtt_s,
    rtts_s,
)
from tpiedge.lab.testbed.namespaces import inside
from tpiedge.lab.testbed.running import RunningDevice, RunningTestbed, open_testbed

REASON = why_no_testbed()
pytestmark = [pytest.mark.alone, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

WITHIN = 0.05
#: Another process that wants the processor at the wrong moment is not what is measured.
TRIES = 4

RATE_ONLY = """
[defaults]
rate = "80 Mbit/s"
[[router]]
name = "core"
[[router]]
name = "home"
uplink = "core"
rate = "40 Mbit/s"
[[router]]
name = "attic"
uplink = "home"
[[device]]
name = "a"
uplink = "core"
[[device]]
name = "b"
uplink = "attic"
down_rate = "16 Mbit/s"
[[device]]
name = "c"
uplink = "core"
"""


def rtt_s(testbed: RunningTestbed, source: RunningDevice, target: RunningDevice) -> float:
    return expected_rtt_s(testbed.expected(source, target), testbed.expected(target, source))


def deviation(measure, wanted: float, within: float = WITHIN) -> float:
    """Of the best of some tries."""
    found: list[float] = []
    for _ in range(TRIES):
        found.append(abs(measure() / wanted - 1))
        if found[-1] < within:
            break
    return min(found)


def test_round_trips(bed: str) -> None:
    with open_testbed("laptops-4", name=bed) as testbed:
        first, *others = testbed.devices
        for other in others:
            wanted = rtt_s(testbed, first, other)

            def measured(other: RunningDevice = other) -> float:
                return statistics.median(rtts_s(testbed, first, other)[0])

            def ping(other: RunningDevice = other) -> float:
                return ping_rtt_s(testbed, first, other)

            within = WITHIN + lateness_s() / wanted
            assert deviation(measured, wanted, within) < within, other.name
            if shutil.which("ping"):
                assert deviation(ping, wanted, within) < within, other.name


def test_throughput(bed: str) -> None:
    with open_testbed("pair", name=bed) as testbed:
        first, *others = testbed.devices
        for other in others:
            wanted = expected_payload(testbed.expected(first, other))
            assert wanted is not None
            assert (
                deviation(lambda other=other: measure_pair(testbed, first, other).bytes_per_s, wanted)
                < WITHIN
            ), other.name


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="software: iperf3 is not installed")
def test_throughput_as_iperf3_sees_it(bed: str) -> None:
    """From one device's limits to the other's, as users measure: headers included, it is what the file says."""
    with open_testbed("pair", name=bed) as testbed:
        first, second = testbed.devices
        assert deviation(lambda: iperf_bytes_per_s(first, second), 37_500_000) < WITHIN


def iperf_bytes_per_s(first: RunningDevice, second: RunningDevice) -> float:
    with subprocess.Popen([*second.enter_command, "iperf3", "-s", "-1"], stdout=subprocess.DEVNULL) as server:
        wait_for(lambda: listening(second, 5201), 5)
        ended = subprocess.run(
            [*first.enter_command, "iperf3", "-c", second.address, "-t", "2", "-O", "1", "-J"],
            capture_output=True,
            check=True,
        )
        server.wait(5)
    return json.loads(ended.stdout)["end"]["sum_received"]["bits_per_second"] / 8


def listening(device: RunningDevice, port: int) -> bool:
    with inside(device.namespace):
        return any(
            f":{port:04X} " in Path(f"/proc/thread-self/net/{table}").read_text() for table in ("tcp", "tcp6")
        )


def test_check_prints_what_it_finds(bed: str) -> None:
    assert run_command("testbed", "up", "pair", "--name", bed).status == 0
    ended = run_command("testbed", "check", bed, "--json")
    assert ended.status == 0, ended.err
    (pair,) = json.loads(ended.out)["pairs"]
    assert (pair["from"], pair["to"]) == ("device1", "device2")
    assert pair["expected_rtt_s"] == pytest.approx(0.002)
    assert pair["rtt_deviation"] == pytest.approx(pair["rtt_s"] / 0.002 - 1)
    assert pair["expected_bytes_per_s"] == pytest.approx(37_500_000 * 1448 / 1500)
    assert run_command("testbed", "check", bed).out.splitlines()[2].startswith("device1 -> device2")


def test_a_changed_link_counts_at_once(bed: str) -> None:
    with open_testbed("pair", name=bed) as testbed:
        first, second = testbed.devices
        testbed.set_links("device1", latency_s=0.0095)
        assert deviation(lambda: statistics.median(rtts_s(testbed, first, second)[0]), 0.020) < WITHIN
        testbed.set_links("device1", loss=0.3)
        _, lost = rtts_s(testbed, first, second, 12)
        assert testbed.expected(first, second).loss == pytest.approx(0.3)
        assert 0 < lost < 12


def test_links_that_are_slower_than_an_answer_usually_takes(bed: str) -> None:
    """1.1 s one way: who knows of that waits for it."""
    with open_testbed("pair", name=bed, network="switch") as testbed:
        first, second = testbed.devices
        testbed.set_links("device1", latency_s=1.1)
        with pytest.raises(ResourceError, match="nothing arrives"):
            rtts_s(testbed, first, second, 1)
        longest_s = longest_rtt_s(testbed.expected(first, second), testbed.expected(second, first))
        times, lost = rtts_s(testbed, first, second, 1, longest_s)
    assert (len(times), lost) == (1, 0)
    assert longest_s == pytest.approx(2.201)
    assert times[0] > 2.2


# --- the kernel's own network: as far as it goes without netem


def test_routers_as_namespaces(bed: str, tmp_path: Path) -> None:
    """Cables, addresses, routes and rates; packets find their way through three routers and back."""
    path = written(tmp_path, bed, RATE_ONLY)
    with open_testbed(path, network="netem") as testbed:
        a, b, c = testbed.devices
        assert len(rtts_s(testbed, a, b, 5)[0]) == 4
        assert len(rtts_s(testbed, b, c, 5)[0]) == 4
        for source, target in ((a, b), (b, a), (a, c)):
            wanted = testbed.expected(source, target).bytes_per_s
            assert wanted is not None
            found = deviation(
                lambda s=source, t=target: measure_pair(testbed, s, t).bytes_per_s, wanted * 1448 / 1514
            )
            assert found < WITHIN, f"{source.name} -> {target.name}"


def test_the_kernels_network_is_shown_and_changed(bed: str, tmp_path: Path) -> None:
    path = written(tmp_path, bed, RATE_ONLY)
    assert run_command("testbed", "up", path, "--network", "netem").status == 0
    record = json.loads(run_command("testbed", "status", bed, "--json").out)
    assert (record["state"], record["network"], record["switch_pids"]) == ("up", "netem", [])
    assert all("packets" in link["counters"] for link in record["links"])
    assert run_command("testbed", "link", bed, "attic", "--rate", "8 Mbit/s").status == 0
    with open_testbed(bed) as testbed:
        a, b, _ = testbed.devices
        assert deviation(lambda: measure_pair(testbed, a, b).bytes_per_s, 1e6 * 1448 / 1514) < WITHIN
    assert run_command("testbed", "down", bed).status == 0


def test_a_kernel_without_netem_is_told_of_and_leaves_nothing(bed: str) -> None:
    ended = run_command("testbed", "up", "pair", "--name", bed, "--network", "netem")
    if ended.status == 0:
        pytest.skip("system: this kernel has netem")
    assert ended.status == 4
    assert "qdisc kind is unknown" in ended.err
    assert len([line for line in ended.err.splitlines() if line.startswith("tpiedge: ")]) == 1
