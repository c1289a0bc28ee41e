import math
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.pack.conftest import build_spec
from tpiedge.errors import ProtocolError
from tpiedge.lab.random_weights import RandomSource
from tpiedge.pack.grids import check_exponents, grid_exponents
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import Precision
from tpiedge.pack.writer import write_pack

QUANTISED = [Precision.Q8, Precision.Q4]
ROWS = {"o": 120, "down": 200}
MakePack = Callable[[Precision, float], Pack]


@pytest.fixture
def make(tmp_path: Path) -> MakePack:
    def made(precision: Precision, std: float) -> Pack:
        spec = build_spec()
        write_pack(spec, RandomSource.for_spec(0, spec, "F32", std=std), precision, tmp_path / "pack")
        return Pack.open(tmp_path / "pack")

    return made


@pytest.mark.parametrize("std", [0.004, 0.02, 0.5])
@pytest.mark.parametrize("precision", QUANTISED)
def test_steps_are_about_sixteen_bits_below_an_output(make, precision, std):
    for layer in grid_exponents(make(precision, std)):
        for exponent, rows in zip(layer, ROWS.values(), strict=True):
            assert abs(exponent + 16 - math.log2(std * math.sqrt(rows))) <= 1.5


@pytest.mark.parametrize("precision", QUANTISED)
def test_where_the_sample_is_zeros_an_output_may_be_of_size_one(precision: Precision, make: MakePack) -> None:
    assert grid_exponents(make(precision, 0.0)) == ((-16, -16),) * 2


def test_grids_that_cannot_be_a_pack_s(make: MakePack) -> None:
    pack = make(Precision.Q4, 0.02)
    check_exponents(grid_exponents(pack), pack)
    check_exponents(((-100, 100),) * 2, pack)
    for layers in (0, 1, 3):
        with pytest.raises(ProtocolError, match=f"grids of {layers} layers, the pack needs those of 2"):
            check_exponents(((-16, -16),) * layers, pack)
    for beyond in (-101, 101):
        with pytest.raises(ProtocolError, match="beyond"):
            check_exponents(((0, 0), (0, beyond)), pack)
