"""Admits and revokes workers at the master's hub.

The hub's owner calls `handle`, `finish_joins` and `tick`. They read small files. A second thread writes the files, in
order. Other threads call `admit` and `revoke`. These two methods wait for the disk.
"""

import contextlib
import functools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from tpiedge.errors import TpiedgeError
from tpiedge.joining.enrolment import Enrolment, introduction
from tpiedge.joining.identity import cluster_name, peer_name
from tpiedge.joining.members import NEW_KEY, KnownWorker, MemberJournal, Redemption, Revoked
from tpiedge.joining.tokens import CLOCK_SET_S, TokenStore
from tpiedge.sanitise import sanitised_name
from tpiedge.transport.admission import UnknownPeerPolicy
from tpiedge.transport.endpoint import Unreachable
from tpiedge.transport.zeromq import ZmqHub
from tpiedge.wire.fields import Message
from tpiedge.wire.join import Enrol, Enrolled, Refused

# Number of newcomers that may wait for the disk.
_MAX_CANDIDATES = 64

_log = logging.getLogger(__name__)


def unknown_peer_policy(folder: Path) -> UnknownPeerPolicy:
    """Returns the control hub's policy. `folder` has the master's state."""
    refusal = Refused("limited", "too many newcomers without a token: try again, or join with a token")
    return UnknownPeerPolicy(peer_name, accepts_ticket=TokenStore(folder).accepts_ticket, refusal=refusal)


class Registrar:
    """Admits the journal's members at the control hub `hub` and at the other hubs `beside`. Only members may use the
    other hubs. Close the Registrar before the hubs."""

    def __init__(
        self,
        hub: ZmqHub,
        master_key: str,
        folder: Path,
        wall_clock: Callable[[], float] = time.time,
        *,
        beside: Sequence[ZmqHub] = (),
    ) -> None:
        self._hub = hub
        self._admissions = [hub.admission, *(other.admission for other in beside)]
        self._wall = wall_clock
        self.journal = MemberJournal(folder)
        self._tokens = TokenStore(folder, wall_clock)
        self._clock_was_set = False
        cluster, own = f"cluster {cluster_name(master_key)}", introduction("master")
        self._enrolment = Enrolment(cluster, own, lambda: self.journal.table, self._tokens.quick_check)
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._disk = threading.Thread(target=self._run, name="tpiedge-members", daemon=True)
        self._disk.start()
        #: Peers that wait for the disk.
        self._candidates: set[str] = set()
        self._newcomers: deque[str] = deque()
        self._outcomes: deque[tuple[KnownWorker, Enrol, Redemption | TpiedgeError]] = deque()
        self._admitting = threading.Lock()
        self._cuts: deque[tuple[str, Refused | None]] = deque()
        for admission in self._admissions:
            for member in self.journal.table.members:
                admission.admit(member.key, member.name)
            for revoked in self.journal.table.revoked:  # last: a key in both lists stays out
                admission.revoke(revoked.name, revoked.key)

    def is_member(self, peer: str) -> bool:
        """Whether a connected peer is a member. `handle` answers the other peers."""
        return peer not in self._hub.admission.unknown_peers

    def handle(self, sender: str, message: Message) -> None:
        """Answers a message, or lets `finish_joins` answer it after the disk write."""
        key = self._hub.admission.key_of(sender)
        if key is None or sender in self._candidates:
            return
        answer = self._enrolment.check(sender, key, message)
        if not isinstance(answer, Enrol):
            self._answer(sender, answer)
        elif len(self._candidates) < _MAX_CANDIDATES:
            self._candidates.add(sender)
            member = KnownWorker(key, sanitised_name(answer.name), self._wall(), "token")
            self._jobs.put(functools.partial(self._join, member, answer))
        else:
            self._answer(sender, Refused("limited", "too many workers join at once: try again in a minute"))

    def finish_joins(self) -> list[str]:
        """Answers workers whose disk writes are done. Returns the new members."""
        while self._outcomes:
            member, message, outcome = self._outcomes.popleft()
            self._candidates.discard(member.name)
            self._answer(member.name, self._enrolment.answer(member.name, message, outcome))
        return [self._newcomers.popleft() for _ in range(len(self._newcomers))]

    def admit(self, member: KnownWorker) -> None:
        """Admits a worker for good. Raises UserError, DiskFull."""
        self.journal.admit(member)
        self._admitted(member)

    def revoke(self, name: str, at_once: Callable[[str], None] | None = None) -> None:
        """Revokes a worker. Calls `at_once` before the write. Raises UserError, DiskFull."""

        def shut_out(gone: Revoked) -> None:
            self._follow_table(gone.key)
            words = f"the master has revoked this worker's key ('tpiedge nodes revoke' was given there): {NEW_KEY}"
            self._cuts.append((gone.name, Refused("revoked", words)))
            if at_once is not None:
                at_once(gone.name)

        self.journal.revoke(name, self._wall(), shut_out)

    def close(self) -> None:
        """Waits up to 10 s for the disk writes. Idempotent."""
        self._jobs.put(None)
        self._disk.join(10.0)
        if self._disk.is_alive():
            _log.error(
                "the disk does not take what it should: workers that joined last may have to join again"
            )

    def tick(self) -> None:
        """Drops revoked workers and overdue unknown peers. Call it often."""
        if not self._clock_was_set and self._wall() >= CLOCK_SET_S:
            self._clock_was_set = True
            self._jobs.put(self._start_tokens)
        while self._cuts:
            name, farewell = self._cuts.popleft()
            self._hub.disconnect(name, farewell)
        for name in self._hub.admission.expire():
            self._hub.disconnect(name)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _join(self, member: KnownWorker, message: Enrol) -> None:
        outcome: Redemption | TpiedgeError
        try:
            outcome = self.journal.join(member, functools.partial(self._tokens.check, message.secret))
        except TpiedgeError as error:
            _log.error("cannot let %s (%s) in: %s", member.name, member.host, error)
            outcome = error
        if outcome == "ok":
            self._admitted(member)
        self._outcomes.append((member, message, outcome))
        self._hub.wake()

    def _admitted(self, member: KnownWorker) -> None:
        self._follow_table(member.key)
        self._newcomers.append(member.name)
        _log.info("%s (%s) joined by %s", member.name, member.host, member.how)

    def _follow_table(self, key: str) -> None:
        """Makes the hubs agree with the journal about `key`. Thread-safe."""
        with self._admitting:
            member = self.journal.table.member(key)
            for admission in self._admissions:
                if member is not None:
                    admission.admit(key, member.name)
                else:
                    admission.revoke(peer_name(key), key)

    def _start_tokens(self) -> None:
        try:
            self._tokens.start()
        except TpiedgeError as error:
            _log.error("cannot begin the life of tokens: %s", error)

    def _answer(self, sender: str, answer: Enrolled | Refused) -> None:
        if isinstance(answer, Enrolled):
            with contextlib.suppress(Unreachable):
                self._hub.send(answer, to=sender, timeout_s=0.0)
            return
        _log.info("%s: refused: %s", sender, answer.message)
        self._hub.admission.dismiss(sender)
        self._hub.disconnect(sender, answer)
