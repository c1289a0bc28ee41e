import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.fakes.clock import ManualClock
from tpiedge.clock import MonotonicClock
from tpiedge.errors import PeerLost
from tpiedge.node.control_link import ClusterLiveness, ControlLink
from tpiedge.transport.endpoint import Unreachable
from tpiedge.wire.control import Hello, PeerPulse

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


def test_engine_waits_until_send_queue_drains() -> None:
    endpoint = Slow(fails=False)
    with linked(endpoint) as link:
        link.await_room()
        assert endpoint.posted <= 1000


def test_failed_link_ends_the_wait() -> None:
    with linked(Slow(fails=True)) as link, pytest.raises(PeerLost, match="its link failed"):
        link.await_room()


def make() -> tuple[ManualClock, ClusterLiveness]:
    clock = ManualClock()
    return clock, ClusterLiveness(clock, timeout_s=1.5, stall_s=30.0)


def test_wait_continues_while_master_and_peer_advance() -> None:
    clock, liveness = make()
    for second in range(100):
        liveness.heard_master()
        liveness.report(PeerPulse(1, 1, second, 0, "computing"))
        liveness.check(1, "allreduce")
        clock.advance(1.0)


def test_a_silent_master_ends_the_wait() -> None:
    clock, liveness = make()
    clock.advance(1.6)
    liveness.heard_nothing()
    with pytest.raises(PeerLost, match=r"the master has been silent for 1\.6 s"):
        liveness.check(1, "allreduce")


def test_stalled_node_does_not_blame_the_master() -> None:
    """Messages of the master wait to be read after a pause: none was missed yet."""
    clock, liveness = make()
    clock.advance(60.0)
    liveness.check(1, "allreduce")
    liveness.heard_master()
    liveness.check(1, "allreduce")


def test_lost_peer_ends_wait_with_its_cause() -> None:
    _, liveness = make()
    liveness.mark_lost(2, "killed by signal 9")
    liveness.mark_lost(2, "a later cause")
    with pytest.raises(PeerLost, match="node 2 was lost during allreduce: killed by signal 9"):
        liveness.check(1, "allreduce")


def test_live_peer_without_progress_is_lost() -> None:
    clock, liveness = make()
    liveness.report(PeerPulse(1, 3, 4, 0, "computing"))
    for _ in range(31):
        liveness.heard_master()
        liveness.report(PeerPulse(1, 3, 4, 0, "computing"))
        liveness.check(1, "allreduce")
        clock.advance(1.0)
    liveness.heard_master()
    with pytest.raises(PeerLost, match="without progress for 31 s"):
        liveness.check(1, "allreduce")
