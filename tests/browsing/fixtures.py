"""One browser for all tests of a module, or of a folder, without traces for the next test."""

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.browsing.browser import Browser

__all__ = ["opened"]

_PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
_DRIVER = shutil.which("chromedriver")


def opened(*, keeps: bool) -> Iterator["Browser"]:
    """Yields a browser. Its processes come and go, so the tests that share it are checked for leaks as a whole."""
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
    yield from opened(keeps=True)


@pytest.fixture
def forgetful_browser() -> Iterator["Browser"]:
    for browser in opened(keeps=False):
        browser.shape(1200, 800)
        yield browser
        assert browser.complaints() == []


@pytest.fixture
def browser(_browser: "Browser") -> Iterator["Browser"]:
    """A browser with a desktop's window. Errors of scripts and violations of the policy fail the test."""
    _browser.complaints()
    _browser.shape(1200, 800)
    yield _browser
    _browser.forget()
    assert _browser.complaints() == []
