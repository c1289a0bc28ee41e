"""An idle testbed has the figures of its file within 5 %, by tpiedge's probes, ping and iperf3."""

import json
import shutil
import statistics

import pytest

from tests.process.command import run_command
from tests.process.lab.testbed.beds import why_no_testbed
from tests.process.lab.testbed.traffic import lateness_s
from tpiedge.lab.testbed.measuring import expected_payload, expected_rtt_s, measure_pair, ping_rtt_s, rtts_s
from tpiedge.lab.testbed.running import RunningDevice, RunningTestbed, open_testbed

REASON = why_no_testbed()
pytestmark = [pytest.mark.alone, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

WITHIN = 0.05
#: Another process that wants the processor at the wrong moment is not what is measured.
TRIES = 4


def rtt_s(testbed: RunningTestbed, source: RunningDevice, target: RunningDevice) -> float:
    return expected_rtt_s(testbed.expected(source, target), testbed.expected(target, source))


def deviation(measure, wanted: float, within: float = WITHIN) -> float:
    found: list[float] = []
    for _ in range(TRIES):
        found.append(abs(measure() / wanted - 1))
        if found[-1] < within:
            break
    return min(found)


def test_testbed_round_trips_match_its_file(bed: str) -> None:
    with open_testbed("laptops-4", name=bed) as testbed:
        first, *others = testbed.devices
        for other in others:
            wanted = rtt_s(testbed, first, other)

            def measured(other: RunningDevice = other) -> float:
                return statistics.median(rtts_s(first, other)[0])

            def ping(other: RunningDevice = other) -> float:
                return ping_rtt_s(first, other)

            within = WITHIN + lateness_s() / wanted
            assert deviation(measured, wanted, within) < within, other.name
            if shutil.which("ping"):
                assert deviation(ping, wanted, within) < within, other.name


def test_testbed_throughput_matches_its_file(bed: str) -> None:
    with open_testbed("pair", name=bed) as testbed:
        first, *others = testbed.devices
        for other in others:
            wanted = expected_payload(testbed.expected(first, other))
            assert wanted is not None
            assert deviation(lambda other=other: measure_pair(first, other).bytes_per_s, wanted) < WITHIN, (
                other.name
            )


def test_check_command_prints_measured_and_expected_figures(bed: str) -> None:
    assert run_command("testbed", "up", "pair", "--name", bed).status == 0
    ended = run_command("testbed", "check", bed, "--json")
    assert ended.status == 0, ended.err
    (pair,) = json.loads(ended.out)["pairs"]
    assert (pair["from"], pair["to"]) == ("device1", "device2")
    assert pair["expected_rtt_s"] == pytest.approx(0.002)
    assert pair["rtt_deviation"] == pytest.approx(pair["rtt_s"] / 0.002 - 1)
    assert pair["expected_bytes_per_s"] == pytest.approx(37_500_000 * 1448 / 1500)
    assert run_command("testbed", "check", bed).out.splitlines()[2].startswith("device1 -> device2")
