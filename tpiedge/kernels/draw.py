"""Drawing one token from scores, and the likeliest tokens with their log probabilities. No torch.

`numpy_draw` defines which token a draw gives. Where the native kernels are built, they compute it (native/draw.cpp) on
the calling thread, with the GIL released: the same tokens, and log probabilities to the last bit, whatever the
instruction set.

Scores are f32[V], contiguous, without NaN and +inf, one of them above -inf. MemoryError where the system has no memory
for a draw.
"""

import math

import numpy as np

from tpiedge.kernels import numpy_draw
from tpiedge.kernels.numpy_draw import Filters, Scores, mass_bits
from tpiedge.kernels.shared_library import KernelLibrary, kernel_library

__all__ = ["Filters", "draw", "likeliest"]


def draw(scores_V: Scores, filters: Filters, number: float) -> int:
    """The id that `number`, from [0, 1), draws from what `filters` leave."""
    library = kernel_library()
    if library is None:
        return numpy_draw.draw(scores_V, filters, number)
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
    """The ids of the `count` largest scores (all if there are fewer; one at least), descending, equals by id; and the
    logarithm of the sum of e**score over all tokens, to 2e-8 for vocabularies of 262,144."""
    count = min(count, len(scores_V))
    ids, mass = _likeliest(scores_V, count)
    return ids, float(scores_V[ids[0]]) + math.log(mass * 2.0 ** -mass_bits(len(scores_V)))


def _likeliest(scores_V: Scores, count: int) -> tuple[list[int], int]:
    library = kernel_library()
    if library is None:
        return numpy_draw.likeliest(scores_V, count)
    ids = np.empty(count, np.int64)
    mass = library.dll.tpiedge_likeliest(
        _level(library), scores_V.ctypes.data, len(scores_V), count, ids.ctypes.data
    )
    return ids.tolist(), int(_complete(mass))


def _level(library: KernelLibrary) -> int:
    """As in native/draw.cpp."""
    return 1 if library.isa.startswith("avx") else 0


def _complete(result: int) -> int:
    if result < 0:
        raise MemoryError("no memory for drawing a token")
    return result
