"""What a master hears: messages, broken links and silence, of machines and of their nodes."""

import logging
from dataclasses import replace

from tpiedge.clock import Clock
from tpiedge.nodes.door import Door
from tpiedge.nodes.enrolment import printable
from tpiedge.nodes.outbox import Outbox
from tpiedge.nodes.probing import Link, Probing
from tpiedge.nodes.quarantine import Standing, Traffic
from tpiedge.nodes.roster import Roster
from tpiedge.nodes.stage import Stage
from tpiedge.transport.endpoint import Envelope, LinkReset, MalformedMessage
from tpiedge.transport.hub import Hub
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
)
from tpiedge.wire.join import Enrol, Refused
from tpiedge.wire.messages import Message

__all__ = ["Reception"]

_log = logging.getLogger(__name__)

#: Messages between two looks at everything else: more than can be waiting, unless somebody floods.
_BURST = 5000


class Reception:
    """Keeps the roster, and tells the stage and the door what concerns them. For the thread that owns the hub."""

    def __init__(
        self,
        hub: Hub,
        clock: Clock,
        outbox: Outbox,
        door: Door,
        roster: Roster,
        standing: Standing,
        stage: Stage,
    ) -> None:
        self._hub = hub
        self._clock = clock
        self._outbox = outbox
        self._door = door
        self._roster = roster
        self._standing = standing
        self._stage = stage
        self._traffic = Traffic()
        self._probings: dict[str, Probing] = {}

    def hear(self, until: float) -> None:
        """Everything that has arrived; waits for the first message until `until`, or until woken.

        Raises EndpointClosed."""
        wait_s = max(0.0, until - self._clock.now())
        for _ in range(_BURST):
            try:
                envelope = self._hub.recv(wait_s)
                if envelope is None:
                    return
                self._handle(envelope)
            except MalformedMessage as error:
                self._offended(error.peer, str(error))
            except LinkReset as error:
                self._broken(error.peer, str(error))
            wait_s = 0.0

    def tick(self) -> None:
        """A heartbeat: who has been silent for too long is lost, and the others hear that the master lives."""
        now = self._clock.now()
        self._traffic.tick()
        self._door.tick(now)
        for name, cause in self._roster.tick(now):
            self._stage.lose(name, cause)
            self._standing.lost(name, cause, now)
        self._stage.tick()
        for session in self._stage.sessions:
            if session.fallen is not None:  # its machine may have fallen silent with it
                self._roster.doubt(session.fallen)
        for machine in self._roster.present:
            self._outbox.send(self._stage.pulse, machine.name)

    def forget(self, name: str) -> None:
        """The worker was revoked: its node is lost at once."""
        self._roster.forget(name)
        self._probings.pop(name, None)
        self._standing.forget(name)
        self._stage.lose(name, "its membership was revoked")
        self._hub.disconnect(name, Refused("revoked", "the master has revoked the key of this worker"))

    def _handle(self, envelope: Envelope) -> None:
        sender, message = envelope.sender, envelope.message
        rank, number = _node_of(sender)
        if rank != 0 and self._traffic.floods(sender):
            self._offended(sender, "it floods the master with messages")
        elif rank is not None:
            epoch = self._stage.epoch(number)
            if epoch is not None:
                epoch.handle(rank, message)
        elif not self._door.is_member(sender):
            self._door.heard(sender, message, self._clock.now())
        else:
            self._hear_agent(sender, message)

    def _hear_agent(self, name: str, message: Message) -> None:
        now = self._clock.now()
        match message:
            case Offer():
                self._hear_offer(name, message, now)
            case Echo():
                self._hear_echo(name, message, now)
            case Preparing() | Prepared() | Spawned() | NodeEnded():
                if self._known(name, now):
                    self._stage.heard(name, message)
            case AgentPulse():
                self._known(name, now)
            case Leaving():
                self._lose(name, "it was stopped there")
                self._standing.stopped(name, now)
            case Enrol():
                self._door.heard(name, message, now)
            case _:
                self._offended(name, f"it sent {type(message).__name__}, which is not a worker's to send")

    def _hear_offer(self, name: str, offer: Offer, now: float) -> None:
        known = self._roster.get(name)
        if known is not None and known.offer.nonce != offer.nonce:
            self._fall(name, "its agent was started anew")
        if known is None or not known.present:
            self._stage.warm()  # while the link is measured and others come
        self._roster.offered(name, replace(offer, host=printable(offer.host)), now)
        probing = self._probings[name] = Probing()
        self._outbox.send(probing.begin(now), name)

    def _hear_echo(self, name: str, echo: Echo, now: float) -> None:
        if name not in self._probings:
            return
        result = self._probings[name].heard(echo, now)
        if isinstance(result, Link):
            del self._probings[name]
            self._roster.measured(name, result)
        elif result is not None:
            self._outbox.send(result, name)

    def _known(self, name: str, now: float) -> bool:
        if self._roster.heard(name, now):
            return True
        self._outbox.send(AskOffer(0), name)
        return False

    def _broken(self, peer: str, cause: str) -> None:
        rank, number = _node_of(peer)
        epoch = self._stage.epoch(number)
        if rank is None:
            self._fall(peer, cause)
        elif epoch is not None:
            epoch.lose(rank, cause)
            self._roster.doubt(self._stage.machine_of(rank))

    def _offended(self, peer: str, cause: str) -> None:
        """The peer broke the protocol: it is lost, its connection cut, and its machine is left out for a while."""
        rank, number = _node_of(peer)
        epoch = self._stage.epoch(number)
        if rank is None and self._roster.get(peer) is not None:
            _log.warning("%s broke the protocol: %s", peer, cause)
            self._standing.convict(peer, cause, self._clock.now())
            self._lose(peer, cause)
        elif rank is not None and epoch is not None:
            # Rank 0 as well: what it said may have been the end of an answer.
            epoch.offend(rank, cause)
        self._hub.disconnect(peer)

    def _fall(self, name: str, cause: str) -> None:
        """The machine went without a word."""
        if self._lose(name, cause):
            self._standing.lost(name, cause, self._clock.now())

    def _lose(self, name: str, cause: str) -> bool:
        """Whether the machine was present until now."""
        self._stage.lose(name, cause)
        return self._roster.lose(name, cause)


def _node_of(peer: str) -> tuple[int | None, int]:
    """(rank, epoch) of a node's name; (None, 0) of anybody else's."""
    if not peer.startswith("node-"):
        return None, 0
    rank, _, epoch = peer.removeprefix("node-").partition(".")
    return int(rank), int(epoch)
