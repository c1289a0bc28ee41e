"""The limits of a device are real: memory, swap, processor time."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.command import Ended
from tests.process.lab.testbed.beds import why_no_testbed, written
from tpiedge.lab.testbed.isolation import Controllers
from tpiedge.lab.testbed.running import RunningTestbed, open_testbed
from tpiedge.units import MIB

REASON = why_no_testbed()
CONTROLLERS = Controllers.here()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.skipif(
        CONTROLLERS.cpu is None or CONTROLLERS.memory is None, reason="groups: none for cpu and memory here"
    ),
]

TEXT = """
[[router]]
name = "router"
[[device]]
name = "small"
uplink = "router"
memory = "64 MiB"
cpus = 0.25
[[device]]
name = "large"
uplink = "router"
memory = "8 TB"
swap = "1 GB"
cpus = 900
"""
TAKE = "import sys; kept = bytearray(int(sys.argv[1])); print(len(kept))"
SPIN = """
import sys, time
end = time.monotonic() + 1.5
while time.monotonic() < end:
    pass
print(time.process_time())
"""


def on(testbed: RunningTestbed, device: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*testbed.device(device).enter_command, sys.executable, "-c", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


def test_device_memory_limit_is_enforced(bed: str, tmp_path: Path, here: Callable[..., Ended]) -> None:
    with open_testbed(written(tmp_path, bed, TEXT)) as testbed:
        assert on(testbed, "small", TAKE, str(32 * MIB)).returncode == 0
        assert on(testbed, "small", TAKE, str(128 * MIB)).returncode == -9
        assert on(testbed, "large", TAKE, str(128 * MIB)).returncode == 0
        small, large = json.loads(here("testbed", "status", bed, "--json").out)["devices"]
        assert small["memory_limit_bytes"] == 64 * MIB
        assert 32 * MIB < small["memory_peak_bytes"] <= 64 * MIB
        assert small["oom_kills"] == 1
        assert large["memory_limit_bytes"] // 4096 == 8_000_000_000_000 // 4096
        assert large["memory_peak_bytes"] > 128 * MIB
        assert large["oom_kills"] == 0


@pytest.mark.alone
def test_device_cpu_limit_is_enforced(bed: str, tmp_path: Path, here: Callable[..., Ended]) -> None:
    """A quarter of a processor, within wide bounds. More than there are is no limit."""
    with open_testbed(written(tmp_path, bed, TEXT)) as testbed:
        used_s = float(on(testbed, "small", SPIN).stdout)
        assert 0.15 < used_s / 1.5 < 0.35
        assert CONTROLLERS.cpu is not None
        file = "cpu.cfs_quota_us" if CONTROLLERS.cpu_version == 1 else "cpu.max"
        quota = (CONTROLLERS.cpu / f"tpiedge.{bed}.large" / file).read_text().split()[0]
        assert quota in ("-1", "max")
        small, large = json.loads(here("testbed", "status", bed, "--json").out)["devices"]
        assert (small["cpus"], small["cpus_limited"]) == (0.25, True)
        assert (large["cpus"], large["cpus_limited"]) == (900, False)


def test_lack_of_control_groups_is_reported(
    bed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container has the network without the limits, and says so."""

    def refuse(self: Controllers, name: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Controllers, "make", refuse)
    said: list[str] = []
    with open_testbed(written(tmp_path, bed, TEXT), say=said.append) as testbed:
        assert on(testbed, "small", "print(1)").stdout == "1\n"
    assert "devices have no limits" in said[1]


def test_entering_a_device_is_quick(bed: str) -> None:
    with open_testbed("pair", name=bed) as testbed:
        command = [*testbed.devices[0].enter_command, "true"]
        times_s = []
        for _ in range(5):
            before = os.times()
            subprocess.run(command, check=True)
            times_s.append(sum(os.times()[2:4]) - sum(before[2:4]))
        assert min(times_s) < 0.1  # of processor time: other work on this computer does not count
        with testbed.inside("device1"):
            inside = os.readlink("/proc/thread-self/ns/net")
        shown = subprocess.run(
            [*testbed.devices[0].enter_command, "readlink", "/proc/self/ns/net"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout.strip() == inside != os.readlink("/proc/thread-self/ns/net")
