"""Keeps a worker's link to the master, fetches shards, and starts a node for each epoch."""

import contextlib
import secrets
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tpiedge.clock import Clock
from tpiedge.errors import OutOfMemory, PeerError, ResourceError, TpiedgeError
from tpiedge.host.addresses import listening_address
from tpiedge.joining.enrolment import introduction
from tpiedge.kv.page_folder import PageFolder, PageUsage
from tpiedge.launch.bootstrap import NodeBootstrap, OwnStalls, Timing
from tpiedge.launch.offer import Measurements
from tpiedge.launch.slot import NodeSlot
from tpiedge.pack.shard_copy import ShardCopy
from tpiedge.sanitise import sanitised_line
from tpiedge.shipping.fetcher import Provision
from tpiedge.transport.endpoint import Endpoint, EndpointClosed, Unreachable
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire import epochs
from tpiedge.wire.fields import Keeping, Message
from tpiedge.wire.join import Refused
from tpiedge.worker.background import Background, Prefetcher
from tpiedge.worker.masters import PathState
from tpiedge.worker.wording import SMALL_MTU, spare_line, stopped_line

_REPORT_S: Final = 120.0


class MasterMoved(PeerError):
    """The master has a new address."""


@dataclass(frozen=True)
class AgentSettings:
    control_address: str
    master_key: str
    host: str
    free_disk_bytes: int
    disk_bytes_per_s: float
    pages: PageFolder
    keeping: Keeping = field(default_factory=Keeping)
    timing: Timing = field(default_factory=Timing)


@dataclass
class _Part:
    order: epochs.Prepare
    keys: CurveKeys
    shards: ShardCopy | None = None

    def close(self) -> None:
        if self.shards is not None:
            self.shards.close()


