"""The master of a cluster: takes messages of machines and orders of other threads. Its control thread owns the hub and
decides everything. Other threads submit requests and read snapshots."""

import logging
import math
import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from msgspec import structs

from tpiedge.clock import Clock
from tpiedge.errors import Cancelled, InternalError, MasterFailed, TpiedgeError
from tpiedge.host.device import usable_cores
from tpiedge.joining.registrar import Registrar
from tpiedge.launch.bootstrap import OwnStalls, Timing, node_of
from tpiedge.master.assignments import Served
from tpiedge.master.counters import StepTimeline
from tpiedge.master.history import ClusterEvent
from tpiedge.master.journal import PendingAnswer
from tpiedge.master.loss_plans import LossPlans, PlaceNodes
from tpiedge.master.reconciler import RECOVERY_GRACE_S, NotServing, Reconciler
from tpiedge.master.request_queue import QUEUE_LIMIT, RequestQueue
from tpiedge.master.roster import STOPPED, Machine, Roster
from tpiedge.master.session import AgentReport
from tpiedge.master.session_manager import RankZero, SessionManager, send_if_connected
from tpiedge.master.status import ClusterStatus
from tpiedge.master.turns import Hosted, Turns
from tpiedge.master.workers import WorkerEvent
from tpiedge.sanitise import sanitised_name
from tpiedge.transport.endpoint import EndpointClosed, Envelope, LinkReset, MalformedMessage
from tpiedge.transport.zeromq import ZmqHub
from tpiedge.wire import epochs
from tpiedge.wire.control import AnswerPart
from tpiedge.wire.fields import Message
from tpiedge.wire.join import Enrol
from tpiedge.wire.probing import LinkSpeed, Probing
from tpiedge.wire.requests import GenerationRequest

_log = logging.getLogger(__name__)

_BURST = 5000  # messages per turn
FLOOD: Final = 3000  # messages between two heartbeats with which a peer breaks the protocol


