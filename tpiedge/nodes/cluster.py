"""A cluster of processes on this computer, as its master holds it. No torch here (design, section 3)."""

import queue
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tpiedge.clock import MonotonicClock
from tpiedge.errors import InternalError, PeerError, TpiedgeError, UserError
from tpiedge.nodes.bootstrap import NodeBootstrap
from tpiedge.nodes.controller import Controller
from tpiedge.nodes.membership import Membership
from tpiedge.nodes.standby import NODE_MODULE, node_environment
from tpiedge.nodes.supervise import Child
from tpiedge.nodes.timing import Timing
from tpiedge.pack.share import NodeShare
from tpiedge.transport.framing import CONTROL
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub
from tpiedge.wire.control import (
    AskStats,
    Assign,
    Cancel,
    Failed,
    Finished,
    Generate,
    Loading,
    PromptScores,
    Ready,
    Shutdown,
    Stats,
    Token,
)
from tpiedge.wire.fields import Choice, Compute, KVPrecision, WirePrecision
from tpiedge.wire.messages import Message
from tpiedge.wire.requests import GenerationRequest
from tpiedge.wire.weights import ALL_PINNED, WeightMemory

__all__ = ["ClusterSpec", "LocalCluster", "Place"]

_SLICE_S = 0.1
_STATS_S = 10.0
_CLOSING_S = 3.0
_BROKEN_CLOSING_S = 0.2
_EPOCH = 1


@dataclass(frozen=True)
class Place:
    """Where a node runs: `host` is its own IP address there, `prefix` a command that execs another one there."""

    host: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


_HERE = Place()


@dataclass(frozen=True)
class ClusterSpec:
    """What to start: one node per share, in rank order, each with `threads` threads."""

    pack: Path
    shares: tuple[NodeShare, ...]
    compute: Compute
    threads: int
    capacity_tokens: int
    timing: Timing = field(default_factory=Timing)
    #: Of each node; all pinned where there is none.
    weights: tuple[WeightMemory, ...] = ()
    #: Where each node writes what it did when, at its end; nowhere where there is none.
    traces: tuple[Path, ...] = ()
    #: Of each node; all here where there is none. The caller's own process is at the first.
    places: tuple[Place, ...] = ()
    collective: Choice = "auto"
    wire: WirePrecision = "f32"
    kv: KVPrecision = "f32"

    def place(self, rank: int) -> Place:
        return self.places[rank] if self.places else _HERE


