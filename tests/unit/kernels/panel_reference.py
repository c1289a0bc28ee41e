"""Quantised matrices and their products, slowly, from the words of kernels/panels.py and native/panels.h alone."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.panels import FORMATS

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


#: What becomes of a sum one of whose parts is no number, or above 2**46 in magnitude.
NOT_A_NUMBER = -(1 << 63)


@dataclass(frozen=True)
class Quantised:
    """A matrix in both forms. `parts`: codes without offset [O, I] and scales [O, G] of each unit of inputs."""

    matrix: PanelMatrix
    parts: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float16]]]

    @property
    def values(self) -> F64:
        return np.concatenate([widened(codes, scales) for codes, scales in self.parts], 1)


def widened(codes: npt.NDArray[np.int64], scales: npt.NDArray[np.float16]) -> F64:
    return codes * np.repeat(scales.astype(np.float64), 32, axis=1)[:, : codes.shape[1]]


def random_matrix(
    random: np.random.Generator,
    bits: int,
    rows: int,
    cols: int,
    rows_per_unit: int,
    transposed: bool,
    slack: int = 0,
) -> Quantised:
    blobs, parts = [], []
    for start in range(0, rows, rows_per_unit):
        count = min(rows_per_unit, rows - start)
        outputs, inputs = (cols, count) if transposed else (count, cols)
        codes = random.integers(0, 1 << bits, (outputs, inputs))
        scales = (random.standard_normal((outputs, -(-inputs // 32))) / 100).astype(np.float16)
        scales[random.random(scales.shape) < 0.05] = 0
        scales[random.random(scales.shape) < 0.05] = np.float16(6e-8)  # denormal
        blobs.append(lay_out(codes, scales, bits))
        parts.append((codes - (1 << bits - 1), scales))
    if not transposed:
        none = np.zeros((0, cols), np.int64), np.zeros((0, -(-cols // 32)), np.float16)
        codes_of, scales_of = zip(none, *parts, strict=True)
        parts = [(np.concatenate(codes_of), np.concatenate(scales_of))]
    return Quantised(_matrix(blobs, bits, rows, cols, rows_per_unit, transposed, slack), parts)


def _matrix(
    blobs: list[bytes], bits: int, rows: int, cols: int, rows_per_unit: int, transposed: bool, slack: int
) -> PanelMatrix:
    unit_nbytes = (len(blobs[0]) if blobs else 0) + slack
    data = b"".join(blob.ljust(unit_nbytes, b"\xff") for blob in blobs[:-1]) + b"".join(blobs[-1:])
    data_B = torch.empty(len(data), dtype=torch.uint8)
    data_B[:] = torch.tensor(list(data), dtype=torch.uint8)
    return PanelMatrix(data_B, FORMATS[f"q{bits}"], rows, cols, rows_per_unit, unit_nbytes, transposed)


def lay_out(codes: npt.NDArray[np.int64], scales: npt.NDArray[np.float16], bits: int) -> bytes:
    outputs, inputs = codes.shape
    result = bytearray()
    for first in range(0, outputs, 16):
        for pair in range(0, inputs, 64):
            some = slice(first, first + 16)
            head = np.zeros((2, 16), np.float16)
            of_pair = scales[some, pair // 32 : pair // 32 + 2].T
            head[: of_pair.shape[0], : of_pair.shape[1]] = of_pair
            result += head.tobytes() + _lay_out_codes(codes[some, pair : pair + 64], bits)
    return bytes(result)


def _lay_out_codes(codes: npt.NDArray[np.int64], bits: int) -> bytes:
    filled, step = -(-codes.shape[1] // 8) * 8, 32 // bits
    result = bytearray(filled * 16 * bits // 8)
    for r, row in enumerate(codes.tolist()):
        for i, code in enumerate(row):
            block, at = divmod(i, step)
            byte = 64 * block + 4 * r + at % 4
            result[byte] |= code << 4 if at >= 4 else code
    return bytes(result)


KINDS = ["plain", "zeros", "outliers", "denormals", "ties", "no numbers"]


def values(random: np.random.Generator, tokens: int, inputs: int, kind: str) -> F32:
    x = random.standard_normal((tokens, inputs)).astype(np.float32)
    if not inputs:
        return x
    where = random.random(x.shape)
    if kind == "zeros":
        x[:, : inputs // 2] = 0
        x[where < 0.5] = -0.0
    elif kind == "outliers":
        x[where < 0.02] *= np.float32(1e37)
    elif kind == "denormals":
        x *= np.float32(1e-41)
        x[:, inputs // 2 :] *= 1e4  # 127 / 1e-37 is too large, 127 / 1e-36 is not
    elif kind == "ties":
        x = np.round(x * 20).astype(np.float32) / 2
        x[:, ::32] = 127
    elif kind == "no numbers":
        x[where < 0.01] = np.nan
        x[where > 0.99] = np.inf
        x[0, -1] = -np.inf
    return x


def sides(w: PanelMatrix) -> tuple[int, int]:
    return (w.cols, w.rows) if w.transposed else (w.rows, w.cols)


def share_of(w: PanelMatrix, start: int, stop: int) -> PanelMatrix:
    first, last = (min(unit * w.rows_per_unit, w.rows) for unit in (start, stop))
    data_B = w.data_B[start * w.unit_nbytes : stop * w.unit_nbytes]
    return PanelMatrix(data_B, w.format, last - first, w.cols, w.rows_per_unit, w.unit_nbytes, w.transposed)


def quantise_activations(x: F32) -> tuple[npt.NDArray[np.int64], F32]:
    q, scales = np.zeros(len(x), np.int64), np.zeros(-(-len(x) // 32), np.float32)
    with np.errstate(all="ignore"):
        for group in range(len(scales)):
            some = x[32 * group : 32 * group + 32]
            most = np.abs(some).max()
            inverse = np.float32(127) / most
            if not np.isfinite(most):
                scales[group] = np.nan
            elif np.isfinite(inverse):
                scales[group] = most / np.float32(127)
                q[32 * group : 32 * group + 32] = np.rint(some * inverse)
    return q, scales


def product(x_TI: F32, w: Quantised) -> F32:
    ((codes, scales),) = w.parts
    return np.stack(
        [np.zeros((sides(w.matrix)[0],), np.float32), *(_fold(row, codes, scales) for row in x_TI)]
    )[1:]


def sums(x_TI: F32, w: Quantised, exponent: int) -> I64:
    result = np.zeros((len(x_TI), sides(w.matrix)[0]), np.int64)
    for t, row in enumerate(x_TI):
        parts = [_fold(part, *of_unit, exponent) for part, *of_unit in _units(row, w)]
        result[t] = [added(part[o] for part in parts) for o in range(sides(w.matrix)[0])]
    return result


def added(parts: Iterable[np.float32]) -> int:
    steps = [float(part) for part in parts]
    numbers = all(abs(step) <= 1 << 46 for step in steps)  # false for NaN
    return sum(map(round, steps)) if numbers else NOT_A_NUMBER


def _fold(x_I: F32, codes: I64, scales: npt.NDArray[np.float16], exponent: int = 0) -> F32:
    y_O = np.zeros(len(codes), np.float32)
    q, dx = quantise_activations(x_I)
    with np.errstate(all="ignore"):
        dx = dx * np.float32(2.0**-exponent)
        for group in range(len(dx)):
            some = slice(32 * group, 32 * group + 32)
            exact = (codes[:, some] @ q[some]).astype(np.float32)
            y_O = fused(exact, scales[:, group].astype(np.float32) * dx[group], y_O)
    return y_O


def fused(a: F32, b: F32, c: F32) -> F32:
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) * b
        total = exact + c
        back = total - exact
        error = (exact - (total - back)) + (c - back)
        bits = total.view(np.int64)
        even = (bits & 1) == 0
        away = (error > 0) == (total > 0)
        moved = np.where((error != 0) & np.isfinite(error) & even, np.where(away, bits + 1, bits - 1), bits)
        return moved.view(np.float64).astype(np.float32)


def _units(row: F32, w: Quantised) -> Iterator[tuple[F32, npt.NDArray[np.int64], npt.NDArray[np.float16]]]:
    start = 0
    for codes, scales in w.parts:
        yield row[start : start + codes.shape[1]], codes, scales
        start += codes.shape[1]
