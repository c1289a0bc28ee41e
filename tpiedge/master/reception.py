"""Handles what reaches the master from machines and their nodes: messages, broken links, and silence."""

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from msgspec import structs

from tpiedge.clock import Clock
from tpiedge.joining.front_door import FrontDoor
from tpiedge.launch.bootstrap import OwnStalls, node_of
from tpiedge.master.foresight import Foresight
from tpiedge.master.roster import STOPPED, Roster
from tpiedge.master.session_manager import Outbox, SessionManager
from tpiedge.master.workers import WorkerEvent
from tpiedge.sanitise import sanitised_name
from tpiedge.transport.endpoint import Envelope, Hub, LinkReset, MalformedMessage
from tpiedge.wire.epochs import (
    AgentPulse,
    AskOffer,
    Echo,
    Leaving,
    NodeEnded,
    Offer,
    Prepared,
    Preparing,
    Spawned,
    Stocked,
)
from tpiedge.wire.join import Enrol
from tpiedge.wire.messages import Message
from tpiedge.wire.probing import LinkSpeed, Probing

_log = logging.getLogger(__name__)

#: Messages per round: more than can be waiting, unless a peer floods.
_BURST = 5000
#: A peer that sends so many messages between two heartbeats breaks the protocol.
FLOOD: Final = 3000


