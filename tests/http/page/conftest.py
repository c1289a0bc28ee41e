"""The page in a real browser, served by the real server before a cluster that answers by script."""

from collections.abc import Iterator

import pytest

from tests.browsing.fixtures import opened
from tests.process.leaks import leak_check
from tpiedge.api.limits import Limits


@pytest.fixture(scope="package", autouse=True)
def _leak_check() -> Iterator[None]:
    """Checks the folder as a whole, whose tests share a browser that starts and ends processes all the time."""
    with leak_check("folder"):
        yield


@pytest.fixture(scope="package")
def _browser():
    yield from opened(keeps=True)


@pytest.fixture
def url(serve):
    return serve(limits=Limits(ping_s=0.2)).url


@pytest.fixture
def words(service):
    return lambda text: service.tokenizer.encode(text, add_special=False)
