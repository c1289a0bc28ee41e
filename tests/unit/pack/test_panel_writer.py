"""Reading and quantising at once: who waits for whom, and what is left when either fails or nobody asks any more."""

import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest

from tpiedge.errors import UserError
from tpiedge.kernels.quantise import QuantisationError
from tpiedge.lab.random_weights import RandomSource
from tpiedge.pack.dtypes import Array
from tpiedge.pack.layout import BlobLayout, PanelLayout, Precision
from tpiedge.pack.specs import BlobSpec, MatrixSpec
from tpiedge.pack.writing import panel_writer
from tpiedge.pack.writing.panel_writer import Quantiser

LIMIT_S = 30.0
ROWS, COLS = 64, 96
SPECS = tuple(MatrixSpec(name, f"tensor.{name}", ROWS, COLS, ROWS) for name in ("q", "k", "v"))


class WatchedSource(RandomSource):
    """Calls `on_read` with a tensor's name before it is read."""

    def __init__(self, on_read: Callable[[str], None]) -> None:
        super().__init__(7, {spec.source: (ROWS, COLS) for spec in SPECS}, "F32")
        self.on_read = on_read

    def read_rows(self, name: str, first: int, count: int) -> Array:
        self.on_read(name)
        return super().read_rows(name, first, count)


@pytest.fixture(autouse=True)
def _each_matrix_is_a_job_and_none_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel_writer, "_MAX_WAITING_BYTES", 0)


@pytest.fixture
def matrices() -> list[tuple[MatrixSpec, PanelLayout]]:
    layout = BlobLayout.of(BlobSpec(SPECS), Precision.Q4)
    pairs = zip(SPECS, layout.matrices, strict=True)
    return [(spec, matrix) for spec, matrix in pairs if isinstance(matrix, PanelLayout)]


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("tpiedge")]


def test_the_next_matrix_is_read_while_one_is_quantised(
    matrices: list[tuple[MatrixSpec, PanelLayout]], monkeypatch: pytest.MonkeyPatch
) -> None:
    second_is_read = threading.Event()
    quantise_unit = panel_writer.quantise_unit

    def quantise_late(*arguments: object) -> tuple[Array, QuantisationError]:
        assert second_is_read.wait(LIMIT_S)
        return quantise_unit(*arguments)

    def on_read(name: str) -> None:
        if name == SPECS[1].source:
            second_is_read.set()

    monkeypatch.setattr(panel_writer, "quantise_unit", quantise_late)
    with Quantiser(search=False) as quantiser:
        parts = list(quantiser.parts(matrices, WatchedSource(on_read)))
    assert [part.nbytes for part in parts] == [matrix.nbytes for _, matrix in matrices]
    assert [tensor.tensor for tensor in quantiser.quality] == [spec.source for spec in SPECS]
    assert own_threads() == []


def test_a_matrix_that_cannot_be_read_comes_after_those_before(
    matrices: list[tuple[MatrixSpec, PanelLayout]],
) -> None:
    def on_read(name: str) -> None:
        if name == SPECS[2].source:
            raise UserError("gone")

    with Quantiser(search=False) as quantiser:
        parts = quantiser.parts(matrices, WatchedSource(on_read))
        assert next(parts).nbytes == matrices[0][1].nbytes
        with pytest.raises(UserError, match="gone"):
            list(parts)
    assert own_threads() == []


def test_nothing_waits_for_a_read_that_nobody_wants(
    matrices: list[tuple[MatrixSpec, PanelLayout]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that cannot be quantised ends it all while the next matrix is being read."""
    reading, failing = threading.Event(), threading.Event()
    quantise_unit = panel_writer.quantise_unit

    def on_read(name: str) -> None:
        if name == SPECS[1].source:
            reading.set()
            assert failing.wait(LIMIT_S)

    def quantise_wrong(values: Array, *arguments: object) -> tuple[Array, QuantisationError]:
        assert reading.wait(LIMIT_S)
        failing.set()
        return quantise_unit(np.full_like(values, np.nan), *arguments)

    monkeypatch.setattr(panel_writer, "quantise_unit", quantise_wrong)
    with Quantiser(search=False) as quantiser:
        parts = quantiser.parts(matrices, WatchedSource(on_read))
        with pytest.raises(UserError, match=f"{SPECS[0].source}, row 0"):
            list(parts)
    del parts
    gc.collect()
    assert own_threads() == []


def test_who_stops_asking_leaves_no_thread(matrices: list[tuple[MatrixSpec, PanelLayout]]) -> None:
    goes_on = threading.Event()

    def on_read(name: str) -> None:
        if name != SPECS[0].source:
            assert goes_on.wait(LIMIT_S)

    with Quantiser(search=False) as quantiser:
        parts = quantiser.parts(matrices, WatchedSource(on_read))
        goes_on.set()
        assert next(parts).nbytes == matrices[0][1].nbytes
        goes_on.clear()
        del parts
        gc.collect()
        goes_on.set()
    assert own_threads() == []
