"""Draws a token from scores, and ranks tokens with log probabilities. No torch.

Scores are f32 [V], contiguous, without NaN and +inf. At least one score is above -inf. Filters apply in this order:
`top_k`, `top_p`, `min_p`. A token's mass is 2**`mass_bits` * e**((score - largest) / temperature), rounded to an
integer. The sum of all masses fits int64. numpy defines the result. The native kernels (native/draw.cpp) give the same
bits, without the GIL. Functions raise MemoryError.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tpiedge.kernels.shared_library import KernelLibrary, kernel_library

Scores = NDArray[np.float32]
Ids = NDArray[np.intp]
Masses = NDArray[np.int64]

# ln 2 in two parts; the first has 32 bits, so its product with an exponent of f64 is exact.
_LOG2_E: Final = 1 / 0.6931471805599453
_LN2_HIGH: Final = float.fromhex("0x1.62e42feep-1")
_LN2_LOW: Final = float.fromhex("0x1.a39ef35793c76p-33")
_LEAST: Final = -64.0  # exponents from here down have mass 0
_SERIES: Final = [1 / math.factorial(n) for n in range(11, -1, -1)]
"""Taylor coefficients of e**r, the last first: exact to 2**-46 for |r| <= ln 2 / 2."""


@dataclass(frozen=True, slots=True)
class Filters:
    #: Above 0.
    temperature: float
    #: Keeps the k largest scores, and others equal to the k-th (0: all).
    top_k: int = 0
    #: Keeps the likeliest tokens (equal ones by id), as few as have this part of the total mass (1: all).
    top_p: float = 1.0
    #: Keeps tokens with at least this part of the largest mass.
    min_p: float = 0.0


def draw(scores_V: Scores, filters: Filters, number: float) -> int:
    """Returns the first surviving id at which the cumulated mass exceeds `number` times the total mass. `number` is in
    [0, 1)."""
    library = kernel_library()
    if library is None:
        return draw_by_numpy(scores_V, filters, number)
    token = library.dll.tpiedge_draw(
        _level(library),
        scores_V.ctypes.data,
        len(scores_V),
        filters.temperature,
        filters.top_k,
        filters.top_p,
        filters.min_p,
        number,
    )
    return int(_complete(token))


def likeliest(scores_V: Scores, count: int) -> tuple[list[int], float]:
    """Returns ids of the `count` largest scores, and log(sum(e**score))."""
    count, bits = min(count, len(scores_V)), mass_bits(len(scores_V))
    library = kernel_library()
    if library is None:
        ids = [int(i) for i in _descending(scores_V, count)[:count]]
        mass = int(masses_of(scores_V, 1.0, bits).sum())
    else:
        found = np.empty(count, np.int64)
        address = scores_V.ctypes.data
        mass = library.dll.tpiedge_likeliest(
            _level(library), address, len(scores_V), count, found.ctypes.data
        )
        ids, mass = found.tolist(), int(_complete(mass))
    return ids, float(scores_V[ids[0]]) + math.log(mass * 2.0**-bits)


def _level(library: KernelLibrary) -> int:
    return 1 if library.isa.startswith("avx") else 0


def _complete(result: int) -> int:
    if result < 0:
        raise MemoryError("no memory for drawing a token")
    return result


def draw_by_numpy(scores_V: Scores, filters: Filters, number: float) -> int:
    ids, masses = survivors(scores_V, filters)
    cumulative = np.cumsum(masses)
    total = int(cumulative[-1])
    target = min(int(number * float(total)), total - 1)
    return int(ids[np.searchsorted(cumulative, target, side="right")])


def mass_bits(vocab_size: int) -> int:
    """Returns log2 of the likeliest token's mass."""
    return min(50, 62 - vocab_size.bit_length())


def survivors(scores_V: Scores, filters: Filters) -> tuple[Ids, Masses]:
    """Returns the ids that pass the filters, ascending, and their masses."""
    bits = mass_bits(len(scores_V))
    ids = _top_k(scores_V, filters.top_k)
    masses = masses_of(scores_V[ids], filters.temperature, bits)
    kept = _nucleus(scores_V[ids], masses, filters.top_p)
    kept = kept[masses[kept] >= math.ceil(filters.min_p * 2.0**bits)]
    return ids[kept], masses[kept]


def masses_of(scores: Scores, temperature: float, bits: int) -> Masses:
    """Returns the masses of each row of `scores`, as native/mass.inl does."""
    with np.errstate(over="ignore", invalid="ignore"):  # a tiny temperature sends all but the best to -inf
        below = scores.astype(np.float64) - scores.max(-1, keepdims=True)
        exponents = np.maximum(np.where(below < 0, below / temperature, 0.0), _LEAST)
    powers = np.rint(exponents * _LOG2_E)
    rest = (exponents - powers * _LN2_HIGH) - powers * _LN2_LOW
    series = np.full_like(rest, _SERIES[0])
    for coefficient in _SERIES[1:]:
        series = series * rest + coefficient
    masses: Masses = np.rint(np.ldexp(series, powers.astype(np.int64) + bits)).astype(np.int64)
    return masses


def _top_k(scores: Scores, k: int) -> Ids:
    if k == 0 or k >= len(scores):
        return np.arange(len(scores))
    return np.flatnonzero(scores >= np.partition(scores, -k)[-k])


def _descending(scores: Scores, k: int) -> Ids:
    largest = _top_k(scores, k)
    return largest[np.argsort(-scores[largest], kind="stable")]


def _nucleus(scores: Scores, masses: Masses, top_p: float) -> Ids:
    if top_p >= 1:
        return np.arange(len(masses))
    total = int(masses.sum())
    needed = min(max(math.ceil(top_p * float(total)), 1), total)
    count = 1024  # a full sort of a large vocabulary takes 12 ms, this 1 ms
    while True:
        largest = _descending(scores, count)
        sums = np.cumsum(masses[largest])
        if sums[-1] >= needed:
            return np.sort(largest[: np.searchsorted(sums, needed) + 1])
        count *= 16
