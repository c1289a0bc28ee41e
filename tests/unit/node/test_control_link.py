"""The engine says no more than the master takes, for as long as there is a link to it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tpiedge.clock import MonotonicClock
from tpiedge.node.control_link import ControlLink
from tpiedge.node.liveness import ClusterLiveness
from tpiedge.transport.endpoint import Unreachable
from tpiedge.wire.control import Hello

POSTED = 20_000


class Slow:
    """An Endpoint at which `posted` messages wait, of which it sends 500 at a time until it fails."""

    def __init__(self, *, fails: bool) -> None:
        self.posted = POSTED
        self._fails = fails

    def send(self, _message: object, timeout_s: float = 0.0) -> None:
        """Others go before."""

    def recv(self, _timeout_s: float) -> None:
        time.sleep(0.001)
        if self._fails:
            raise Unreachable("master", 3.0)
        self.posted = max(0, self.posted - 500)

    def close(self) -> None:
        self._fails = True


@contextmanager
def linked(endpoint: Slow) -> Iterator[ControlLink]:
    def never(*_: object) -> None:
        raise AssertionError("the master said nothing")

    clock = MonotonicClock()
    liveness = ClusterLiveness(clock, timeout_s=60.0, stall_s=60.0)
    link = ControlLink(endpoint, clock, liveness, 60.0, lambda: None, never, never, never)  # type: ignore[arg-type]
    link.start(Hello(1, 0, 1, 1, "1", 1, "cpu"))
    try:
        yield link
    finally:
        link.close()


@pytest.mark.parametrize("fails", [False, True])
def test_the_engine_waits_until_little_is_left_or_the_link_fails(fails: bool) -> None:
    endpoint = Slow(fails=fails)
    with linked(endpoint) as link:
        link.await_room()
        assert endpoint.posted == POSTED if fails else endpoint.posted <= 1000