class Master:
    """Owns rank 0's processes, not the hub. All methods but `turn` are thread-safe."""

    def __init__(
        self,
        hub: ZmqHub,
        clock: Clock,
        served: Served,
        plan: PlaceNodes,
        rank_zero: RankZero,
        registrar: Registrar,
        *,
        timing: Timing | None = None,
        queue_limit: int = QUEUE_LIMIT,
        known: Sequence[str] = (),
        recovery_grace_s: float = RECOVERY_GRACE_S,
        prefetch: bool = True,  # machines fetch the shards that plans for losses need
    ) -> None:
        """`known`: workers admitted earlier, in order. `recovery_grace_s`: how long requests wait for lost machines."""
        timing = timing or Timing()
        roster = self._roster = Roster(timing.timeout_s, known)
        send = self._send = partial(send_if_connected, hub)
        self._hub = hub
        self._clock = clock
        self._registrar = registrar
        self._heartbeat_s = timing.heartbeat_s
        compiles = max(1, math.floor(usable_cores()) // 2)
        requests = self.requests = RequestQueue(  # a lambda, because the sessions, made next, need the queue
            queue_limit, served.sequences, lambda id: self._sessions.cancel(id), hub.wake, clock.now, compiles
        )
        self._sessions = SessionManager(hub, send, roster, rank_zero, timing, clock, requests)
        self._loss_plans = LossPlans(plan, send, served.pack_id, prefetch=prefetch)
        turns = Turns(clock, requests, Hosted(served, plan))
        self._reconciler = Reconciler(
            clock, turns, roster, self._sessions, requests, send, recovery_grace_s, self._loss_plans
        )
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._beat = clock.now()  # when the next heartbeat is due
        self._stalls = OwnStalls(timing.heartbeat_s)
        self._traffic: Counter[str] = Counter()  # messages since the last heartbeat
        self._probings: dict[str, Probing] = {}
        self._page_asks = 0
        #: Answers that callers of `ask_pages` still wait for, by machine and number.
        self._page_files: WeakValueDictionary[tuple[str, int], Future[epochs.PageFiles]] = (
            WeakValueDictionary()
        )
        self._cut_off: dict[str, float] = {}  # machines without connection, and since which heartbeat
        self._closing = threading.Event()
        self.failed: TpiedgeError | None = None  # the error that ended the control thread
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self, first_epoch: int) -> None:
        """Starts the control thread. `first_epoch` must exceed earlier epochs under this key."""
        self._sessions.number = first_epoch - 1
        self._thread.start()

    def submit(
        self, request: GenerationRequest, client: str = "", *, has_reader: bool = True
    ) -> PendingAnswer:
        """Queues the request; does not block. Raises QueueFull, NotServing."""
        wanted = request.pack in ("", self.wanted.pack)
        if self.failed is not None or (self._reconciler.hopeless and wanted):
            self.requests.refuse(self._reconciler.not_serving())
        return self.requests.submit(request, client, has_reader=has_reader)

    def resume(self, request: GenerationRequest, said: Sequence[AnswerPart]) -> PendingAnswer:
        """Resumes an earlier master's request. Call it before `start`, for the oldest request first."""
        return self.requests.resume(request, said, self._reconciler.served_before())

    @property
    def status(self) -> ClusterStatus:
        return self._reconciler.status

    @property
    def wanted(self) -> Hosted:
        """The model for which plans are made."""
        return self._reconciler.turns.wanted

    def add_model(self, hosted: Hosted) -> None:
        """Lets requests of this model be served. Call it before they are submitted."""
        self._order(lambda: self._reconciler.turns.known.update({hosted.pack: hosted}))

    def models_in_use(self) -> set[str]:
        """Returns packs that are served, about to be, or awaited by requests."""
        status = self.status
        return {status.pack, status.next_pack, *self.requests.packs}

    def choose_model(self, pack: str) -> Future[None]:
        """Chooses an added model. The cluster serves it once no request runs or waits."""
        done: Future[None] = Future()

        def choose() -> None:
            self._reconciler.turns.chosen = pack
            self._reconciler.publish()
            done.set_result(None)

        self._order(choose)
        return done

    def keep_weights(self, seconds: float) -> None:
        """Sets how long weights stay in memory without requests."""
        self._order(lambda: setattr(self._reconciler.turns, "keep_s", seconds))

    def observe(self, *, timeline: bool = False) -> ClusterStatus:
        """Returns `status` with histograms, and makes nodes report counters. Never blocks."""
        self._order(lambda: self._sessions.observe(timeline=timeline))
        return replace(self.status, histograms=self.requests.histograms)

    @property
    def timeline(self) -> StepTimeline | None:
        """The latest step that all nodes of the serving epoch recorded."""
        serving = self._sessions.serving
        return None if serving is None else serving.timeline

    @property
    def events(self) -> tuple[ClusterEvent, ...]:
        return self._reconciler.history.events

    def usable(self) -> Future[tuple[Machine, ...]]:
        found: Future[tuple[Machine, ...]] = Future()
        self._order(lambda: found.set_result(tuple(self._reconciler.selection.able())))
        return found

    def ask_pages(self, *, clear: bool) -> Future[Mapping[str, Future[epochs.PageFiles]]]:
        """Asks all present machines for their page files. If `clear`, they delete them. An absent machine's future gets
        no result."""
        asked: Future[Mapping[str, Future[epochs.PageFiles]]] = Future()

        def ask() -> None:
            self._page_asks += 1
            found: dict[str, Future[epochs.PageFiles]] = {}
            for one in self._roster.present:
                found[one.name] = self._page_files[one.name, self._page_asks] = Future()
                self._send(epochs.AskPages(0, self._page_asks, clear), one.name)
            asked.set_result(found)

        self._order(ask)
        return asked

    def remove_worker(self, name: str) -> None:
        self._order(lambda: self._remove_worker(name))

    def drain_worker(self, name: str) -> Future[str]:
        """Takes the worker out of plans. The future gets the worker's name, or CannotDrain."""
        ordered: Future[str] = Future()
        self._order(lambda: self._reconciler.drain(name, ordered))
        return ordered

    def undrain_worker(self, name: str) -> None:
        self._order(lambda: self._roster.step(name, WorkerEvent.UNDRAINED, self._clock.now()))

    def clear_worker(self, name: str) -> None:
        """Ends the worker's wait after a failure."""
        self._order(lambda: self._reconciler.clear(name))

    def drain(self) -> None:
        """Accepts no more requests."""
        self.requests.close(NotServing("the master is shutting down"))

    def close(self) -> None:
        """Ends every node; requests fail. Idempotent. Blocks for up to 30 s, then raises InternalError."""
        self._closing.set()
        self._hub.wake()
        if not self._thread.is_alive():
            self._end_all()
            return
        self._thread.join(30.0)
        if self._thread.is_alive():
            raise InternalError("the control thread did not end within 30 s")

    def turn(self) -> None:
        """Handles messages and due work. Blocks until the next heartbeat at most."""
        try:
            self._hear(self._beat)
        except EndpointClosed:
            self._closing.set()
            return
        while not self._calls.empty():
            self._calls.get()()
        late_s = self._clock.now() - self._beat
        if late_s >= 0:
            self._beat += late_s + self._heartbeat_s
            self._tick(late_s)
        self._reconciler.reconcile()

    def _hear(self, until: float) -> None:
        """Finishes joins and handles arrived messages. Waits for the first message until `until`. Raises
        EndpointClosed."""
        for name in self._registrar.finish_joins():
            self._roster.expect(name)
        self._hear_one(max(0.0, until - self._clock.now()))
        # At least 0.1 s: late heartbeats must not keep messages waiting for ever.
        enough = max(until, self._clock.now() + 0.1)
        for _ in range(_BURST):
            if not self._hear_one(0.0) or self._clock.now() >= enough:
                return

    def _tick(self, late_s: float) -> None:
        now, own_stall = self._clock.now(), self._stalls.beat(late_s)
        self._traffic.clear()
        self._registrar.tick()
        for name, cause in () if own_stall else self._roster.silent(now):
            self._drop_peer(name, cause)
        self._look_at_links()
        self._sessions.tick(own_stall=own_stall)
        for machine in self._roster.present:
            self._send(self._sessions.pulse, machine.name)

    def _remove_worker(self, name: str) -> None:
        self._roster.remove(name)
        self._probings.pop(name, None)
        self._sessions.drop_machine(name, "its membership was revoked", intended=True)

    def _hear_one(self, wait_s: float) -> bool:
        try:
            envelope = self._hub.recv(wait_s)
            if envelope is None:
                return False
            self._handle(envelope)
        except MalformedMessage as error:
            self._broke_protocol(error.peer, str(error))
        except LinkReset as error:
            self._drop_peer(error.peer, str(error))
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
        elif not self._registrar.is_member(sender):
            self._registrar.handle(sender, message)
        else:
            self._hear_agent(sender, message)

    def _hear_agent(self, name: str, message: Message) -> None:
        now = self._clock.now()
        match message:
            case epochs.Offer():
                self._hear_offer(name, message, now)
            case epochs.Echo():
                probing = self._probings.get(name)
                result = None if probing is None else probing.receive(message, now)
                if isinstance(result, LinkSpeed):
                    del self._probings[name]
                    self._roster.measured(name, result)
                elif result is not None:
                    self._send(result, name)
            case epochs.Leaving():
                self._drop_peer(name, STOPPED, WorkerEvent.STOPPED)
            case Enrol():
                self._registrar.handle(name, message)
            case epochs.PageFiles():
                answer = self._page_files.pop((name, message.number), None)
                if answer is not None:
                    answer.set_result(message)
            case _ if not isinstance(message, AgentReport | epochs.AgentPulse | epochs.Prefetched):
                cause = f"it sent {type(message).__name__}, which is not a worker's to send"
                self._broke_protocol(name, cause)
            case _ if not self._roster.note_alive(name, now):
                self._send(epochs.AskOffer(0), name)
            case epochs.Prefetched():
                self._loss_plans.note_prefetched(name, message)
            case _ if isinstance(message, AgentReport):
                self._sessions.handle_report(name, message)

    def _hear_offer(self, name: str, offer: epochs.Offer, now: float) -> None:
        known = self._roster.get(name)
        if known is not None and known.offer.nonce != offer.nonce:
            self._drop_peer(name, "its agent was started anew")
        offer, known = structs.replace(offer, host=sanitised_name(offer.host)), self._roster.get(name)
        if known is not None and known.offer == offer and self._roster.note_alive(name, now):
            return  # it was asked twice
        if known is None or not known.present:
            self._sessions.rank_zero.warm_if_possible()  # while the link is measured and others come
        self._roster.offered(name, offer, now)
        probing = self._probings[name] = Probing()
        self._send(probing.next_probe(now), name)

    def _look_at_links(self) -> None:
        now, before, self._cut_off = self._clock.now(), self._cut_off, {}
        for one in self._roster.present:
            if self._hub.is_connected(one.name):
                continue
            since = self._cut_off[one.name] = before.get(one.name, now)
            # The handshakes of TCP and of CURVE take four round trips.
            dialling_s = 4 * one.link.round_trip_s if one.link is not None else 0.0
            if now > since and now - since >= dialling_s:
                self._drop_peer(one.name, "its process ended or its connection broke")

    def _broke_protocol(self, peer: str, cause: str) -> None:
        """Drops the peer. If it is a worker, leaves it out of plans for a while."""
        rank, number = node_of(peer)
        epoch = self._sessions.epoch(number)
        if rank is None and self._roster.get(peer) is not None:
            _log.warning("%s broke the protocol: %s", peer, cause)
            self._roster.step(peer, WorkerEvent.BREACHED, self._clock.now(), "breach", cause)
            self._drop_peer(peer, cause)
        elif rank is not None and epoch is not None:
            # Rank 0 as well: the bad message may have been the end of an answer.
            epoch.broke_protocol(rank, cause)
        self._hub.disconnect(peer)

    def _drop_peer(self, peer: str, cause: str, event: WorkerEvent = WorkerEvent.LOST) -> None:
        rank, number = node_of(peer)
        epoch = self._sessions.epoch(number)
        if rank is None:
            self._sessions.drop_machine(peer, cause, intended=event is WorkerEvent.STOPPED)
            self._roster.mark_away(peer, cause, self._clock.now(), event)
        elif epoch is not None:
            epoch.mark_lost(rank, cause)

    def _order(self, call: Callable[[], None]) -> None:
        """Makes the control thread run `call` in its next turn."""
        self._calls.put(call)
        self._hub.wake()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self.turn()
        except TpiedgeError as error:
            self.failed = error
        except Exception as error:
            _log.exception("the control thread failed")
            self.failed = InternalError(f"the control thread failed: {type(error).__name__}: {error}")
        finally:
            self._end_all()

    def _end_all(self) -> None:
        error = Cancelled("the master was stopped") if self.failed is None else MasterFailed(str(self.failed))
        self.requests.close(NotServing(str(error)))
        self.requests.fail_all(error)
        self._sessions.close()
