"""All ranks of a cluster, and an ear at their sockets."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.contract.fast_link.cluster import Cluster, Ear
from tpiedge.collectives import fast as fast_path
from tpiedge.transport.mesh import ZmqMesh


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cluster]]:
    made: list[Cluster] = []
    plain = ZmqMesh._reduce

    def watched(self: ZmqMesh, *arguments: Any) -> int:
        outcome = plain(self, *arguments)
        for one in made:
            for rank, endpoint in enumerate(one.endpoints):
                if endpoint is self:
                    one.calls[rank].put((outcome, self._holder is not None))
        return outcome

    def make_one(*arguments: Any) -> Cluster:
        made.append(Cluster(*arguments))
        return made[-1]

    monkeypatch.setattr(ZmqMesh, "_reduce", watched)
    # On a busy machine some calls in a row may leave off for lack of time.
    monkeypatch.setattr(fast_path, "_MOST_LEFT_OFF", sys.maxsize)
    yield make_one
    for one in made:
        one.close()


@pytest.fixture
def ear(monkeypatch: pytest.MonkeyPatch) -> Ear:
    return Ear(monkeypatch)
