"""Whether a worker waits for a master that it cannot join, and at which of its addresses."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from tpiedge.cli import worker as joining
from tpiedge.errors import PeerError, TpiedgeError, UserError
from tpiedge.host.addresses import Address
from tpiedge.host.memory_limits import MemoryLimits
from tpiedge.joining import connecting
from tpiedge.pack.store.store import ShardStore
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.join import Enrolled
from tpiedge.wire.messages import PROTOCOL
from tpiedge.wire.weights import Keeping

NAMED = Address("kitchen.test", 7070)
THERE, ELSEWHERE = Address("10.0.0.1", 7070), Address("10.0.0.2", 7070)
KEYS = CurveKeys.generate()


class Network:
    """`met` is what each try meets; None is the master. `unknown`: so often its name means nothing first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.addresses: tuple[Address, ...] = (THERE,)
        self.met: list[TpiedgeError | None] = []
        self.unknown = 0
        self.enrolled: Callable[[], Enrolled] = lambda: Enrolled("w-1", "home", PROTOCOL, "1")
        self.tried: list[Address] = []
        self._own = joining._Joining(
            folder=folder,
            host="pi",
            store=ShardStore(folder / "shards"),
            local=[],
            threads=1,
            memory_limits=MemoryLimits(1 << 30),
            keeping=Keeping(),
            say=lambda _line: None,
        )
        monkeypatch.setattr(joining, "_RETRY_S", 0.0)
        monkeypatch.setattr(connecting, "resolve_all", self._resolve)
        monkeypatch.setattr(connecting, "_open", self._open)
        monkeypatch.setattr(joining, "enrol", lambda *_: self.enrolled())

    def join(self, *, found: bool, wait: bool = True) -> Address:
        """The address of the master that it is a member of."""
        master = joining._Master(NAMED, KEYS.public, "", found)
        deadline = math.inf if wait else time.monotonic()
        with ExitStack() as stack:
            return self._own.joined(master, deadline, stack)[2]

    def _resolve(self, _named: Address) -> tuple[Address, ...]:
        if self.unknown:
            self.unknown -= 1
            raise UserError("the host is not known here")
        return self.addresses

    def _open(self, address: Address, *_: object) -> "Link":
        self.tried.append(address)
        if (error := self.met.pop(0)) is not None:
            raise error
        return Link(address.zmq)


class Link(AbstractContextManager["Link"]):
    def __init__(self, address: str) -> None:
        self.address = address

    def __enter__(self) -> "Link":
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Network:
    return Network(monkeypatch, tmp_path)


STRANGERS = (
    UserError("what answers is not a tpiedge master"),
    UserError("it is a tpiedge master with another key"),
)


@pytest.mark.parametrize("stranger", STRANGERS, ids=str)
def test_a_stranger_at_the_master_s_address_ends_a_worker_at_its_start_alone(
    network: Network, stranger: UserError
) -> None:
    network.met = [stranger]
    with pytest.raises(UserError, match=str(stranger)):
        network.join(found=False)
    network.met = [stranger, stranger, PeerError("nobody answers"), None]
    assert network.join(found=True) == THERE


def test_so_does_a_name_that_means_nothing(network: Network) -> None:
    network.unknown, network.met = 1, [None]
    with pytest.raises(UserError, match="not known"):
        network.join(found=False)
    network.unknown = 2
    assert network.join(found=True) == THERE


@pytest.mark.parametrize("found", [False, True])
def test_what_the_master_itself_refuses_is_not_asked_again(network: Network, found: bool) -> None:
    def refused() -> Enrolled:
        raise UserError("the master has revoked the key of this worker")

    network.enrolled, network.met = refused, [None]
    with pytest.raises(UserError, match="revoked"):
        network.join(found=found)


@pytest.mark.parametrize("found", [False, True])
def test_each_of_the_name_s_addresses_is_tried(network: Network, found: bool) -> None:
    """Where trying again changes nothing at one of them, it may at another one."""
    network.addresses = THERE, ELSEWHERE
    network.met = [STRANGERS[1], PeerError("nobody answers"), STRANGERS[0], None]
    assert network.join(found=found) == ELSEWHERE
    assert network.tried == [THERE, ELSEWHERE] * 2


def test_who_does_not_wait_is_told_what_may_change(network: Network) -> None:
    network.addresses = THERE, ELSEWHERE
    network.met = [STRANGERS[1], PeerError("nobody answers")]
    with pytest.raises(PeerError, match="nobody"):
        network.join(found=False, wait=False)
