"""Torch with one thread, since tests share few cores; the native kernels with one and with two."""

from collections.abc import Iterator

import pytest
import torch

from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.test_linear import open_library
from tpiedge.kernels.library import Pool
from tpiedge.kernels.linear import Arithmetic, Linear


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[1, 2])
def linear(request: pytest.FixtureRequest) -> Iterator[Linear]:
    with Linear.create(Arithmetic.INT8, request.param) as made:
        if made.pool is None:
            pytest.skip("native: the kernels are not built")
        yield made


@pytest.fixture(params=AVAILABLE)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    opened_pool = Pool(open_library(request.param), 2)
    yield opened_pool
    opened_pool.close()
