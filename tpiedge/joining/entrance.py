"""Where workers come in: the master's control hub with its front door, and the hubs beside it for files and pairing."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tpiedge.clock import Clock
from tpiedge.host.addresses import FILES_OFFSET, PAIRING_OFFSET, Address
from tpiedge.joining.connecting import MASTER
from tpiedge.joining.front_door import FrontDoor, guest_policy
from tpiedge.joining.members import KnownWorker, Revoked
from tpiedge.joining.pairing import Pending
from tpiedge.joining.pairing_link import PairingHub
from tpiedge.shipping.provision import FILES_HUB
from tpiedge.transport.framing import CONTROL, FILES
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub
from tpiedge.wire.messages import Message

_FILES_THREADS = 2


class Entrance:
    """Listens from its construction on; owns its hubs. The control thread owns `hub`, and alone calls `heard`, `settle`
    and `tick`; the rest is for other threads, and may block for the disk. Raises UserError where it cannot listen."""

    def __init__(self, listen: Address, keys: CurveKeys, folder: Path, clock: Clock) -> None:
        with ExitStack() as stack:
            self.hub = stack.enter_context(
                ZmqHub(
                    address=listen.zmq,
                    keys=keys,
                    name=MASTER,
                    allowed={},
                    plane=CONTROL,
                    guests=guest_policy(folder),
                )
            )
            self.files_hub = stack.enter_context(
                ZmqHub(
                    address=listen.beside(FILES_OFFSET).zmq,
                    keys=keys,
                    name=FILES_HUB,
                    allowed={},
                    plane=FILES,
                    io_threads=_FILES_THREADS,
                )
            )
            self._door = FrontDoor(self.hub, keys.public, folder, clock, beside=[self.files_hub])
            stack.callback(self._door.close)
            self._pairing = PairingHub(
                listen.beside(PAIRING_OFFSET).zmq, keys.public, self._door.admit, clock
            )
            stack.callback(self._pairing.close)
            self._stack = stack.pop_all()

    @property
    def members(self) -> tuple[KnownWorker, ...]:
        """The workers that may come without a token, in the order in which they were let in."""
        return self._door.journal.table.members

    @property
    def revoked(self) -> tuple[Revoked, ...]:
        """The workers that were shut out for good, in that order."""
        return self._door.journal.table.revoked

    def is_member(self, peer: str) -> bool:
        """Whether a peer that is connected is more than a guest."""
        return self._door.is_member(peer)

    def heard(self, peer: str, message: Message, _now: float) -> None:
        """Let the peer in, or turn it away: a guest's message, or one by which a member introduces itself."""
        self._door.receive(peer, message)

    def settle(self) -> None:
        """Answers those for whom the disk was waited for."""
        self._door.settle()

    def newcomers(self) -> list[str]:
        """The workers that were let in for good since the last call, in their order."""
        return self._door.newcomers()

    def tick(self, _now: float) -> None:
        """Cuts the connections of peers that were revoked or stayed too long as guests."""
        self._door.tick()

    def pending(self) -> tuple[Pending, ...]:
        """Workers without a token that show a code."""
        return self._pairing.pending()

    def approve(self, code: str) -> str:
        """Let the worker in that shows `code`; returns its peer name. Raises UserError."""
        return self._pairing.approve(code).name

    def called(self, name: str, hosts: Mapping[str, str]) -> str:
        """The peer name of the worker that `name` means, as MemberTable.called. Raises UserError."""
        return self._door.journal.table.called(name, hosts)

    def revoke(self, name: str, hosts: Mapping[str, str], at_once: Callable[[str], None]) -> str:
        """Shut a worker out for good and return its peer name; `name` and `hosts` as in MemberTable.called. `at_once`
        gets the peer name before the disk has it. Raises UserError, DiskFull.
        """
        peer = self.called(name, hosts)
        self._door.revoke(peer, at_once)
        return peer

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
