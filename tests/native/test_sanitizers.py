"""Every kernel on every instruction set of this machine, with arrays that end where their last element ends."""

import re
from pathlib import Path

import pytest

import tpiedge
from tests.native.builds import ANY_BITS, BEYOND, GOLDEN_STACK, NATIVE, Checksums, run

pytestmark = pytest.mark.timeout(1800)  # builds: half a minute of CPU

_OPERATIONS = {
    "project",
    "contract",
    "ffn",
    "panels_project",
    "panels_contract",
    "panels_ffn",
    "panels_experts",
    "panels_attention",
    "panels_stack",
    "golden_stack",
    "route",
    "rms_norm",
    "rope",
    "activate",
    "add_sums",
    "attention",
    "kv_append_f32",
    "kv_append_bf16",
    "kv_append_q8",
    "kv_append_q4",
    "quantise_q8",
    "quantise_q4",
    "draw",
    "likeliest",
}


def test_kernels_are_right_and_stay_within_their_arrays(host_checksums: Checksums) -> None:
    isas = set(host_checksums["project"])
    assert "portable" in isas
    assert {operation: set(host_checksums[operation]) for operation in _OPERATIONS} == dict.fromkeys(
        _OPERATIONS, isas
    )


def test_kernels_except_plain_products_are_bit_identical_across_isas(
    host_checksums: Checksums,
) -> None:
    for operation in _OPERATIONS - ANY_BITS:
        assert len(set(host_checksums[operation].values())) == 1, (operation, host_checksums[operation])
    assert set(host_checksums["golden_stack"].values()) == {GOLDEN_STACK}


def test_the_driver_calls_every_function_that_is_exported() -> None:
    package = Path(tpiedge.__file__).parent
    exported = re.findall(
        r"^TPIEDGE_EXPORT [\w *]*?(tpiedge_\w+)\(",
        "".join(path.read_text() for part in NATIVE for path in sorted((package / part).glob("*.cpp"))),
        re.MULTILINE,
    )
    driver = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("*.cpp")))
    assert len(exported) > 10
    assert [name for name in exported if f"{name}(" not in driver and name != "tpiedge_abi"] == []


def test_a_read_beyond_an_array_is_seen(sanitized_driver: Path) -> None:
    done = run([sanitized_driver, BEYOND])
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr
