"""The page in a real browser, served by the real server before a cluster that answers by script."""

from collections.abc import Iterator

import pytest

from tests.process.leaks import leak_check
from tpiedge.api.limits import Limits


@pytest.fixture(scope="module", autouse=True)
def _leak_check() -> Iterator[None]:
    """As everywhere, but over a module, whose tests share a browser that starts and ends processes all the time."""
    with leak_check("module"):
        yield


@pytest.fixture
def url(serve):
    return serve(limits=Limits(ping_s=0.2)).url


@pytest.fixture
def words(service):
    return lambda text: service.tokenizer.encode(text, add_special=False)
