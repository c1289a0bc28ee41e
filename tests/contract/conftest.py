from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.contract.master_hub import MasterHub
from tests.contract.networks import Network, linked
from tests.contract.ranks import CLUSTERS, Ranks
from tpiedge.clock import MonotonicClock
from tpiedge.collectives.communicator import DeadlineLiveness


@pytest.fixture(params=["inprocess", "zeromq", "zeromq in Python"])
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    with linked(request.param, monkeypatch) as made:
        yield made


@pytest.fixture(params=CLUSTERS, ids=lambda param: "-".join(map(str, param)))
def ranks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    kind, way, size = request.param
    with linked(kind, monkeypatch) as network:
        yield Ranks(network, way, size).begun() if size > 1 else Ranks(network, way, size)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MasterHub]:
    with closing(MasterHub(tmp_path)) as made:
        yield made


@pytest.fixture
def liveness() -> Callable[[], DeadlineLiveness]:
    return lambda: DeadlineLiveness(MonotonicClock(), 10.0)
