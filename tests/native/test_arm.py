"""The kernels on emulated Arm CPUs: right, and with quantised weights the same bits as on this machine."""

import itertools
from pathlib import Path

import pytest

from tests.native.builds import BEYOND, Checksums, report, run

pytestmark = pytest.mark.timeout(1800)  # builds and emulates: a minute of CPU

# The emulator's names of CPUs without the products of eight bits, with those of vectors, with those of matrices.
_CPUS = {
    "cortex-a72": {"portable", "neon"},
    "cortex-a76": {"portable", "neon", "neondotprod"},
    "max": {"portable", "neon", "neondotprod", "neoni8mm"},
}
_SAME_BITS = (
    "panels_project",
    "panels_contract",
    "kv_append_q8",
    "kv_append_q4",
    "quantise_q8",
    "quantise_q4",
    "wire_bf16",
    "wire_int8",
)


@pytest.mark.parametrize("cpu", _CPUS)
def test_an_arm_cpu_uses_what_it_has_and_computes_the_same_bits(
    cpu: str, arm_driver: Path, emulator: str, host_checksums: Checksums
) -> None:
    found = report(arm_driver, [emulator, "-cpu", cpu])
    assert set(found["panels_project"]) == _CPUS[cpu]
    for operation in _SAME_BITS:
        everywhere = itertools.chain(found[operation].values(), host_checksums[operation].values())
        assert len(set(everywhere)) == 1, (operation, found[operation], host_checksums[operation])


def test_a_read_beyond_an_array_ends_the_driver(arm_driver: Path, emulator: str) -> None:
    assert run([emulator, arm_driver, BEYOND]).returncode != 0
