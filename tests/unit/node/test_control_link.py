import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tpiedge.clock import MonotonicClock
from tpiedge.errors import PeerLost
from tpiedge.node.control_link import ClusterLiveness, ControlLink
from tpiedge.transport.endpoint import Unreachable
from tpiedge.wire.control import Hello

POSTED = 20_000


class Slow:
    """An Endpoint at which `posted` messages wait, of which it sends 500 at a time until it fails."""

    def __init__(self, *, fails: bool) -> None:
        self.posted = POSTED
        self._fails = fails

    def send(self, message: object, timeout_s: float = 0.0) -> None:
        assert isinstance(message, Hello)

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
    link = ControlLink(endpoint, clock, liveness, 60.0, lambda: None, never)  # type: ignore[arg-type]
    link.start(Hello(1, 0))
    try:
        yield link
    finally:
        link.close()


def test_the_engine_waits_until_little_is_left() -> None:
    endpoint = Slow(fails=False)
    with linked(endpoint) as link:
        link.await_room()
        assert endpoint.posted <= 1000


def test_where_the_link_fails_the_wait_ends() -> None:
    with linked(Slow(fails=True)) as link, pytest.raises(PeerLost, match="its link failed"):
        link.await_room()
