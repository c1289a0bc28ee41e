"""A browser for whoever wants one: one for all tests of a module, which leaves nothing behind for the next."""

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.browsing.browser import Browser

__all__: list[str] = []

_PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
_DRIVER = shutil.which("chromedriver")


def _opened(*, keeps: bool) -> Iterator["Browser"]:
    """Its processes come and go: the module checks for what is left behind as a whole."""
    if _PROGRAM is None or _DRIVER is None:
        pytest.skip(
            "browser: there is no chromium with its chromedriver (Debian: apt install chromium-driver)"
        )
    from tests.browsing.browser import Browser  # hundreds of milliseconds

    browser = Browser(_PROGRAM, _DRIVER, keeps=keeps)
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def _browser() -> Iterator["Browser"]:
    yield from _opened(keeps=True)


@pytest.fixture
def forgetful_browser() -> Iterator["Browser"]:
    """It lets pages store nothing."""
    for browser in _opened(keeps=False):
        browser.shape(1200, 800)
        yield browser
        assert browser.complaints() == []


@pytest.fixture
def browser(_browser: "Browser") -> Iterator["Browser"]:
    """With a desktop's window. Afterwards it must not have complained, neither of scripts nor of the policy."""
    _browser.complaints()
    _browser.shape(1200, 800)
    yield _browser
    _browser.forget()
    assert _browser.complaints() == []
