import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from tpiedge.cli import worker as joining
from tpiedge.errors import PeerError, TpiedgeError, UserError
from tpiedge.host.addresses import Address
from tpiedge.host.service_manager import ServiceManager
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.codec import PROTOCOL
from tpiedge.wire.join import Enrolled

NAMED = Address("kitchen.test", 7070)
THERE = Address("10.0.0.1", 7070)
KEYS = CurveKeys.generate()


class Network:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.met: list[TpiedgeError | None] = []
        self.unknown = 0
        self.enrolled: Callable[[], Enrolled] = lambda: Enrolled("w-1", "home", PROTOCOL, "1")
        names = ("threads", "cache_limit", "memory")
        given = dict.fromkeys(names) | {"name": "pi", "cache": folder, "model_dir": ()}
        self._own = joining._Joining(folder, given, lambda _line: None, ServiceManager({}))
        monkeypatch.setattr(joining, "_RETRY_S", 0.0)
        monkeypatch.setattr(joining, "open_link", self._open)
        monkeypatch.setattr(joining, "enrol", lambda *_: self.enrolled())

    def join(self, *, found: bool, wait: bool = True) -> Address:
        master = joining._Master(NAMED, KEYS.public, "", found)
        deadline = math.inf if wait else time.monotonic()
        with ExitStack() as stack:
            return self._own.joined(master, deadline, stack)[2]

    def _open(self, *_: object, **__: object) -> "Link":
        if self.unknown:
            self.unknown -= 1
            raise UserError("the host is not known here")
        if (error := self.met.pop(0)) is not None:
            raise error
        return Link(THERE.zmq)


class Link(AbstractContextManager["Link"]):
    def __init__(self, address: str) -> None:
        self.address = address

    def __enter__(self) -> "Link":
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Network:
    return Network(monkeypatch, tmp_path)


OTHER_PROGRAMS = (
    UserError("what answers is not a tpiedge master"),
    UserError("it is a tpiedge master with another key"),
)


def test_wrong_master_or_unknown_host_is_fatal_only_at_start(network: Network) -> None:
    for error in OTHER_PROGRAMS:
        network.met = [error]
        with pytest.raises(UserError, match=str(error)):
            network.join(found=False)
    network.unknown = 1
    with pytest.raises(UserError, match="not known"):
        network.join(found=False)
    network.unknown, network.met = 2, [*OTHER_PROGRAMS, PeerError("nobody answers"), None]
    assert network.join(found=True) == THERE
    network.met = [PeerError("nobody answers")]
    with pytest.raises(PeerError, match="nobody"):
        network.join(found=False, wait=False)


@pytest.mark.parametrize("found", [False, True])
def test_refusal_by_the_master_is_not_retried(network: Network, found: bool) -> None:
    def refused() -> Enrolled:
        raise UserError("the master has revoked the key of this worker")

    network.enrolled, network.met = refused, [None]
    with pytest.raises(UserError, match="revoked"):
        network.join(found=found)
