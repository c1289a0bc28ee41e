"""The master of a cluster: who is there, what is served by whom, and what happens when somebody goes.

One thread, the control thread, owns the hub and decides everything; other threads hand requests in and read
snapshots. Of the sessions one may serve while the next one prepares: workers fetch what they lack in the meantime, and
the change happens between two requests. A loss ends the serving session at once; its request fails in words, and the
next plan is made from who is there.
"""

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from tpiedge.clock import Clock
from tpiedge.errors import Cancelled, InternalError, PeerError, ProtocolError, TpiedgeError, UserError
from tpiedge.nodes.desk import Answering, Desk
from tpiedge.nodes.enrolment import printable
from tpiedge.nodes.epoch import Epoch
from tpiedge.nodes.hearsay import hearsay
from tpiedge.nodes.probing import Link, Probing
from tpiedge.nodes.quarantine import Quarantine, Traffic
from tpiedge.nodes.rank_zero import RankZero
from tpiedge.nodes.roster import Machine, Roster
from tpiedge.nodes.session import Arrangement, Phase, Seat, Served, Session, node_name
from tpiedge.nodes.status import ClusterStatus
from tpiedge.nodes.survey import Exclusion, survey
from tpiedge.nodes.timing import Timing
from tpiedge.transport.endpoint import EndpointClosed, Envelope, LinkReset, MalformedMessage, Unreachable
from tpiedge.transport.hub import Hub
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.control import Cancel, Failed, Finished, Generate, PromptScores, Shutdown, Token
from tpiedge.wire.epochs import (
    AgentPulse,
    AskOffer,
    Echo,
    Leaving,
    MasterPulse,
    NodeEnded,
    Offer,
    Prepared,
    Preparing,
    Spawned,
)
from tpiedge.wire.join import Enrol, Refused
from tpiedge.wire.limits import MAX_NODES
from tpiedge.wire.messages import Message
from tpiedge.wire.requests import GenerationRequest

__all__ = ["Door", "Master", "NotServing", "PlanSeats"]

_log = logging.getLogger(__name__)

#: Workers that come at about the same time are planned for together.
_SETTLE_S = 0.3
#: Between attempts that fail before they serve.
_BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
_HOPELESS_FAILURES = 4
#: How long a worker that could not prepare its part is left out.
_EXCLUDED_S = 30.0
_GRACE_S = 0.2
#: Messages between two looks at everything else: more than can be waiting, unless somebody floods.
_BURST = 5000
_QUEUE = 64
#: Lost machines that the reason for not serving names.
_NAMED = 3

PlanSeats = Callable[[tuple[Machine, ...], tuple[str, ...]], Arrangement | str]
"""From who is there, and the workers that serve now, to who does what, or one line that says why nobody can."""


class NotServing(PeerError):
    """The cluster cannot answer now; the message says what is missing."""


class Door(Protocol):
    """Who may come in (enrolment). Called by the control thread."""

    def heard(self, peer: str, message: Message, now: float) -> None:
        """Answers somebody who is not in yet, or who introduces himself."""
        ...

    def is_member(self, peer: str) -> bool: ...

    def tick(self, now: float) -> None: ...


