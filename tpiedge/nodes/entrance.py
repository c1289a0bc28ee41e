"""Where workers come in: the master's hubs with their lists, the journal of members, and the judge of newcomers."""

import logging
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tpiedge import __version__
from tpiedge.clock import Clock
from tpiedge.nodes.addresses import FILES_OFFSET, PAIRING_OFFSET, Address
from tpiedge.nodes.enrolment import Enrolment, Reply
from tpiedge.nodes.identity import fingerprint, peer_name
from tpiedge.nodes.joining import MASTER
from tpiedge.nodes.members import Member, MemberJournal
from tpiedge.nodes.pairing import Pending
from tpiedge.nodes.pairing_link import PairingHub
from tpiedge.nodes.provision import FILES_HUB
from tpiedge.nodes.token_store import TokenStore
from tpiedge.transport.admission import GuestPolicy
from tpiedge.transport.framing import CONTROL, FILES
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub
from tpiedge.wire.messages import Message

__all__ = ["Entrance"]

_log = logging.getLogger(__name__)


class Entrance:
    """Listens from its construction on; owns its hubs. The control thread calls `heard` and `tick`, and is the owner
    of `hub`; `admit` and `revoke` are for any thread. Raises UserError where it cannot listen."""

    def __init__(self, listen: Address, keys: CurveKeys, folder: Path, clock: Clock) -> None:
        self._clock = clock
        self._journal = MemberJournal(folder)
        self._enrolment = Enrolment(
            f"cluster {fingerprint(keys.public)[:8]}",
            __version__,
            lambda: self._journal.table,
            TokenStore(folder).redeem,
        )
        with ExitStack() as stack:
            self.hub = stack.enter_context(
                ZmqHub(
                    address=listen.zmq,
                    keys=keys,
                    name=MASTER,
                    allowed=self._journal.allowed(),
                    plane=CONTROL,
                    guests=GuestPolicy(peer_name),
                )
            )
            self.files_hub = stack.enter_context(
                ZmqHub(
                    address=listen.beside(FILES_OFFSET).zmq,
                    keys=keys,
                    name=FILES_HUB,
                    allowed=self._journal.allowed(),
                    plane=FILES,
                    io_threads=2,
                )
            )
            self._pairing = PairingHub(listen.beside(PAIRING_OFFSET).zmq, keys.public, self.admit, clock)
            stack.callback(self._pairing.close)
            self._stack = stack.pop_all()

    def is_member(self, peer: str) -> bool:
        return any(member.name == peer for member in self._journal.table.members)

    def heard(self, peer: str, message: Message, now: float) -> None:
        """A message of a guest, or one by which a member introduces itself."""
        key = self.hub.admission.key_of(peer)
        if key is None:
            return
        reply = self._enrolment.judge(peer, key, message, now, time.time())
        if reply.note:
            _log.warning("%s: %s", peer, reply.note)
        if reply.admit is not None:
            self.admit(reply.admit)
        if reply.cut:
            self._cut(peer, reply)
        else:
            self.hub.send(reply.answer, to=peer, timeout_s=0.0)

    def admit(self, member: Member) -> None:
        """Let a worker in, now and after a restart. Raises UserError for a revoked key."""
        self._journal.admit(member)
        for hub in (self.hub, self.files_hub):
            hub.admission.admit(member.key, member.name)

    def pending(self) -> tuple[Pending, ...]:
        """Workers without a token that show a code. Any thread."""
        return self._pairing.pending()

    def approve(self, code: str) -> str:
        """Let the worker in that shows `code`; returns its peer name. Any thread. Raises UserError."""
        return self._pairing.approve(code).name

    def revoke(self, name: str) -> str:
        """Shut a worker out for good; `name` may be its host's. Returns its peer name. Raises UserError."""
        gone = self._journal.revoke(name, time.time())
        for hub in (self.hub, self.files_hub):
            hub.admission.revoke(gone.name)
        return gone.name

    def tick(self, _now: float) -> None:
        """Guests do not stay for ever."""
        for name in self.hub.admission.overstayed():
            self.hub.disconnect(name)

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _cut(self, peer: str, reply: Reply) -> None:
        self.hub.admission.dismiss(peer)
        self.hub.disconnect(peer, reply.answer)