@dataclass(eq=False)
class Agent:
    """A worker that has enrolled through `_endpoint`. The caller closes `_endpoint`; the agent closes `_slot`.

    One thread calls `run`; any thread may call `stop`. `_say` gets lines for the user. `_probe_path` runs in another
    thread.
    """

    _settings: AgentSettings
    _endpoint: Endpoint
    _weights: Provision
    _clock: Clock
    _say: Callable[[str], None]
    _measurements: Measurements
    _probe_path: Callable[[], PathState]
    _slot: NodeSlot
    _alive: Callable[[float], None] = lambda _now: None  # called in each turn of the loop
    _nonce: int = field(default_factory=lambda: secrets.randbits(63))
    _offered_bytes: int = -1  # memory in the latest offer
    _preparing: _Part | None = None
    _running: _Part | None = None
    _distrust: bool = False  # in the shards on disk
    _silent: bool = False
    _at_rest: bool = False  # the master serves, without requests
    _standing: str = ""  # the part of this machine that the user heard of last
    _small_mtu: bool = False
    _page_asks: deque[epochs.AskPages] = field(default_factory=deque)
    _stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._report = self._measurements.recall()
        self._fetching: Background[ShardCopy] = Background("fetch", lambda shards: shards.close())
        self._prefetch = Prefetcher(self._weights, self._clock)
        self._probing: Background[PathState] = Background("path probe")
        self._counting: Background[tuple[PageUsage, PageUsage]] = Background("page files")
        self._heard = self._probed_at = self._clock.now()

    def run(self) -> None:
        """Serves and blocks until `stop`. Raises MasterMoved, DuplicateName, PeerError, OutOfMemory."""
        try:
            self._slot.own_pages()  # the master admits one process of each worker
            self._slot.warm(measure=self._report is None)
            self._serve()
        finally:
            self._close()

    def stop(self) -> None:
        """Makes `run` end the node and return. Does not block."""
        self._stopping.set()

    def _make_offer(self) -> None:
        """Blocks up to _REPORT_S. Raises PeerError."""
        if self._report is None:
            report = self._slot.warm(measure=True).report(self._clock.now() + _REPORT_S)
            if report is None:
                raise PeerError(
                    f"the node process was not ready within {_REPORT_S:.0f} s: is the machine overloaded?"
                )
            self._report = report
            self._measurements.keep(report)
        settings, report = self._settings, self._report
        offer = epochs.Offer(
            epoch=0,
            host=settings.host,
            nonce=self._nonce,
            isa=report.isa,
            threads=self._slot.threads,
            memory_bytes=self._slot.memory_bytes,
            free_disk_bytes=settings.free_disk_bytes,
            capacity=report.capacity,
            disk_bytes_per_s=settings.disk_bytes_per_s,
            keeping=settings.keeping,
            keep_bytes=settings.pages.keep_bytes,
            park_bytes=settings.pages.park_bytes,
        )
        if self._send(offer):
            self._offered_bytes = offer.memory_bytes

    def _serve(self) -> None:
        self._make_offer()
        due = self._heard = self._clock.now()
        stalls = OwnStalls(self._settings.timing.heartbeat_s)
        while not self._stopping.is_set():
            now = self._clock.now()
            self._alive(now)
            if now >= due:
                own_stall = stalls.beat(now - due)
                due = now + self._settings.timing.heartbeat_s
                # Offers come before the pulse, because the master plans for a lost node when the pulse arrives.
                self._watch(now, own_stall=own_stall)
                self._send(epochs.AgentPulse(self._epoch))
            try:
                envelope = self._endpoint.recv(min(0.1, max(0.0, due - now)))
            except EndpointClosed:
                return
            if envelope is not None:
                self._hear(envelope.message)
            self._take_fetched()
            prefetched = self._prefetch.step(at_rest=self._at_rest and self._preparing is None)
            if prefetched is not None:
                self._send(prefetched)
            self._handle_probe()
            self._answer_page_asks()

    @property
    def _epoch(self) -> int:
        return 0 if self._running is None else self._running.order.epoch

    def _hear(self, message: Message) -> None:
        self._heard = self._clock.now()
        if self._silent:
            self._silent = False
            self._say("the master is back")
        match message:
            case epochs.AskOffer():
                # A restarted master may have another version.
                self._send(introduction(self._settings.host))
                self._make_offer()
            case epochs.Prepare():
                self._prepare(message)
            case epochs.Launch(epoch=epoch):
                self._launch(epoch)
            case epochs.Release(epoch=epoch):
                self._release(epoch)
            case epochs.Probe(number=number, answer_bytes=count):
                self._send(epochs.Echo(message.epoch, number, bytes(count)))
            case epochs.Spare(kind="too small") if not self._slot.memory.reduced:
                raise OutOfMemory(spare_line(message, self._settings.host))
            case epochs.Spare():
                self._stand(message.kind, spare_line(message, self._settings.host))
            case Refused(message=why):
                raise PeerError(why)
            case epochs.Prefetch():
                self._prefetch.order(message)
            case epochs.AskPages() if len(self._page_asks) < 8:
                self._page_asks.append(message)
            case epochs.MasterPulse():
                self._at_rest = message.at_rest

    def _prepare(self, order: epochs.Prepare) -> None:
        try:
            self._slot.warm()
        except ResourceError as error:
            self._cannot(order.epoch, error)
            return
        self._drop_preparation()
        self._preparing = _Part(order, CurveKeys.generate())

        def progress(done_bytes: int, total_bytes: int, bytes_per_s: float) -> None:
            self._endpoint.post(epochs.Preparing(order.epoch, done_bytes, total_bytes, bytes_per_s))

        verify = self._distrust
        self._fetching.start(lambda cancelled: self._weights.fetch(order, progress, cancelled, verify=verify))

    def _drop_preparation(self) -> None:
        self._fetching.cancel()
        if self._preparing is not None:
            self._preparing.close()
            self._preparing = None

    def _take_fetched(self) -> None:
        found, part = self._fetching.pop_result(), self._preparing
        if found is None or part is None:
            return
        if isinstance(found, TpiedgeError):
            self._preparing = None
            self._cannot(part.order.epoch, found)
            return
        part.shards = found
        self._distrust = False
        self._send(epochs.Prepared(part.order.epoch, part.keys.public))

    def _cannot(self, epoch: int, error: TpiedgeError) -> None:
        self._standing = ""
        self._say(f"this machine cannot take its part: {error}")
        self._send(epochs.NodeEnded(epoch, sanitised_line(error)))

    def _launch(self, epoch: int) -> None:
        part = self._preparing
        if part is None or part.order.epoch != epoch or part.shards is None:
            self._send(epochs.NodeEnded(epoch, "it is not prepared (the agent was restarted)"))
            return
        self._preparing, order = None, part.order
        self._drop_node()
        self._at_rest, settings = False, self._settings
        address, key = settings.control_address, settings.master_key
        timing = Timing(order.heartbeat_s, order.timeout_s, order.stall_s)
        listen, pack = listening_address(address), str(part.shards.path)
        bootstrap = NodeBootstrap(order.rank, epoch, address, key, part.keys, timing, listen, pack)
        try:
            self._slot.start(bootstrap, order.planned_bytes)
        except ResourceError as error:
            part.close()
            self._cannot(epoch, error)
            return
        self._running = part
        self._send(epochs.Spawned(epoch, order.rank, self._slot.pid or 0))
        self._stand(f"one of {order.ranks}", f"now computing as one of {order.ranks} machines")

    def _stand(self, standing: str, line: str) -> None:
        if standing != self._standing:
            self._standing = standing
            self._say(line)

    def _release(self, epoch: int) -> None:
        if self._preparing is not None and self._preparing.order.epoch == epoch:
            self._drop_preparation()
        if self._epoch == epoch:
            self._drop_node()
            self._send(epochs.NodeEnded(epoch, "the master released it"))
            self._start_probe(self._clock.now())

    def _drop_node(self) -> None:
        """Ends the node. If memory ran out, first sends a new offer."""
        self._stop_node(meanwhile=self._offer_anew)
        self._offer_anew()

    def _stop_node(self, grace_s: float = 0.0, meanwhile: Callable[[], None] = lambda: None) -> None:
        def live_on() -> None:
            with contextlib.suppress(EndpointClosed):
                meanwhile()
                self._send(epochs.AgentPulse(self._epoch))

        if self._running is not None:
            tail = self._slot.log_tail()
            self._distrust = "IntegrityError" in tail or "ReadFault" in tail
            # A large node may take longer to end than the master waits for a pulse.
            self._slot.stop(grace_s, live_on)
            self._running.close()
            self._running = None

    def _watch(self, now: float, *, own_stall: bool) -> None:
        cause = self._slot.exit_cause()
        if cause is not None:
            epoch = self._epoch
            self._standing = ""
            self._say(stopped_line(cause))
            self._drop_node()
            self._send(epochs.NodeEnded(epoch, sanitised_line(cause)))
            self._start_probe(now)
        self._slot.weigh()
        self._offer_anew()
        if now - self._heard > self._settings.timing.timeout_s and not self._silent and not own_stall:
            self._silent, self._standing, self._at_rest = True, "", False
            self._say("the master is silent; waiting for it")  # a preparation goes on meanwhile
            self._start_probe(now)
        if self._silent and now - self._probed_at >= 10.0:
            self._start_probe(now)

    def _offer_anew(self) -> None:
        if self._offered_bytes != self._slot.memory_bytes:
            self._make_offer()

    def _start_probe(self, now: float) -> None:
        self._probed_at = now
        if self._probing.idle:
            self._probing.start(lambda _cancelled: self._probe_path())

    def _handle_probe(self) -> None:
        path = self._probing.pop_result()
        if path is None:
            return
        if path == "moved" and self._silent:
            raise MasterMoved("the master is at another address now")
        if path == "small MTU" and not self._small_mtu:
            self._say(SMALL_MTU)
        self._small_mtu = path == "small MTU"

    def _answer_page_asks(self) -> None:
        """Counts or deletes page files in a thread, for one AskPages at a time."""
        found = self._counting.pop_result()
        if found is not None:
            number = self._page_asks.popleft().number
            if isinstance(found, TpiedgeError):
                self._send(epochs.PageFiles(0, number, 0, 0, 0, 0, sanitised_line(found)))
            else:
                kept, parked = found
                counts = kept.pages, kept.nbytes, parked.pages, parked.nbytes
                self._send(epochs.PageFiles(0, number, *counts, ""))
        if self._page_asks and self._counting.idle:
            clear, pages = self._page_asks[0].clear, self._settings.pages
            self._counting.start(lambda _cancelled: pages.usage(clear=clear))

    def _send(self, message: Message) -> bool:
        """Returns False if the master takes nothing. Does not wait."""
        try:
            self._endpoint.send(message, timeout_s=0.0)
        except Unreachable:
            return False
        return True

    def _close(self) -> None:
        with contextlib.suppress(EndpointClosed):
            self._send(epochs.Leaving(self._epoch))
        self._drop_preparation()
        self._prefetch.pause()
        self._stop_node(1.0)
        self._slot.close()
        self._fetching.close()
        self._prefetch.close()
        self._counting.close()
