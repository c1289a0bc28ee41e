import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.clock import ManualClock
from tpiedge.sanitise import LINES, WINDOW_S, RateLimitedLog, quote, sanitised, sanitised_line, sanitised_name


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("its process was killed by SIGKILL", "its process was killed by SIGKILL"),
        ("", ""),
        ("two\nlines\r", "two lines"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("\u202eright to left", "\\u202eright to left"),
        ("größer", "größer"),
        ("x" * 5000, "x" * 997 + "..."),
    ],
)
def test_sanitised_line_escapes_and_shortens(said: str, shown: str) -> None:
    assert sanitised_line(said) == shown


@given(st.text())
def test_sanitised_line_is_printable_bounded_and_idempotent(said: str) -> None:
    assert sanitised_line(said).isprintable()
    assert len(sanitised_line(said)) <= 1000
    assert sanitised_line(sanitised_line(said)) == sanitised_line(said)


@pytest.mark.fault("H12", "shown as visible characters")
def test_terminal_escapes_are_replaced() -> None:
    assert sanitised("a\x1b[2J\r\nb\t\u009b", "\n\t") == "a [2J \nb\t "


def test_untrusted_names_are_sanitised() -> None:
    assert sanitised_name("pi\x1b[31m\n\u202e") == "pi[31m"
    assert sanitised_name("\n") == "unnamed"
    assert len(sanitised_name("x" * 200)) == 64


def test_quote_escapes_and_shortens() -> None:
    assert quote("a\n\u202e") == "'a\\n\\u202e'"
    assert quote("x" * 100, 10) == "'xxxxxx..."


def test_repeated_warnings_are_rate_limited_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    log = RateLimitedLog(logging.getLogger("tpiedge.tests"), clock.now)
    for number in range(1000):
        log.warning("bad request %d of %s", number, "w-1")
    clock.advance(WINDOW_S)
    log.warning("bad request %d of %s", 1000, "w-2")
    log.warning("100 % bad")
    assert caplog.messages == [
        *(f"bad request {number} of w-1" for number in range(LINES)),
        f"bad request 1000 of w-2 (and {1000 - LINES} times something like it)",
        "100 % bad",
    ]
