"""One hub and its spokes in two makes, one of them in two ways, and the check that nothing is left behind."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from tpiedge.clock import MonotonicClock
from tpiedge.collectives.liveness import DeadlineLiveness
from tpiedge.transport.endpoint import Endpoint
from tpiedge.transport.framing import TENSOR, Plane
from tpiedge.transport.inprocess import InProcessHub
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke


class Network:
    """Makes one hub, "node-0", and spokes "node-1" and so on; closes them all."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.keys = [CurveKeys.generate() for _ in range(5)]
        self._stack = ExitStack()
        self._hub: InProcessHub | ZmqHub | None = None

    def hub(self, plane: Plane = TENSOR) -> InProcessHub | ZmqHub:
        if self.kind == "inprocess":
            self._hub = self._stack.enter_context(closing(InProcessHub("node-0", plane)))
        else:
            allowed = {keys.public: f"node-{rank}" for rank, keys in enumerate(self.keys) if rank}
            self._hub = self._stack.enter_context(
                ZmqHub("tcp://127.0.0.1:*", self.keys[0], "node-0", allowed, plane=plane, io_threads=2)
            )
        return self._hub

    def spoke(self, rank: int = 1, plane: Plane = TENSOR) -> Endpoint:
        name = f"node-{rank}"
        if isinstance(self._hub, InProcessHub):
            return self._stack.enter_context(closing(self._hub.spoke(name)))
        assert isinstance(self._hub, ZmqHub)
        key = self.keys[0].public
        spoke = ZmqSpoke(self._hub.address, key, self.keys[rank], name, hub_name="node-0", plane=plane)
        return self._stack.enter_context(spoke)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(params=["inprocess", "zeromq", "zeromq in Python"])
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """Closed at the end of the test; fails if a thread or a file descriptor stays."""
    if request.param == "zeromq in Python":
        monkeypatch.setenv("TPIEDGE_FAST_LINK", "0")
    before = _open_things()
    made = Network(request.param)
    yield made
    made.close()
    assert _open_things() == before


@pytest.fixture
def liveness() -> Callable[[], DeadlineLiveness]:
    return lambda: DeadlineLiveness(MonotonicClock(), 10.0)


def _open_things() -> tuple[set[str], int]:
    names = {thread.name for thread in threading.enumerate()}
    threads = {name for name in names if not name.startswith("pytest_timeout")}
    return threads, len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
