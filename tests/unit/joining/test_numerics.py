"""What a machine says that it computes with."""

import struct
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tpiedge.joining import numerics
from tpiedge.joining.numerics import Numerics, own_numerics


@pytest.mark.parametrize(
    ("installed", "said"),
    [("2.9.1+cpu", "2.9.1"), ("2.9.1", "2.9.1"), ("2.10.0.dev20260101+cu130", "2.10.0.dev20260101")],
)
def test_what_a_build_adds_to_the_release_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str, said: str
) -> None:
    folder = tmp_path / f"torch-{installed}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {installed}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert own_numerics().torch == said


def test_no_torch_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert own_numerics().torch == ""


def test_the_format_of_this_machine_has_a_name() -> None:
    assert own_numerics().numbers == f"{sys.byteorder}-endian IEEE 754"


def test_floats_of_another_kind_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the old ARMs, whose doubles have their halves swapped."""

    def swapped(order: str) -> bytes:
        double = struct.pack("<d", 1.1)
        return double[4:] + double[:4] if order == "@" else double

    monkeypatch.setattr(numerics, "_floats", swapped)
    assert own_numerics().numbers == f"{sys.byteorder}-endian 9999f13f9a999999"


def test_nothing_is_imported_for_it() -> None:
    code = (
        "import sys; from tpiedge.joining.numerics import own_numerics; own_numerics(); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_kernels_and_the_processor_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = own_numerics()
    monkeypatch.setenv("TPIEDGE_NATIVE", "0")
    assert own_numerics() == before
    assert Numerics.__slots__ == ("torch", "numbers")
