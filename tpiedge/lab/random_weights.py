"""Makes random weights (normal, deviation STD), for a model of any shape without a checkpoint.

A number depends only on seed, tensor name, row and column. bf16 weights are the rounded f32 weights. A matrix's row is
a piece of one pool of normally distributed numbers, times +1 or -1. In a matrix of up to 1,048,573 rows, all pieces
have different offsets.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from tpiedge.errors import UserError
from tpiedge.kernels.panels import Array, PanelFormat
from tpiedge.pack.dtypes import SourceDtype, bf16_from_f32
from tpiedge.pack.source import OpenFiles, TensorSource
from tpiedge.pack.specs import ModelSpec

STD = 0.02

_POOL = 1048573  # prime, so that a step visits every offset
_STEP = 648055  # near _POOL / golden ratio: neighbouring rows lie far apart
_LONGEST_ROW = 1 << 19
_LOOP_FROM_COLS = 256  # from here on a copy per row beats numpy's gather


@dataclass(frozen=True)
class RandomTensor:
    seed: int
    name: str
    shape: tuple[int, ...]
    dtype: SourceDtype
    std: float
    files: tuple[Path, ...] = ()

    def read(self, files: OpenFiles, rows: range, cols: range) -> Array:
        del files
        what = self.seed, self.name
        if len(self.shape) == 1:
            return random_vector(*what, self.shape[0], self.dtype)[None, cols.start : cols.stop]
        place = rows.start, len(rows), len(cols)
        return random_rows(*what, *place, self.dtype, first_col=cols.start, std=self.std)

    def codes(self, files: OpenFiles, rows: range, cols: range, form: PanelFormat) -> None:
        del files, rows, cols, form


class RandomSource(TensorSource):
    """Random weights. Matrices have the standard deviation `std`. Norms are near 1, biases near 0."""

    def __init__(
        self, seed: int, shapes: Mapping[str, tuple[int, ...]], dtype: SourceDtype, std: float = STD
    ) -> None:
        tensors = {name: RandomTensor(seed, name, shape, dtype, std) for name, shape in shapes.items()}
        super().__init__(tensors)
        self._fingerprint = f"random seed={seed} dtype={dtype} std={std}"

    @classmethod
    def for_spec(cls, seed: int, spec: ModelSpec, dtype: SourceDtype, std: float = STD) -> Self:
        return cls(seed, spec.source_shapes, dtype, std)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint


def random_rows(
    seed: int,
    name: str,
    first_row: int,
    count: int,
    cols: int,
    dtype: SourceDtype,
    *,
    first_col: int = 0,
    std: float = STD,
) -> Array:
    """Returns `count` rows and `cols` columns of the random matrix `name`. BF16 numbers are bits in uint16."""
    if first_col + cols > _LONGEST_ROW:
        raise UserError(f"random weights have rows of at most {_LONGEST_ROW} numbers, not {first_col + cols}")
    pool = _pool(seed, dtype, std)
    rows = np.arange(first_row, first_row + count, dtype=np.uint64)
    key = _key(seed, name)
    offsets = ((rows * _STEP + key % _POOL) % _POOL + first_col).astype(np.int64)
    values = _gather(pool, offsets, cols)
    sign_bit = np.uint64(values.dtype.itemsize * 8 - 1)
    bits: Array = values.view(np.uint32 if dtype == "F32" else np.uint16)
    signs = (_mix(rows + np.uint64(key)) << sign_bit).astype(bits.dtype)
    np.bitwise_xor(bits, signs[:, None], out=bits)
    return values


def random_vector(seed: int, name: str, length: int, dtype: SourceDtype) -> Array:
    """Returns numbers near 0 if `name` contains "bias", else numbers near 1."""
    generator = np.random.Generator(np.random.PCG64(_key(seed, name)))
    noise = generator.standard_normal(length, dtype=np.float32) * np.float32(STD)
    return _as(noise if "bias" in name else noise + np.float32(1), dtype)


def _gather(pool: Array, offsets: Array, cols: int) -> Array:
    if cols < _LOOP_FROM_COLS:
        windows: Array = np.lib.stride_tricks.sliding_window_view(pool, cols)
        return np.ascontiguousarray(windows[offsets])
    values = np.empty((len(offsets), cols), pool.dtype)
    for row, offset in enumerate(offsets.tolist()):
        values[row] = pool[offset : offset + cols]
    return values


@lru_cache(maxsize=2)
def _pool(seed: int, dtype: SourceDtype, std: float) -> Array:
    generator = np.random.Generator(np.random.PCG64(_key(seed, "pool")))
    normal = generator.standard_normal(_POOL + _LONGEST_ROW, dtype=np.float32)
    return _as(normal * np.float32(std), dtype)


def _as(values: Array, dtype: SourceDtype) -> Array:
    if dtype == "BF16":
        return bf16_from_f32(values)
    return values.astype(np.float16) if dtype == "F16" else values


def _key(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}\0{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 2  # adding a row number does not overflow int64


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns one pseudo-random bit per value (splitmix64's finaliser)."""
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) & np.uint64(1)
