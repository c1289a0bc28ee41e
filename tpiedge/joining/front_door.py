"""The master's hub, its journal and its tokens put together: who comes in, who is thrown out.

The owner of the hub calls `receive` and `tick`; `admit` and `revoke` are for any thread.
"""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from tpiedge import __version__
from tpiedge.clock import Clock, MonotonicClock
from tpiedge.errors import TpiedgeError
from tpiedge.joining.enrolment import Enrolment, EnrolmentReply
from tpiedge.joining.identity import fingerprint, peer_name
from tpiedge.joining.members import KnownWorker, MemberJournal
from tpiedge.joining.numerics import own_numerics
from tpiedge.joining.token_store import TokenStore
from tpiedge.joining.tokens import CLOCK_SET_S
from tpiedge.transport.admission import GuestPolicy
from tpiedge.transport.endpoint import Unreachable
from tpiedge.transport.zeromq import ZmqHub
from tpiedge.wire.join import Refused
from tpiedge.wire.messages import Message

__all__ = ["FrontDoor", "guest_policy"]

_log = logging.getLogger(__name__)

_CROWDED = "too many newcomers without a token wait at the master: try again, or join with a token"


def guest_policy(folder: Path) -> GuestPolicy:
    """How the control hub of the master whose state is in `folder` treats unknown keys; pass it to ZmqHub."""
    tokens = TokenStore(folder)

    def takes(ticket: str, name: str) -> bool:
        try:
            return tokens.takes(ticket, name)
        except TpiedgeError as error:
            _log.error("cannot see whether %s has a token: %s", name, error)
            return False

    return GuestPolicy(peer_name, takes=takes, crowded=Refused("limited", _CROWDED))


class FrontDoor:
    """Make it right after the hub; the journal's members are admitted and its revoked keys kept out from then on.

    `beside`: other hubs that only members may connect to.
    """

    def __init__(
        self,
        hub: ZmqHub,
        master_key: str,
        folder: Path,
        clock: Clock | None = None,
        wall_clock: Callable[[], float] = time.time,
        *,
        beside: Sequence[ZmqHub] = (),
    ) -> None:
        self._hub = hub
        self._admissions = [hub.admission, *(other.admission for other in beside)]
        self._clock = clock or MonotonicClock()
        self._wall = wall_clock
        self.journal = MemberJournal(folder)
        self._tokens = TokenStore(folder, wall_clock)
        self._clock_was_set = False
        self.enrolment = Enrolment(
            f"cluster {fingerprint(master_key)[:8]}",
            __version__,
            own_numerics(),
            lambda: self.journal.table,
            self._tokens.redeem,
        )
        self._cuts: deque[tuple[str, Refused | None]] = deque()
        for admission in self._admissions:
            for key, name in self.journal.allowed().items():
                admission.admit(key, name)
            for revoked in self.journal.table.revoked:
                admission.deny(revoked.key)

    def is_member(self, peer: str) -> bool:
        """Whether a peer that is connected is more than a guest, whose messages are all for `receive`."""
        return peer not in self._hub.admission.guests

    def receive(self, sender: str, message: Message) -> bool:
        """Answer; True where `sender` is a member from now on (and may have been before)."""
        key = self._hub.admission.key_of(sender)
        if key is None:
            return False
        try:
            reply = self.enrolment.judge(sender, key, message, self._clock.now(), self._wall())
            if reply.admit is not None:
                self.admit(reply.admit)
        except TpiedgeError as error:
            # A file of the master's, most likely.
            _log.error("cannot let %s in: %s", sender, error)
            reply = EnrolmentReply(
                Refused("denied", f"the master cannot let this worker in: {error}"), cut=True
            )
        self._answer(sender, reply)
        return not reply.cut

    def admit(self, member: KnownWorker) -> None:
        """Let a worker in for good. Raises UserError for a revoked key."""
        self.journal.admit(member)
        for admission in self._admissions:
            admission.admit(member.key, member.name)
        _log.info("%s (%s) joined by %s", member.name, member.host, member.how)

    def revoke(self, name: str) -> str:
        """Throw a worker out: nothing that it sends counts from now on. Gives its peer name. Raises UserError."""
        gone = self.journal.revoke(name, self._wall())
        for admission in self._admissions:
            admission.revoke(gone.name)
            admission.deny(gone.key)
        words = "the master has revoked this worker's key; 'tpiedge nodes revoke' was given there"
        self._cuts.append((gone.name, Refused("revoked", words)))
        return gone.name

    def tick(self) -> None:
        """Cut the connections of those revoked and of guests whose time is up. Call it several times a second, also so
        that tokens which wait for a clock that is set begin to live when it is."""
        if not self._clock_was_set and self._wall() >= CLOCK_SET_S:
            self._clock_was_set = True
            self._start_tokens()
        while self._cuts:
            name, farewell = self._cuts.popleft()
            self._hub.disconnect(name, farewell)
        for name in self._hub.admission.overstayed():
            self._hub.disconnect(name)

    def _start_tokens(self) -> None:
        try:
            self._tokens.start()
        except TpiedgeError as error:
            _log.error("cannot begin the life of tokens: %s", error)

    def _answer(self, sender: str, reply: EnrolmentReply) -> None:
        if reply.note:
            _log.info("%s: %s", sender, reply.note)
        if not reply.cut:
            with contextlib.suppress(Unreachable):
                self._hub.send(reply.answer, to=sender, timeout_s=0.0)
            return
        self._hub.admission.dismiss(sender)
        farewell = reply.answer if isinstance(reply.answer, Refused) else None
        self._hub.disconnect(sender, farewell)
