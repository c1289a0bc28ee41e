"""The portable kernels' fused multiplication and addition for CPUs without an instruction for it, against fractions."""

import math
import random
import struct
from fractions import Fraction
from pathlib import Path

import pytest

from tests.native.builds import FUSED, run

pytestmark = pytest.mark.timeout(1800)  # builds: half a minute of CPU

_INFINITY, _NAN = 0x7F800000, 0x7FC00000
_LEAST = Fraction(1, 1 << 149)
Triple = tuple[int, int, int]


def number(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def bits_of(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def rounded(exact: Fraction) -> int:
    size, sign = abs(exact), 0x80000000 if exact < 0 else 0
    step = _LEAST
    while size >= step * (1 << 24):
        step *= 2
    steps = round(size / step)  # of a Fraction: halves to even
    value = steps * step
    return sign | (_INFINITY if value >= 1 << 128 else bits_of(float(value)))


def expected(triple: Triple) -> int:
    a, b, c = map(number, triple)
    if not all(map(math.isfinite, (a, b, c))):
        total = a * b + c  # as in f64
        return _NAN if total != total else bits_of(total)
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return rounded(exact) if exact else bits_of(a * b + c)  # which of the zeros: as in f64


def assert_exact(driver: Path, triples: list[Triple]) -> None:
    done = run([driver, FUSED], text="".join(f"{a:x} {b:x} {c:x}\n" for a, b, c in triples))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split()
    assert len(lines) == len(triples)
    for triple, line in zip(triples, lines, strict=True):
        found = int(line, 16)
        found = _NAN if math.isnan(number(found)) else found
        assert f"{found:08x}" == f"{expected(triple):08x}", [f"{bits:08x}" for bits in triple]


def ties(rng: random.Random) -> Triple:
    """Sums in the middle between two f32, or beside it by less than f64 holds: (1 + i u) (1 - i u) = 1 - i^2 u^2."""
    c = rng.getrandbits(23) | rng.choice([0, rng.randint(0, 200)]) << 23
    half = max(c >> 23, 1) - 151  # of the last place, as a power of two
    away = rng.choice([0, 1, 2, 3, 50, 2000]) * 2.0**-23
    a, b = bits_of(math.ldexp(1 + away, half // 2)), bits_of(math.ldexp(1 - away, half - half // 2))
    signs = [rng.getrandbits(1) << 31 for _ in range(3)]
    return a ^ signs[0], b ^ signs[1], c ^ signs[2]


def hidden_beyond_f64(rng: random.Random) -> Triple:
    """A tie of f32 with a product so small that f64 loses it: only the rounding to odd tells the side."""
    a = rng.getrandbits(23) | rng.randint(10, 60) << 23 | rng.getrandbits(1) << 31
    b = rng.getrandbits(23) | rng.randint(60, 120) << 23
    return a, b, rng.getrandbits(23) | rng.randint(90, 250) << 23 | rng.getrandbits(1) << 31


def cancelling(rng: random.Random) -> Triple:
    a, b = (rng.getrandbits(23) | rng.randint(90, 160) << 23 for _ in range(2))
    near = rounded(Fraction(number(a)) * Fraction(number(b)))
    return a, b ^ 0x80000000, near + rng.choice([0, 0, 1, -1])


def around_a_power(rng: random.Random) -> Triple:
    """Sums just below a power of two, where places are half as large."""
    exponent = rng.randint(60, 200)
    return (
        rng.getrandbits(23) | max(1, exponent - rng.randint(20, 60)) << 23 | 1 << 31,
        0x3F800000,
        exponent << 23,
    )


def denormal(rng: random.Random) -> Triple:
    a = rng.getrandbits(23) | rng.randint(0, 60) << 23 | rng.getrandbits(1) << 31
    b = rng.getrandbits(23) | rng.randint(0, 80) << 23
    return a, b, rng.getrandbits(24) | rng.getrandbits(1) << 31


def huge(rng: random.Random) -> Triple:
    a, b, c = (rng.getrandbits(23) | rng.randint(low, 254) << 23 for low in (185, 185, 250))
    return a ^ rng.getrandbits(1) << 31, b, c ^ rng.getrandbits(1) << 31


def any_bits(rng: random.Random) -> Triple:
    return rng.getrandbits(32), rng.getrandbits(32), rng.getrandbits(32)


@pytest.mark.parametrize(
    "kind", [ties, hidden_beyond_f64, cancelling, around_a_power, denormal, huge, any_bits]
)
def test_portable_fma_rounds_once(sanitized_driver: Path, kind: object) -> None:
    assert callable(kind)
    rng = random.Random(1)
    assert_exact(sanitized_driver, [kind(rng) for _ in range(1000)])


def test_portable_fma_handles_special_numbers(sanitized_driver: Path) -> None:
    special = [0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F800001, 0x4B800000, 0x7F7FFFFF, _INFINITY, _NAN]
    special += [bits | 1 << 31 for bits in special]
    assert_exact(sanitized_driver, [(a, b, c) for a in special for b in special for c in special])


def test_tie_inputs_expose_double_rounding_in_f64() -> None:
    rng = random.Random(1)
    many = [ties(rng) for _ in range(4000)]
    twice = [bits_of(number(a) * number(b) + number(c)) for a, b, c in many]
    differ = sum(expected(one) != other for one, other in zip(many, twice, strict=True))
    assert differ > 500
