"""The kernels on emulated Arm CPUs: right, and but for products of plain matrices the same bits as on this machine."""

import itertools
from pathlib import Path

import pytest

from tests.native.builds import ANY_BITS, BEYOND, GOLDEN_STACK, Checksums, report, run

pytestmark = pytest.mark.timeout(1800)  # builds and emulates: a minute of CPU

# The emulator's names of CPUs without the products of eight bits, with those of vectors, with those of matrices.
_CPUS = {
    "cortex-a72": {"portable", "neon"},
    "cortex-a76": {"portable", "neon", "neondotprod"},
    "max": {"portable", "neon", "neondotprod", "neoni8mm"},
}


@pytest.mark.parametrize("cpu", _CPUS)
def test_arm_cpu_uses_its_kernels_and_matches_host_bits(
    cpu: str, arm_driver: Path, emulator: str, host_checksums: Checksums
) -> None:
    found = report(arm_driver, [emulator, "-cpu", cpu])
    assert set(found["panels_project"]) == _CPUS[cpu]
    assert set(found["golden_stack"].values()) == {GOLDEN_STACK}
    for operation in set(found) - ANY_BITS:
        everywhere = itertools.chain(found[operation].values(), host_checksums[operation].values())
        assert len(set(everywhere)) == 1, (operation, found[operation], host_checksums[operation])


def test_a_read_beyond_an_array_ends_the_driver(arm_driver: Path, emulator: str) -> None:
    assert run([emulator, arm_driver, BEYOND]).returncode != 0