class Master:
    """Runs between `start` and `close`. Owns rank 0's processes; the hub is the caller's to close."""

    def __init__(
        self,
        hub: Hub,
        clock: Clock,
        served: Served,
        plan: PlanSeats,
        rank_zero: RankZero,
        door: Door,
        *,
        timing: Timing | None = None,
        queue_limit: int = _QUEUE,
        known: Sequence[str] = (),
    ) -> None:
        """`known`: the workers that belonged to the cluster before, as Roster wants them."""
        self._hub = hub
        self._clock = clock
        self._served = served
        self._plan = plan
        self._rank_zero = rank_zero
        self._door = door
        self._timing = timing or Timing()
        self._roster = Roster(self._timing.timeout_s, known)
        self._desk = Desk(queue_limit, self._cancel, self._wake)
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._serving: Session | None = None
        self._coming: Session | None = None
        self._planned = -1  # the roster's generation of the last plan
        self._due = 0.0  # of the next plan
        self._beat = clock.now()  # when the next heartbeat is due
        self._hopeless = False
        self._failures = 0
        self._excluded: dict[str, Exclusion] = {}
        self._spare: Mapping[str, str] = {}
        self._quarantine = Quarantine()
        self._traffic = Traffic()
        self._probings: dict[str, Probing] = {}
        self._number = 0
        self._reason = "starting"
        self._closing = threading.Event()
        self._failed: TpiedgeError | None = None
        self._status = ClusterStatus(False, self._reason, (), 0, 0)
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    # --- for any thread

    def start(self, first_epoch: int) -> None:
        """Epochs count from `first_epoch`: above those of a master that ran before under this key."""
        self._number = first_epoch - 1
        self._thread.start()

    def submit(self, request: GenerationRequest) -> Answering:
        """Queue the request. Raises QueueFull, or NotServing where nothing is served nor about to be."""
        if self._failed is not None or self._hopeless:
            raise self._not_serving()
        return self._desk.submit(request)

    @property
    def status(self) -> ClusterStatus:
        return self._status

    @property
    def failed(self) -> TpiedgeError | None:
        """What ended the control thread, if anything did."""
        return self._failed

    def forget(self, name: str) -> None:
        """The worker was revoked: its node is lost at once."""
        self._call(lambda: self._forget(name))

    def drain(self) -> None:
        """Accept no more requests; those that are accepted are served."""
        self._desk.close(NotServing("the master is shutting down"))

    @property
    def idle(self) -> bool:
        """Whether no request runs or waits."""
        return self._desk.idle

    def close(self) -> None:
        """End every node; requests that are left fail. Idempotent."""
        self._closing.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        else:
            self._end_all()

    # --- the control thread

    @property
    def _sessions(self) -> list[Session]:
        """The serving one and the coming one, as far as there are any."""
        return [session for session in (self._serving, self._coming) if session is not None]

    def _running_epoch(self, number: int) -> Epoch | None:
        """The epoch whose nodes run, if it is `number`."""
        serving = self._serving
        return serving.epoch if serving is not None and serving.number == number else None

    def _not_serving(self) -> NotServing:
        return NotServing(f"the cluster serves nothing now: {self._reason}")

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self.turn()
        except TpiedgeError as error:
            self._failed = error
        except Exception as error:
            _log.exception("the control thread failed")
            self._failed = InternalError(f"the control thread failed: {type(error).__name__}: {error}")
        finally:
            self._end_all()

    def turn(self) -> None:
        """Hear what has arrived, do what is due. For the control thread, or for a caller that has not started it."""
        self._hear()
        if self._clock.now() >= self._beat:
            self._beat = self._clock.now() + self._timing.heartbeat_s
            self._tick()
        self._reconcile()

    def _hear(self) -> None:
        """Everything that has arrived; waits for the first message until a heartbeat is due, or until woken."""
        wait_s = max(0.0, self._beat - self._clock.now())
        for _ in range(_BURST):
            try:
                envelope = self._hub.recv(wait_s)
                if envelope is None:
                    break
                self._handle(envelope)
            except MalformedMessage as error:
                self._offended(error.peer, str(error))
            except LinkReset as error:
                self._broken(error.peer, str(error))
            except EndpointClosed:
                self._closing.set()
                return
            wait_s = 0.0
        while not self._calls.empty():
            self._calls.get()()

    def _handle(self, envelope: Envelope) -> None:
        sender, message = envelope.sender, envelope.message
        rank, number = _node_of(sender)
        if rank != 0 and self._traffic.floods(sender):
            self._offended(sender, "it floods the master with messages")
        if rank is not None:
            epoch = self._running_epoch(number)
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
                    self._hear_of_epoch(name, message)
            case AgentPulse():
                self._known(name, now)
            case Leaving():
                self._lose_machine(name, "it was stopped there")
            case Enrol():
                self._door.heard(name, message, now)
            case _:
                self._offended(name, f"it sent {type(message).__name__}, which is not a worker's to send")

    def _hear_offer(self, name: str, offer: Offer, now: float) -> None:
        known = self._roster.get(name)
        if known is not None and known.offer.nonce != offer.nonce:
            self._lose_machine(name, "its agent was started anew")
        self._roster.offered(name, replace(offer, host=printable(offer.host)), now)
        probing = self._probings[name] = Probing()
        self._send(probing.begin(now), name)

    def _hear_of_epoch(self, name: str, message: Preparing | Prepared | Spawned | NodeEnded) -> None:
        if isinstance(message, Prepared) and self._hub.admission.knows(message.public_key):
            message = NodeEnded(message.epoch, "", "the key of its node is not a new one")
        for session in self._sessions:
            session.heard(name, message)

    def _hear_echo(self, name: str, echo: Echo, now: float) -> None:
        if name not in self._probings:
            return
        result = self._probings[name].heard(echo, now)
        if isinstance(result, Link):
            del self._probings[name]
            self._roster.measured(name, result)
        elif result is not None:
            self._send(result, name)

    def _known(self, name: str, now: float) -> bool:
        if self._roster.heard(name, now):
            return True
        self._send(AskOffer(0), name)
        return False

    def _broken(self, peer: str, cause: str) -> None:
        rank, number = _node_of(peer)
        epoch = self._running_epoch(number)
        if rank is None:
            self._lose_machine(peer, cause)
        elif epoch is not None:
            epoch.lose(rank, cause)

    def _offended(self, peer: str, cause: str) -> None:
        """The peer broke the protocol: it is lost, its connection cut, and its machine is left out for a while."""
        rank, number = _node_of(peer)
        epoch = self._running_epoch(number)
        if rank is None and self._roster.get(peer) is not None:
            self._convict(peer, cause)
            self._lose_machine(peer, cause)
        elif rank is not None and epoch is not None:
            # Rank 0 as well: what it said may have been the end of an answer.
            epoch.offend(rank, cause)
        self._hub.disconnect(peer)

    def _convict(self, name: str, cause: str) -> None:
        until = self._quarantine.convict(name, self._clock.now())
        _log.warning("%s broke the protocol: %s", name, cause)
        self._excluded[name] = Exclusion(until, hearsay(cause))

    def _lose_machine(self, name: str, cause: str) -> None:
        self._roster.lose(name, cause)
        self._sessions_lose(name, cause)

    def _sessions_lose(self, name: str, cause: str) -> None:
        for session in self._sessions:
            session.lose(name, cause)

    def _forget(self, name: str) -> None:
        self._roster.forget(name)
        self._probings.pop(name, None)
        self._quarantine.forget(name)
        self._sessions_lose(name, "its membership was revoked")
        self._hub.disconnect(name, Refused("revoked", "the master has revoked the key of this worker"))

    def _tick(self) -> None:
        now = self._clock.now()
        self._traffic.tick()
        self._door.tick(now)
        for name, cause in self._roster.tick(now):
            self._sessions_lose(name, cause)
        serving = self._serving
        if serving is not None and serving.epoch is not None:
            ended = self._rank_zero.exit_cause()
            if ended is not None:
                serving.epoch.ended(0, ended)
            serving.epoch.tick()
        for session in self._sessions:
            session.tick()
        state = "serving" if serving is not None and serving.phase is Phase.READY else "waiting"
        number = serving.number if serving is not None else 0
        for machine in self._roster.present:
            self._send(MasterPulse(number, state), machine.name)

    def _reconcile(self) -> None:
        """Compare what is with what should be, and take the next step."""
        if self._serving is not None and self._serving.phase is Phase.ENDED:
            self._end_serving(self._serving)
        if self._coming is not None and self._coming.phase is Phase.ENDED:
            self._drop_coming(self._coming)
        self._readmit()
        if self._roster.generation != self._planned and self._clock.now() >= self._due:
            self._replan()
        if self._coming is not None and self._coming.phase is Phase.PREPARED and not self._desk.running:
            self._switch(self._coming)
        if self._hopeless:  # also for a request that came while this was found out
            self._desk.fail_all(self._not_serving())
        self._dispatch()
        self._publish()

    def _publish(self) -> None:
        self._status = survey(
            self._roster,
            self._serving,
            self._coming,
            self._desk,
            self._rank_zero,
            self._excluded,
            self._spare,
            self._reason,
            self._clock.now(),
        )

    def _readmit(self) -> None:
        """Whoever was left out has waited long enough."""
        now = self._clock.now()
        for name in [name for name, exclusion in self._excluded.items() if exclusion.until <= now]:
            del self._excluded[name]
            self._planned = -1

    def _replan(self) -> None:
        present = (machine for machine in self._roster.present if machine.name not in self._excluded)
        machines = tuple(present)[: MAX_NODES - 1]  # beside the master's own
        settled = max((machine.since for machine in machines), default=0.0) + _SETTLE_S
        if self._clock.now() < settled:
            return
        self._planned = self._roster.generation
        found = self._plan(machines, self._serving.machines if self._serving is not None else ())
        self._hopeless = isinstance(found, str) and self._serving is None
        if isinstance(found, str):
            self._give_up(found)
            return
        self._spare = found.spare
        if self._serving is not None and self._serving.seats == found.seats:
            self._abandon_coming()
        elif self._coming is None or self._coming.seats != found.seats:
            self._abandon_coming()
            self._begin(found.seats)

    def _give_up(self, reason: str) -> None:
        """Nothing can be served by who is there. What is served already goes on."""
        lost = [f"{one.offer.host}: {one.cause}" for one in self._roster.machines if not one.present]
        self._reason = "; ".join([reason, *lost[-_NAMED:]])
        self._abandon_coming()
        if self._serving is None:
            self._desk.fail_all(self._not_serving())

    def _begin(self, seats: tuple[Seat, ...]) -> None:
        self._number += 1
        self._reason = f"preparing {len(seats)} node{'s' if len(seats) > 1 else ''}"
        self._coming = Session(
            self._number,
            seats,
            self._served,
            self._timing,
            self._clock,
            self._to_agent,
            self._node_sender(self._number),
            self._tell,
        )
        self._rank_zero.warm()
        self._coming.prepare()

    def _switch(self, session: Session) -> None:
        """The serving session makes room for the prepared one."""
        if self._serving is not None:
            self._stop_nodes(self._serving)
        self._coming, self._serving = None, session
        keys = CurveKeys.generate()
        self._hub.admission.admit(keys.public, node_name(0, session.number))
        for rank, key in session.keys.items():
            self._hub.admission.admit(key, node_name(rank, session.number))
        self._rank_zero.start(session.number, keys)
        session.launch(keys.public)
        self._reason = "loading the weights"

    def _dispatch(self) -> None:
        serving = self._serving
        if serving is None or serving.phase is not Phase.READY:
            return
        self._failures = 0
        self._hopeless = False
        self._reason = ""
        if self._coming is not None and self._coming.phase is Phase.PREPARED:
            return
        request = self._desk.next()
        if request is not None:
            try:
                self._send(Generate(serving.number, request), node_name(0, serving.number))
            except ProtocolError as error:
                self._desk.fail_running(UserError(f"the request cannot be served: {error}"))

    def _end_serving(self, session: Session) -> None:
        error = session.failure or PeerError("the cluster was stopped")
        _log.warning("epoch %d ended: %s", session.number, error)
        self._stop_nodes(session)
        self._serving = None
        self._reason = str(error)
        if self._failures:  # once may be bad luck
            self._exclude(session)
        for name, cause in session.offences.items():
            self._convict(name, cause)
        self._publish()  # whoever is told of the failure and looks must not see that all is well
        self._desk.fail_running(error)
        self._retry()

    def _drop_coming(self, session: Session) -> None:
        _log.warning("epoch %d was not prepared: %s", session.number, session.failure)
        self._reason = str(session.failure)
        self._exclude(session)
        session.end()
        self._coming = None
        self._retry()

    def _exclude(self, session: Session) -> None:
        """Plan for a while without the worker that made the session fail, if it was one."""
        if session.culprit is not None:
            until = self._clock.now() + _EXCLUDED_S
            self._excluded[session.culprit] = Exclusion(until, str(session.failure))

    def _abandon_coming(self) -> None:
        if self._coming is not None:
            self._coming.end()
            self._coming = None

    def _retry(self) -> None:
        """Plan anew, the later the more often it went wrong."""
        self._due = self._clock.now() + _BACKOFF_S[min(self._failures, len(_BACKOFF_S) - 1)]
        self._failures += 1
        self._planned = -1
        if self._failures >= _HOPELESS_FAILURES:
            self._hopeless = True
            self._desk.fail_all(self._not_serving())

    def _stop_nodes(self, session: Session) -> None:
        for rank in range(len(session.seats)):
            self._send(Shutdown(session.number), node_name(rank, session.number))
        self._rank_zero.stop(_GRACE_S)
        session.end()
        for rank in range(len(session.seats)):
            self._hub.admission.revoke(node_name(rank, session.number))
            self._hub.disconnect(node_name(rank, session.number))

    def _end_all(self) -> None:
        error = self._failed or Cancelled("the master was stopped")
        self._desk.close(NotServing(str(error)))
        self._desk.fail_all(error)
        for session in self._sessions:
            session.end()
        self._rank_zero.close()

    # --- links between threads

    def _call(self, call: Callable[[], None]) -> None:
        self._calls.put(call)
        self._wake()

    def _wake(self) -> None:
        """End the control thread's wait."""
        self._hub.wake()

    def _cancel(self, request: str) -> None:
        serving = self._serving
        if serving is not None:
            self._hub.post(Cancel(serving.number, request), to=node_name(0, serving.number))

    def _tell(self, message: Message) -> None:
        match message:
            case Token() | PromptScores() | Finished() | Failed():
                self._desk.tell(message)

    def _to_agent(self, message: Message, machine: str) -> None:
        self._send(message, machine)

    def _node_sender(self, number: int) -> Callable[[Message, int], None]:
        return lambda message, rank: self._send(message, node_name(rank, number))

    def _send(self, message: Message, to: str) -> None:
        """At once or not at all: a peer that is gone is noticed by its silence, and must not hold up the others."""
        try:
            self._hub.send(message, to=to, timeout_s=0.0)
        except (Unreachable, EndpointClosed):
            _log.debug("%s does not get %s: it is not connected", to, type(message).__name__)


def _node_of(peer: str) -> tuple[int | None, int]:
    """(rank, epoch) of a node's name; (None, 0) of anybody else's."""
    if not peer.startswith("node-"):
        return None, 0
    rank, _, epoch = peer.removeprefix("node-").partition(".")
    return int(rank), int(epoch)