class LocalCluster:
    """Starts on entry of the context, leaves nothing behind on exit. For one caller's thread.

    `weight_bytes` is what each node is expected to load, for `on_loading(bytes loaded, bytes in all)`."""

    def __init__(
        self,
        spec: ClusterSpec,
        weight_bytes: Sequence[int] = (),
        on_loading: Callable[[int, int], None] | None = None,
    ) -> None:
        self._spec = spec
        self._on_loading = on_loading
        self._loaded = {rank: (0, expected) for rank, expected in enumerate(weight_bytes)}
        self._clock = MonotonicClock()
        self._keys = CurveKeys.generate()
        self._node_keys = [CurveKeys.generate() for _ in spec.shares]
        self._children: list[Child] = []
        self._broken = False
        #: What rank 0 said of the way that all-reduces go, once it is ready.
        self.routing: Ready | None = None
        allowed = {keys.public: f"node-{rank}" for rank, keys in enumerate(self._node_keys)}
        self._hub = ZmqHub(
            address=f"tcp://{spec.place(0).host}:*",
            keys=self._keys,
            name="master",
            allowed=allowed,
            plane=CONTROL,
        )
        timing = spec.timing
        self._controller = Controller(
            self._hub,
            self._clock,
            Membership(
                len(spec.shares), self._clock.now(), timeout_s=timing.timeout_s, start_s=timing.start_s
            ),
            _EPOCH,
            timing.heartbeat_s,
            self._assign,
            lambda: [child.exit_cause() for child in self._children],
        )

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids in rank order."""
        return tuple(child.pid for child in self._children)

    def start(self) -> None:
        """Start every node and wait until all hold their weights.

        Raises PeerLost, UserError or ResourceError with everything ended. The wait is bounded by the nodes' liveness.
        """
        try:
            for rank in range(len(self._spec.shares)):
                self._children.append(self._spawn(rank))
            self._controller.start()
            while not self._controller.all_ready:
                self._show_loading(self._next_event())
        except BaseException:
            self._broken = True  # a node that still imports does not hear Shutdown
            self.close()
            raise

    def generate(self, request: GenerationRequest) -> Generator[Token | PromptScores | Finished]:
        """Events of the request, the last of which is Finished. Closing the iterator early cancels the request.

        Raises UserError for what rank 0 refuses and PeerError for a failure of the cluster.
        """
        self._hub.post(Generate(_EPOCH, request), to="node-0")
        ended = False
        try:
            while not ended:
                message = self._next_event()
                match message:
                    case Failed(request=request.id):
                        ended = True
                        raise UserError(message.message)
                    case Token(request=request.id) | PromptScores(request=request.id):
                        yield message
                    case Finished(request=request.id):
                        ended = True
                        yield message
        finally:
            if not ended:
                self._hub.post(Cancel(_EPOCH, request.id), to="node-0")

    def stats(self) -> list[Stats]:
        """Every node's counters since it was ready, in rank order. Raises PeerError after ten seconds."""
        for rank in range(len(self._children)):
            self._hub.post(AskStats(_EPOCH), to=f"node-{rank}")
        answers: dict[int, Stats] = {}
        deadline = self._clock.now() + _STATS_S
        while len(answers) < len(self._children):
            message = self._next_event(deadline)
            if isinstance(message, Stats):
                answers[message.rank] = message
        return [answers[rank] for rank in sorted(answers)]

    def close(self) -> None:
        """End all nodes, in order if they do so within three seconds, else by force. Idempotent.

        Once a node is lost nothing is left to wait for: it may be frozen, and the user waits for the message.
        """
        if self._controller.running:
            for rank in range(len(self._children)):
                self._hub.post(Shutdown(_EPOCH), to=f"node-{rank}")
            deadline = time.monotonic() + (_BROKEN_CLOSING_S if self._broken else _CLOSING_S)
            while time.monotonic() < deadline and any(child.exit_cause() is None for child in self._children):
                time.sleep(0.01)
        self._controller.close()
        for child in self._children:
            child.stop(time.monotonic())
        self._hub.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _show_loading(self, message: Message) -> None:
        match message:
            case Loading(rank=rank, done_bytes=done, total_bytes=total):
                self._loaded[rank] = (done, total)
            case Ready(rank=rank, weight_bytes=total):
                self._loaded[rank] = (total, total)
                if rank == 0:
                    self.routing = message
        if self._on_loading:
            self._on_loading(
                sum(done for done, _ in self._loaded.values()),
                sum(total for _, total in self._loaded.values()),
            )

    def _next_event(self, deadline: float | None = None) -> Message:
        while True:
            try:
                event = self._controller.events.get(timeout=_SLICE_S)
            except queue.Empty:
                if not self._controller.running:
                    raise InternalError("the cluster's control thread has ended") from None
                if deadline is not None and self._clock.now() > deadline:
                    raise PeerError("the nodes did not answer in time") from None
                continue
            if isinstance(event, TpiedgeError):
                self._broken = True
                raise event
            return event

    def _spawn(self, rank: int) -> Child:
        keys, timing, place = self._node_keys[rank], self._spec.timing, self._spec.place(rank)
        bootstrap = NodeBootstrap(
            rank=rank,
            control_address=self._hub.address,
            master_key=self._keys.public,
            public_key=keys.public,
            secret_key=keys.secret,
            threads=self._spec.threads,
            heartbeat_s=timing.heartbeat_s,
            timeout_s=timing.timeout_s,
            stall_s=timing.stall_s,
            trace=str(self._spec.traces[rank]) if self._spec.traces else "",
            data_address=f"tcp://{place.host}:*",
        )
        environment = node_environment(self._spec.threads)
        return Child(NODE_MODULE, bootstrap.to_line(), environment, prefix=place.prefix)

    def _assign(self, rank: int) -> Assign:
        spec, share = self._spec, self._spec.shares[rank]
        return Assign(
            epoch=_EPOCH,
            rank=rank,
            nodes=tuple(range(len(spec.shares))),
            attention=(share.attention.start, share.attention.stop),
            ffn=(share.ffn.start, share.ffn.stop),
            pack=str(spec.pack),
            compute=spec.compute,
            threads=spec.threads,
            capacity_tokens=spec.capacity_tokens,
            slots=1,
            peer_keys=tuple((peer, keys.public) for peer, keys in enumerate(self._node_keys)),
            weights=spec.weights[rank] if spec.weights else ALL_PINNED,
            collective=spec.collective,
            wire=spec.wire,
            kv=spec.kv,
        )
