import logging

import pytest

from tests.fakes.clock import ManualClock
from tpiedge.sanitise import LINES, WINDOW_S, RateLimitedLog


def test_a_thousand_warnings_are_a_few_lines_and_a_number(caplog: pytest.LogCaptureFixture) -> None:
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
