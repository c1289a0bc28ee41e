"""The measured rate says whether the page cache can have answered."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tpiedge.lab.bench.memory_runs import measure_sweep
from tpiedge.memory.reader import DirectFile
from tpiedge.memory.sweep import Sweep
from tpiedge.pack.reader import Pack

SIZE = 3 * 4096


class _Matrix:
    def span(self, start: int, stop: int) -> tuple[int, int]:
        return start, stop - start


class _Pack:
    """One file of one matrix."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def blob_path(self, _key: str) -> Path:
        return self._path

    def layout(self, _key: str) -> SimpleNamespace:
        return SimpleNamespace(matrix=lambda _name: _Matrix())


@pytest.fixture
def measured(tmp_path: Path) -> tuple[Pack, Sweep]:
    path = tmp_path / "blob"
    path.write_bytes(bytes(SIZE))
    piece = SimpleNamespace(key="layer", matrix="up", units=range(0, SIZE))
    return cast(Pack, _Pack(path)), cast(Sweep, SimpleNamespace(pieces=[piece]))


def test_as_the_file_system_allows(measured: tuple[Pack, Sweep], tmp_path: Path) -> None:
    with DirectFile(tmp_path / "blob") as file:
        allowed = file.is_direct
    rate = measure_sweep(*measured, seconds=0.001)
    assert rate.bytes_per_s > 0
    assert rate.is_direct == allowed


def test_where_direct_reads_are_refused(
    measured: tuple[Pack, Sweep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DirectFile, "_open_direct", lambda _file: None)
    assert not measure_sweep(*measured, seconds=0.001).is_direct