@dataclass(eq=False)
class Reception:
    """Updates the roster, and passes messages on to the sessions and the door. For the thread that owns the hub."""

    _hub: Hub
    _clock: Clock
    _outbox: Outbox
    _door: FrontDoor
    _roster: Roster
    _sessions: SessionManager
    _foresight: Foresight
    _stalls: OwnStalls
    _traffic: Counter[str] = field(default_factory=Counter)  # messages since the last heartbeat
    _probings: dict[str, Probing] = field(default_factory=dict)
    #: Machines whose connection was gone at the last heartbeat, and since when.
    _cut_off: dict[str, float] = field(default_factory=dict)

    def hear(self, until: float) -> None:
        """Handles what has arrived, but at `until` the rest waits: a crowd's messages do not hold heartbeats up. Blocks
        for the first message until then, or until woken. What comes while it blocks is heard, however long that took.
        Raises EndpointClosed once the hub is closed."""
        self._door.settle()
        for name in self._door.newcomers():
            self._roster.expect(name)
        self._hear_one(max(0.0, until - self._clock.now()))
        # Late heartbeats must not end all hearing, so a round hears what waits for a tenth of a second at least.
        enough = max(until, self._clock.now() + 0.1)
        for _ in range(_BURST):
            if not self._hear_one(0.0) or self._clock.now() >= enough:
                return

    def tick(self, late_s: float) -> None:
        """A heartbeat, so long after it was due: machines that were silent for too long are lost, unless the silence
        may be this process's own (OwnStalls), and the others get the master's pulse."""
        now, excused = self._clock.now(), self._stalls.beat(late_s)
        self._traffic.clear()
        self._door.tick()
        for name, cause in () if excused else self._roster.tick(now):
            self._sessions.lose(name, cause)
        self._look_at_links()
        self._sessions.tick(excused=excused)
        for machine in self._roster.present:
            self._outbox.send(self._sessions.pulse, machine.name)

    def forget(self, name: str) -> None:
        self._roster.forget(name)
        self._probings.pop(name, None)
        self._sessions.lose(name, "its membership was revoked", intended=True)

    def _hear_one(self, wait_s: float) -> bool:
        try:
            envelope = self._hub.recv(wait_s)
            if envelope is None:
                return False
            self._handle(envelope)
        except MalformedMessage as error:
            self._broke_protocol(error.peer, str(error))
        except LinkReset as error:
            self._link_broke(error.peer, str(error))
        return True

    def _handle(self, envelope: Envelope) -> None:
        sender, message = envelope.sender, envelope.message
        rank, number = node_of(sender)
        self._traffic[sender] += 1
        if rank != 0 and self._traffic[sender] == FLOOD:
            self._broke_protocol(sender, "it floods the master with messages")
        elif rank is not None:
            epoch = self._sessions.epoch(number)
            if epoch is not None:
                epoch.handle(rank, message, self._hub.address_of(sender))
        elif not self._door.is_member(sender):
            self._door.heard(sender, message)
        else:
            self._hear_agent(sender, message)

    def _hear_agent(self, name: str, message: Message) -> None:
        now = self._clock.now()
        match message:
            case Offer():
                self._hear_offer(name, message, now)
            case Echo() if name in self._probings:
                result = self._probings[name].heard(message, now)
                if isinstance(result, LinkSpeed):
                    del self._probings[name]
                    self._roster.measured(name, result)
                elif result is not None:
                    self._outbox.send(result, name)
            case Echo():
                pass
            case Preparing() | Prepared() | Spawned() | NodeEnded():
                if self._known(name, now):
                    self._sessions.heard(name, message)
            case AgentPulse():
                self._known(name, now)
            case Stocked():
                if self._known(name, now):
                    self._foresight.heard(name, message)
            case Leaving():
                self._sessions.lose(name, STOPPED, intended=True)
                self._roster.lose(name, STOPPED, now, WorkerEvent.STOPPED)
            case Enrol():
                self._door.heard(name, message)
            case _:
                self._broke_protocol(
                    name, f"it sent {type(message).__name__}, which is not a worker's to send"
                )

    def _hear_offer(self, name: str, offer: Offer, now: float) -> None:
        known = self._roster.get(name)
        if known is not None and known.offer.nonce != offer.nonce:
            self._lose(name, "its agent was started anew")
        offer, known = structs.replace(offer, host=sanitised_name(offer.host)), self._roster.get(name)
        if known is not None and known.offer == offer and self._roster.heard(name, now):
            return  # it was asked twice
        if known is None or not known.present:
            self._sessions.warm()  # while the link is measured and others come
        self._roster.offered(name, offer, now)
        probing = self._probings[name] = Probing()
        self._outbox.send(probing.begin(now), name)

    def _known(self, name: str, now: float) -> bool:
        """Hears the machine, and asks it for an offer where one is missing."""
        known = self._roster.heard(name, now)
        if not known:
            self._outbox.send(AskOffer(0), name)
        return known

    def _look_at_links(self) -> None:
        """A machine whose connection is gone is lost at the next heartbeat, unless it may be dialling anew by then. Its
        last words, as that it leaves, were heard before."""
        now, present = self._clock.now(), self._roster.present
        gone = {
            one.name: self._cut_off.get(one.name, now)
            for one in present
            if not self._hub.is_connected(one.name)
        }
        self._cut_off = gone
        for one in present:
            # The handshakes of TCP and of CURVE take four round trips.
            dialling_s = 4 * one.link.round_trip_s if one.link is not None else 0.0
            if one.name in gone and now > gone[one.name] and now - gone[one.name] >= dialling_s:
                self._link_broke(one.name, "its process ended or its connection broke")

    def _link_broke(self, peer: str, cause: str) -> None:
        rank, number = node_of(peer)
        epoch = self._sessions.epoch(number)
        if rank is None:
            self._lose(peer, cause)
        elif epoch is not None:
            epoch.lose(rank, cause)

    def _broke_protocol(self, peer: str, cause: str) -> None:
        """Loses the peer, cuts its connection, and leaves its machine out of plans for a while."""
        rank, number = node_of(peer)
        epoch = self._sessions.epoch(number)
        if rank is None and self._roster.get(peer) is not None:
            _log.warning("%s broke the protocol: %s", peer, cause)
            self._roster.step(peer, WorkerEvent.BREACHED, self._clock.now(), "breach", cause)
            self._lose(peer, cause)
        elif rank is not None and epoch is not None:
            # Rank 0 as well: the bad message may have been the end of an answer.
            epoch.broke_protocol(rank, cause)
        self._hub.disconnect(peer)

    def _lose(self, name: str, cause: str) -> None:
        """The machine was lost and had not said that it leaves."""
        self._sessions.lose(name, cause)
        self._roster.lose(name, cause, self._clock.now())
