"""Logarithms and exponentials of IEEE additions, multiplications and divisions in f64 alone: the same bits on every
machine. Those of C libraries and of numpy differ in their last bits."""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

# ln 2 in two parts, the first of 32 bits: it times an exponent of f64 is exact.
_LN2: Final = 0.6931471805599453
_LN2_HIGH: Final = float.fromhex("0x1.62e42feep-1")
_LN2_LOW: Final = float.fromhex("0x1.a39ef35793c76p-33")
# Of ln((1 + s) / (1 - s)) / 2s in s**2 and of e**r, the last coefficients first.
_LOGARITHM: Final = [1 / (2 * n + 1) for n in range(12, -1, -1)]
_EXPONENTIAL: Final = [1 / math.factorial(n) for n in range(15, -1, -1)]


def logarithm(value: float) -> float:
    """ln of a finite number above 0, to 2**-50 of it."""
    fraction, exponent = math.frexp(value)
    if fraction < math.sqrt(0.5):
        fraction, exponent = 2 * fraction, exponent - 1
    s = (fraction - 1) / (fraction + 1)
    series = 0.0
    for coefficient in _LOGARITHM:
        series = series * (s * s) + coefficient
    return exponent * _LN2_HIGH + (exponent * _LN2_LOW + 2 * s * series)


def exponential(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """e to the power of each, where that is a normal number, to 2**-50 of it."""
    powers = np.rint(values * (1 / _LN2))
    rest = (values - powers * _LN2_HIGH) - powers * _LN2_LOW
    series = np.zeros_like(rest)
    for coefficient in _EXPONENTIAL:
        series = series * rest + coefficient
    result: NDArray[np.float64] = np.ldexp(series, powers.astype(np.int64))
    return result
