"""A worker's agent: it keeps the link to the master and the shards, and starts a node for each epoch.

It imports no torch and outlives its nodes: it reports the end of a node to the master with its cause, and waits for a
master that goes away. One thread runs the loop; fetching for the coming epoch has a thread of its own, and fetching
for plans that may come has another.
"""

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tpiedge import __version__
from tpiedge.clock import Clock
from tpiedge.errors import OutOfMemory, PeerError, ResourceError, TpiedgeError
from tpiedge.host.addresses import listening_address
from tpiedge.joining.connecting import introduction
from tpiedge.launch.bootstrap import NodeBootstrap
from tpiedge.launch.measurements import Measurements
from tpiedge.launch.memory_offer import LOOK_S, MemoryOffer
from tpiedge.launch.slot import SETTLED_S, NodeSlot
from tpiedge.launch.standby import Standby
from tpiedge.launch.timing import OwnStalls, Timing
from tpiedge.sanitise import sanitised_line
from tpiedge.transport.endpoint import Endpoint, EndpointClosed, Unreachable
from tpiedge.units import format_range
from tpiedge.wire.epochs import (
    AgentPulse,
    AskOffer,
    Echo,
    Held,
    Launch,
    Leaving,
    MasterPulse,
    NodeEnded,
    Offer,
    Prepare,
    Prepared,
    Preparing,
    Probe,
    Release,
    Spare,
    Spawned,
    Stock,
)
from tpiedge.wire.join import Enrolled, Refused
from tpiedge.wire.limits import MAX_NODES
from tpiedge.wire.messages import PROTOCOL, Message
from tpiedge.worker.preparation import FetchShards, Preparation, Preparations, Shards
from tpiedge.worker.settings import AgentSettings
from tpiedge.worker.stocking import Stocking, Stockroom
from tpiedge.worker.way import Lookout, WayState
from tpiedge.worker.wording import NARROW, computing_line, spare_line, stopped_line

_log = logging.getLogger(__name__)

_SLICE_S: Final = 0.1
_REPORT_S: Final = 120.0
_STOP_S: Final = 1.0
#: So often it looks where a silent master is.
_LOOK_S: Final = 10.0


class JoinRefused(PeerError):
    """The master has revoked this worker, or does not admit it."""


class MasterMoved(PeerError):
    """The master is at another address now: join it there."""


@dataclass
class _Running:
    """The epoch of the node in the slot, the shards that it uses, and the memory that its plan gives it."""

    epoch: int
    shards: Shards
    planned_bytes: int
    #: When the master first said that it serves.
    served: float | None = None
    #: Whether a process was made to stand by for the next one.
    covered: bool = False


