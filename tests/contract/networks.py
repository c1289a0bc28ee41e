"""One hub and its spokes, or ranks that are all linked, in two makes, one of them in two ways; and the check that
nothing is left behind."""

import functools
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from tests.fakes.inprocess import InProcessHub, InProcessPeer
from tpiedge.collectives.peer_channel import node_name
from tpiedge.transport.admission import ZmqContext
from tpiedge.transport.endpoint import TENSOR, Endpoint, Plane
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.mesh import ZmqMesh
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke

_MOST_RANKS = 8


@functools.cache
def _keys() -> list[CurveKeys]:
    return [CurveKeys.generate() for _ in range(_MOST_RANKS)]


class Network:
    """Makes one hub, "node-0", and spokes "node-1" and so on, or a mesh of such names; closes them all."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.keys = _keys()
        self._stack = ExitStack()
        self._hub: InProcessHub | ZmqHub | None = None

    def hub(self, plane: Plane = TENSOR) -> InProcessHub | ZmqHub:
        if self.kind == "inprocess":
            self._hub = self._stack.enter_context(closing(InProcessHub("node-0", plane)))
        else:
            self._hub = self._stack.enter_context(self._listener(0, plane, io_threads=2))
        return self._hub

    def spoke(self, rank: int = 1, plane: Plane = TENSOR) -> Endpoint:
        name = f"node-{rank}"
        if isinstance(self._hub, InProcessHub):
            return self._stack.enter_context(closing(self._hub.spoke(name)))
        assert isinstance(self._hub, ZmqHub)
        return self._stack.enter_context(self._connection(rank, 0, self._hub.address, plane))

    def star(self, size: int) -> Sequence[Endpoint]:
        hub, spokes = self.hub(), [self.spoke(rank) for rank in range(1, size)]
        if isinstance(hub, InProcessHub):
            return hub, *spokes
        named: list[dict[str, Any]] = [{node_name(0): spoke} for spoke in spokes]
        return ZmqMesh(hub.name, hub, {}), *(
            ZmqMesh(node_name(at), None, one) for at, one in enumerate(named, 1)
        )

    def mesh(self, size: int) -> Sequence[Endpoint]:
        made: Sequence[InProcessPeer | ZmqMesh]
        if self.kind == "inprocess":
            made = InProcessPeer.group([node_name(rank) for rank in range(size)])
        else:
            made = self._zmq_mesh(size)
        for one in made:
            self._stack.callback(one.close)
        return made

    def close(self) -> None:
        self._stack.close()

    def _zmq_mesh(self, size: int) -> Sequence[ZmqMesh]:
        """A rank listens to those above it and connects to those below it."""
        contexts = [ZmqContext(1) for _ in range(size)]
        for context in contexts:
            self._stack.callback(context.close)
        hubs = [self._listener(rank, TENSOR, context=contexts[rank]) for rank in range(size - 1)]
        made = []
        for rank in range(size):
            spokes = {
                node_name(lower): self._connection(rank, lower, hubs[lower].address, TENSOR, contexts[rank])
                for lower in range(rank)
            }
            made.append(ZmqMesh(node_name(rank), hubs[rank] if rank < size - 1 else None, spokes))
        return made

    def _listener(
        self, rank: int, plane: Plane, *, io_threads: int = 1, context: ZmqContext | None = None
    ) -> ZmqHub:
        allowed = {self.keys[r].public: node_name(r) for r in range(rank + 1, len(self.keys))}
        return ZmqHub(
            "tcp://127.0.0.1:*",
            self.keys[rank],
            node_name(rank),
            allowed,
            plane=plane,
            io_threads=io_threads,
            context=context,
        )

    def _connection(
        self, rank: int, lower: int, address: str, plane: Plane, context: ZmqContext | None = None
    ) -> ZmqSpoke:
        key, hub_name = self.keys[lower].public, node_name(lower)
        return ZmqSpoke(
            address, key, self.keys[rank], node_name(rank), hub_name=hub_name, plane=plane, context=context
        )


@contextmanager
def linked(kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """Closed at the end; fails if a thread or a file descriptor stays."""
    if kind == "zeromq in Python":
        monkeypatch.setenv("TPIEDGE_FAST_LINK", "0")
    before = _open_things()
    made = Network(kind)
    yield made
    made.close()
    assert _open_things() == before


def _open_things() -> tuple[set[str], int]:
    names = {thread.name for thread in threading.enumerate()}
    threads = {name for name in names if not name.startswith("pytest_timeout")}
    return threads, len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
