"""A real browser without a screen: Debian's chromium, driven by its chromium-driver through selenium."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

__all__ = ["chromium", "why_no_chromium"]

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_DRIVER = "chromedriver"
_LOAD_S = 60.0
#: As root there is no sandbox, in a container little shared memory; and nothing is asked of the internet.
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-proxy-server",
)


def why_no_chromium() -> str | None:
    """Why there can be no browser here, in words."""
    if _browser() is None or shutil.which(_DRIVER) is None:
        return "software: no browser with its driver (packages chromium, chromium-driver)"
    return None


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Chrome]:
    """A browser with a new `profile`."""
    options = ChromeOptions()
    options.binary_location = _browser() or ""
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    driver = Chrome(options, ChromeService(shutil.which(_DRIVER)))
    try:
        driver.set_page_load_timeout(_LOAD_S)
        driver.set_script_timeout(_LOAD_S)
        yield driver
    finally:
        driver.quit()


def _browser() -> str | None:
    return next(filter(None, map(shutil.which, _BROWSERS)), None)