class Agent:
    """One thread calls `run`; any may call `stop`. `say` gets lines for the user.

    The worker has enrolled on `endpoint` already; the caller closes it.
    """

    def __init__(
        self,
        settings: AgentSettings,
        endpoint: Endpoint,
        fetch: FetchShards,
        stockroom: Stockroom,
        clock: Clock,
        say: Callable[[str], None],
        measurements: Measurements,
        look: Callable[[], WayState],
        memory: MemoryOffer,
        usable_memory: Callable[[], int],
        standby: Standby | None = None,
    ) -> None:
        """`look` says how the way to the master is, in a thread of its own; `usable_memory` how many bytes this machine
        may use now, without waiting. `standby` is a process that was started already; the agent owns it from now on."""
        self._settings = settings
        self._endpoint = endpoint
        self._clock = clock
        self._say = say
        self._measurements = measurements
        self._nonce = secrets.randbits(63)
        self._memory = memory
        self._usable_memory = usable_memory
        self._weighed = clock.now()  # when it last looked how much memory it may use
        self._offered_bytes = -1  # of memory, as the master was told last
        self._slot = NodeSlot(settings.threads, standby, memory.offered_bytes, settings.locker)
        self._preparations = Preparations(fetch, self._progress)
        self._stockroom = stockroom
        self._stocking = Stocking(stockroom, clock)
        #: Whether the master serves and is not busy.
        self._at_rest = False
        self._running: _Running | None = None
        self._distrust = False
        self._report = measurements.recall()
        self._heard = clock.now()
        self._silent = False
        self._lookout = Lookout(look)
        self._looked = clock.now()
        self._narrow = False  # as the user was told last
        #: What the user was last told that this machine is for.
        self._standing = ""
        self._stopping = threading.Event()

    def run(self) -> None:
        """Serves until `stop`; blocks. Raises JoinRefused, MasterMoved, DuplicateName, PeerError; OutOfMemory where the
        memory that this machine offers holds no share of the master's model."""
        try:
            self._slot.warm(measure=self._report is None)
            self._serve()
        finally:
            self._close()

    def stop(self) -> None:
        """Ends the loop and with it the node. Returns at once."""
        self._stopping.set()

    def _offer(self) -> Offer:
        """This machine's offer, measured once by the first standby node; blocks up to _REPORT_S for that."""
        if self._report is None:
            report = self._slot.warm(measure=True).report(self._clock.now() + _REPORT_S)
            if report is None:
                raise PeerError(
                    f"the node process was not ready within {_REPORT_S:.0f} s: is the machine overloaded?"
                )
            self._report = report
            self._measurements.keep(report)
        settings, report = self._settings, self._report
        return Offer(
            epoch=0,
            name=settings.name,
            host=settings.host,
            version=__version__,
            protocol=PROTOCOL,
            nonce=self._nonce,
            cpu=report.cpu,
            isa=report.isa,
            threads=settings.threads,
            memory_bytes=self._memory.offered_bytes,
            free_disk_bytes=settings.free_disk_bytes,
            capacity=report.capacity,
            disk_bytes_per_s=settings.disk_bytes_per_s,
            keeping=settings.keeping,
        )

    def _introduce(self) -> None:
        """Says what this machine can give, and what it has: at once, or it is planned for as if it had nothing."""
        held = self._held()  # which may take its disk some time
        self._make_offer()
        self._send_all(held)

    def _make_offer(self) -> None:
        offer = self._offer()
        if self._send(offer):
            self._offered_bytes = offer.memory_bytes

    def _held(self) -> list[Held]:
        intervals = {pack: units.intervals for pack, units in self._stockroom.held().items()}
        return [
            Held(0, pack, attention[:MAX_NODES], ffn[:MAX_NODES])
            for pack, (attention, ffn) in intervals.items()
        ]

    def _send_all(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._send(message)

    # --- serving

    def _serve(self) -> None:
        self._introduce()
        due = self._heard = self._clock.now()
        stalls = OwnStalls(self._settings.timing.heartbeat_s)
        while not self._stopping.is_set():
            now = self._clock.now()
            if now >= due:
                excused = stalls.beat(now - due)
                due = now + self._settings.timing.heartbeat_s
                # First: the master plans anew for a lost node once it hears this machine, with what it offers by then.
                self._watch(now, excused=excused)
                self._send(AgentPulse(self._epoch))
            try:
                envelope = self._endpoint.recv(min(_SLICE_S, max(0.0, due - now)))
            except EndpointClosed:
                return
            if envelope is not None:
                self._hear(envelope.message)
            self._take_fetched()
            self._stock()
            self._see(self._lookout.seen())

    @property
    def _epoch(self) -> int:
        return 0 if self._running is None else self._running.epoch

    def _hear(self, message: Message) -> None:
        self._heard = self._clock.now()
        if self._silent:
            self._silent = False
            self._say("the master is back")
        match message:
            case AskOffer():
                # A restarted master may have another version or compute otherwise.
                self._send(introduction(self._settings.host))
                self._introduce()
            case Prepare():
                self._prepare(message)
            case Launch(epoch=epoch):
                self._launch(epoch)
            case Release(epoch=epoch):
                self._release(epoch)
            case Probe(number=number, answer_bytes=count):
                self._send(Echo(message.epoch, number, bytes(count)))
            case Spare(kind="too small") if not self._memory.reduced:
                raise OutOfMemory(spare_line(message))
            case Spare():
                self._stand(message.kind, spare_line(message))
            case Refused(message=why):
                raise JoinRefused(why)
            case Stock():
                self._stocking.take(message)
            case MasterPulse():
                self._at_rest = message.state == "serving" and not message.busy
                if self._running is not None and message.state == "serving":
                    self._serves(message.epoch, self._running)
            case Enrolled():
                return

    def _stock(self) -> None:
        """What other plans need comes while nobody has use for the link and the disk."""
        if self._at_rest and self._preparations.idle:
            self._stocking.go_on()
        else:
            self._stocking.pause()
        said = self._stocking.finished()
        if said is not None:
            self._send_all(self._held())
            self._send(said)

    def _serves(self, epoch: int, running: _Running) -> None:
        """The epoch serves: soon a process stands by for the next one, if there is memory for it."""
        if epoch != running.epoch or running.covered:
            return
        if running.served is None:
            running.served = self._heard
        if self._heard - running.served >= SETTLED_S:
            running.covered = True
            try:
                self._slot.warm_ahead()
            except ResourceError as error:
                _log.warning("no process stands by for the next epoch: %s", error)

    def _prepare(self, order: Prepare) -> None:
        try:
            self._slot.warm_ahead()
        except ResourceError as error:
            self._cannot(order.epoch, error)
            return
        self._preparations.begin(order, verify=self._distrust)

    def _cannot(self, epoch: int, error: TpiedgeError) -> None:
        _log.debug("epoch %d cannot be prepared: %s: %s", epoch, type(error).__name__, error)
        self._standing = ""
        self._say(f"this machine cannot take its part: {error}")
        self._send(NodeEnded(epoch, type(error).__name__, sanitised_line(error)))

    def _progress(self, epoch: int, done_bytes: int, total_bytes: int, bytes_per_s: float) -> None:
        self._endpoint.post(Preparing(epoch, done_bytes, total_bytes, bytes_per_s))

    def _take_fetched(self) -> None:
        for preparation, error in self._preparations.finished():
            if error is not None:
                self._cannot(preparation.order.epoch, error)
            else:
                self._distrust = False
                self._send_all(self._held())
                self._send(Prepared(preparation.order.epoch, preparation.keys.public))

    def _launch(self, epoch: int) -> None:
        claimed = self._preparations.claim(epoch)
        if claimed is None:
            self._send(NodeEnded(epoch, "", "it is not prepared (the agent was restarted)"))
            return
        preparation, shards = claimed
        self._drop_node()
        self._at_rest = False
        try:
            pid = self._slot.start(self._bootstrap(preparation, shards.path), preparation.order.planned_bytes)
        except ResourceError as error:
            shards.close()
            self._cannot(epoch, error)
            return
        order = preparation.order
        self._running = _Running(epoch, shards, order.planned_bytes)
        self._send(Spawned(epoch, order.rank, pid))
        _log.debug(
            "epoch %d: rank %d of %d, heads %s, FFN tiles %s",
            epoch,
            order.rank,
            order.ranks,
            format_range(*order.attention),
            format_range(*order.ffn),
        )
        self._stand(f"one of {order.ranks}", computing_line(order.ranks))

    def _stand(self, standing: str, line: str) -> None:
        """Says what this machine is for from now on, unless that is what the user was told last."""
        if standing != self._standing:
            self._standing = standing
            self._say(line)

    def _release(self, epoch: int) -> None:
        self._preparations.release(epoch)
        if self._epoch == epoch:
            self._drop_node()
            self._send(NodeEnded(epoch, "", "the master released it"))
            self._look(self._clock.now())

    def _watch(self, now: float, *, excused: bool) -> None:
        """Reports a node that has ended, and notices a silent master, unless it is `excused`, and what becomes of the
        memory."""
        cause = self._slot.exit_cause()
        if cause is not None:
            epoch = self._epoch
            self._standing = ""
            _log.debug("the node of epoch %d ended: %s", epoch, cause)
            self._say(stopped_line(cause))
            self._drop_node()
            self._send(NodeEnded(epoch, "", sanitised_line(cause)))
            self._look(now)
        if now - self._weighed >= LOOK_S:
            self._weighed = now
            self._weigh(self._memory.look(self._usable_memory(), now))
        if now - self._heard > self._settings.timing.timeout_s and not self._silent and not excused:
            self._silent, self._standing, self._at_rest = True, "", False
            # A preparation goes on: the master may not have noticed the silence, and wait for it.
            self._say("the master is silent; waiting for it")
            self._look(now)
        if self._silent and now - self._looked >= _LOOK_S:
            self._look(now)

    def _weigh(self, changed: str) -> None:
        """Says what has changed of the memory that this machine gives, if anything, and offers it to the master, which
        may not have heard the last offer."""
        if changed:
            self._say(changed)
            self._slot.memory_bytes = self._memory.offered_bytes
        if self._offered_bytes != self._memory.offered_bytes:
            self._make_offer()

    def _look(self, now: float) -> None:
        """The master is silent; or a node ended, perhaps since a link of it broke, though the master is heard."""
        self._looked = now
        self._lookout.begin()

    def _see(self, way: WayState | None) -> None:
        if way == "moved" and self._silent:
            raise MasterMoved("the master is at another address now")
        if way == "narrow" and not self._narrow:
            self._say(NARROW)
        if way is not None:
            self._narrow = way == "narrow"

    def _bootstrap(self, preparation: Preparation, folder: Path) -> NodeBootstrap:
        settings, order = self._settings, preparation.order
        return NodeBootstrap.of(
            order.rank,
            order.epoch,
            settings.control_address,
            settings.master_key,
            preparation.keys,
            order.threads,
            Timing(order.heartbeat_s, order.timeout_s, order.stall_s),
            listening_address(settings.control_address),
            pack=str(folder),
        )

    def _send(self, message: Message) -> bool:
        """Sends without waiting. A message to a master that is gone is dropped, and False returned: its silence is
        noticed anyway."""
        try:
            self._endpoint.send(message, timeout_s=0.0)
        except Unreachable:
            return False
        return True

    def _pulse(self) -> None:
        """The end of a large node may take longer than the master waits for a sign of life."""
        with contextlib.suppress(EndpointClosed):
            self._send(AgentPulse(self._epoch))

    def _drop_node(self) -> None:
        """Ends the node. If it ended itself for want of memory, the master hears first what it may plan with next."""
        if self._running is not None and self._slot.out_of_memory:
            now = self._clock.now()
            self._weigh(self._memory.ran_out(self._running.planned_bytes, self._usable_memory(), now))
        self._stop_node()

    def _stop_node(self, grace_s: float = 0.0) -> None:
        if self._running is not None:
            # Whether the node ended by itself or by Release: its log says if the shards were bad.
            tail = self._slot.log_tail()
            self._distrust = "IntegrityError" in tail or "ReadFault" in tail
            self._slot.stop(grace_s, self._pulse)
            self._running.shards.close()
            self._running = None

    def _close(self) -> None:
        with contextlib.suppress(EndpointClosed):
            self._send(Leaving(self._epoch))
        # Both end while the node does.
        self._preparations.cancel()
        self._stocking.pause()
        self._stop_node(_STOP_S)
        self._slot.close()
        self._preparations.close()
        self._stocking.close()
