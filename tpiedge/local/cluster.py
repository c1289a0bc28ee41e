"""A cluster of processes on this computer, held by its master, and what it answers: events become text, which ends at
stop strings and is timed as the user sees it. No torch here.
"""

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tpiedge.clock import MonotonicClock
from tpiedge.errors import InternalError, PeerError, TpiedgeError, UserError
from tpiedge.launch.bootstrap import NodeBootstrap, Timing, control_name, node_of
from tpiedge.launch.child import Child, Place
from tpiedge.launch.slot import NODE_MODULE, node_environment
from tpiedge.master.assignments import Assignment, Served
from tpiedge.master.epoch import Epoch, EpochEvent
from tpiedge.model.tokenizer import TextWriter, Tokenizer
from tpiedge.pack.grids import grid_exponents
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare
from tpiedge.transport.endpoint import Endpoint, EndpointClosed, LinkReset, MalformedMessage
from tpiedge.transport.framing import CONTROL
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub
from tpiedge.wire.control import (
    AnswerPart,
    AskStats,
    Assign,
    Cancel,
    Embedding,
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
from tpiedge.wire.fields import CollectiveChoice, Compute, KVPrecision, WirePrecision
from tpiedge.wire.messages import Message
from tpiedge.wire.requests import GenerationRequest
from tpiedge.wire.weights import ALL_PINNED, WeightMemory

_EPOCH = 1


@dataclass(frozen=True)
class ClusterSpec:
    """What to start: one node per share, in rank order, each with `threads` threads."""

    pack: Path
    shares: tuple[NodeShare, ...]
    compute: Compute
    threads: int
    capacity_tokens: int
    timing: Timing = field(default_factory=Timing)
    #: How each node keeps its weights, in rank order; empty: all pinned.
    weights: tuple[WeightMemory, ...] = ()
    #: The file that each node writes its trace to at its end, in rank order; empty: no traces.
    traces: tuple[Path, ...] = ()
    #: Where each node runs, in rank order, the caller's process at the first; empty: all on this host.
    places: tuple[Place, ...] = ()
    collective: CollectiveChoice = "auto"
    wire: WirePrecision = "f32"
    kv: KVPrecision = "f32"
    #: As in Assign.
    speculate: int = 0

    def place(self, rank: int) -> Place:
        return self.places[rank] if self.places else Place()

    def assigning(self, public_keys: Mapping[int, str]) -> Callable[[int], Assign]:
        """Makes each node's part of the plan. Reads the grids of a quantised pack. Raises UserError."""
        served = Served(
            self.pack,
            "",
            self.compute,
            capacity_tokens=self.capacity_tokens,
            context_tokens=self.capacity_tokens,
            speculate=self.speculate,
            collective=self.collective,
            wire=self.wire,
            kv=self.kv,
            grids=grid_exponents(Pack.open(self.pack)) if self.compute == "int8" else (),
        )
        assignments = tuple(
            Assignment("", share, self.threads, 0, "", weights=memory)
            for share, memory in zip(
                self.shares, self.weights or (ALL_PINNED,) * len(self.shares), strict=True
            )
        )
        return lambda rank: served.assign(_EPOCH, assignments, rank, public_keys)


class LocalCluster:
    """Starts on entry of the context, leaves nothing behind on exit. One thread must make all calls.

    `weight_bytes` is the expected size of each node's weights, for `on_loading(bytes loaded, bytes in all)`.
    """

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
        #: Rank 0's Ready, which names the collectives; None until it is ready.
        self.routing: Ready | None = None
        allowed = {keys.public: control_name(rank, _EPOCH) for rank, keys in enumerate(self._node_keys)}
        self._hub = ZmqHub(
            address=f"tcp://{spec.place(0).host}:*",
            keys=self._keys,
            name="master",
            allowed=allowed,
            plane=CONTROL,
        )
        public_keys = {rank: keys.public for rank, keys in enumerate(self._node_keys)}
        self._controller = Controller(
            self._hub,
            len(spec.shares),
            spec.timing,
            spec.assigning(public_keys),
            lambda: [child.exit_cause() for child in self._children],
        )

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(child.pid for child in self._children)

    def start(self) -> None:
        """Starts every node and blocks until all have loaded their weights.

        Raises PeerLost, UserError or ResourceError with everything ended. The wait is bounded by the nodes' liveness.
        """
        try:
            for rank in range(len(self._spec.shares)):
                self._children.append(self._spawn(rank))
            self._controller.start()
            self._await_ready()
        except BaseException:
            self._broken = True  # a node that still imports does not hear Shutdown
            self.close()
            raise

    def generate(self, request: GenerationRequest) -> Generator[AnswerPart | Finished]:
        """The request's events, up to Finished; blocks between them. Closing the iterator early cancels the request.

        Raises UserError for what rank 0 refuses and PeerError for a failure of the cluster.
        """
        self._hub.post(Generate(_EPOCH, request), to=control_name(0, _EPOCH))
        ended = False
        try:
            while not ended:
                message = self._next_event()
                match message:
                    case Failed(request=request.id):
                        ended = True
                        raise UserError(message.message)
                    case Token() | PromptScores() | Embedding() | Finished() if message.request == request.id:
                        ended = isinstance(message, Finished)
                        yield message
        finally:
            if not ended:
                self._hub.post(Cancel(_EPOCH, request.id), to=control_name(0, _EPOCH))

    def stats(self) -> list[Stats]:
        """Every node's counters since it was ready, in rank order. Blocks; raises PeerError after ten seconds."""
        for rank in range(len(self._children)):
            self._hub.post(AskStats(_EPOCH), to=control_name(rank, _EPOCH))
        answers: dict[int, Stats] = {}
        deadline = self._clock.now() + 10.0
        while len(answers) < len(self._children):
            message = self._next_event(deadline)
            if isinstance(message, Stats):
                answers[message.rank] = message
        return [answers[rank] for rank in sorted(answers)]

    def close(self) -> None:
        """Ends all nodes: they have three seconds to end by themselves, then they are killed. Blocks. Idempotent.

        After a loss they have less: a node may be frozen, and the user waits for the error message.
        """
        if self._controller.running:
            for rank in range(len(self._children)):
                self._hub.post(Shutdown(_EPOCH), to=control_name(rank, _EPOCH))
            deadline = time.monotonic() + (0.2 if self._broken else 3.0)
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

    def _await_ready(self) -> None:
        """Takes events until each node's Ready has arrived.

        The epoch is ready earlier, but then rank 0's choice of collectives may still be in the queue.
        """
        missing = set(range(len(self._spec.shares)))
        while missing:
            match message := self._next_event():
                case Loading(rank=rank, done_bytes=done, total_bytes=total):
                    self._loaded[rank] = (done, total)
                case Ready(rank=rank, weight_bytes=total):
                    self._loaded[rank] = (total, total)
                    missing.discard(rank)
                    if rank == 0:
                        self.routing = message
            if self._on_loading:
                parts = self._loaded.values()
                self._on_loading(sum(done for done, _ in parts), sum(total for _, total in parts))

    def _next_event(self, deadline: float | None = None) -> Message:
        while True:
            try:
                event = self._controller.events.get(timeout=0.1)
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
        bootstrap = NodeBootstrap.of(
            rank,
            _EPOCH,
            self._hub.address,
            self._keys.public,
            keys,
            self._spec.threads,
            timing,
            f"tcp://{place.host}:*",
            pack=str(self._spec.pack),
            trace=str(self._spec.traces[rank]) if self._spec.traces else "",
        )
        return Child(
            NODE_MODULE,
            bootstrap.to_line(),
            node_environment(self._spec.threads),
            prefix=place.prefix,
        )


class Controller:
    """Runs between `start` and `close`; `events` has messages of the nodes, or the error that ends the cluster.

    `assign(rank)` makes a node's part of the plan; `exit_causes()` gives each process's cause of its end, or None. The
    control thread calls both.
    """

    def __init__(
        self,
        hub: Endpoint,
        nodes: int,
        timing: Timing,
        assign: Callable[[int], Assign],
        exit_causes: Callable[[], Sequence[str | None]],
    ) -> None:
        self.events: queue.Queue[EpochEvent] = queue.Queue()
        self._hub = hub
        self._clock = MonotonicClock()
        self._heartbeat_s = timing.heartbeat_s
        self._exit_causes = exit_causes

        def post(message: Message, rank: int) -> None:
            hub.post(message, to=control_name(rank, _EPOCH))

        self._epoch = Epoch(_EPOCH, self._clock, nodes, timing, assign, post, self.events.put)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Ends the thread and waits for it. Messages that were posted before are sent."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        due = self._clock.now()
        while not self._closing.is_set():
            try:
                # If this thread was held up, heartbeats are waiting: it takes them all before it looks for silence.
                while (envelope := self._hub.recv(max(0.0, due - self._clock.now()))) is not None:
                    self._epoch.handle(_rank(envelope.sender), envelope.message)
                due = self._clock.now() + self._heartbeat_s
                for rank, cause in enumerate(self._exit_causes()):
                    if cause is not None and not self._closing.is_set():
                        self._epoch.ended(rank, cause)
                self._epoch.tick()
            except (MalformedMessage, LinkReset) as error:
                self._epoch.lose(_rank(error.peer), str(error))
            except EndpointClosed:
                return
            except TpiedgeError as error:
                self.events.put(error)
                return
            except Exception as error:
                self.events.put(InternalError(f"the control thread failed: {type(error).__name__}: {error}"))
                return


def _rank(peer: str) -> int:
    rank, _ = node_of(peer)
    if rank is None:
        raise InternalError(f"the hub let in {peer}, which is no node")
    return rank


@dataclass
class Answer:
    """A complete answer. `ttft_s` is the time to the first token, `decode_s` the time from there to the last.

    `tokens_per_step` is how many tokens a sweep over the model gave; None where a stop string ended the answer.
    """

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = "length"
    ttft_s: float = 0.0
    decode_s: float = 0.0
    logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    tokens_per_step: float | None = None

    @property
    def s_per_token(self) -> float | None:
        """Seconds per token after the first; None with fewer than two tokens."""
        steps = len(self.token_ids) - 1
        return self.decode_s / steps if steps > 0 else None


def collect(
    cluster: LocalCluster,
    request: GenerationRequest,
    tokenizer: Tokenizer | None,
    stops: Iterable[str],
    show: Callable[[str], None],
    *,
    goes_on: bool = False,
) -> Answer:
    """Runs the request; blocks until it ends, and raises as LocalCluster.generate.

    `show` gets the text piece by piece, never half a character nor part of a stop string. `goes_on`: whether it is that
    of the prompt, continued.
    """
    answer = Answer()
    writer = TextWriter(tokenizer, tuple(stops), request.prompt_ids if goes_on else ())

    def write(piece: tuple[str, bool]) -> bool:
        text, stopped = piece
        if text:
            answer.text += text
            show(text)
        return stopped

    started = last = time.perf_counter()
    events = cluster.generate(request)
    try:
        for event in events:
            match event:
                case PromptScores(scores=scores):
                    answer.prompt_logprobs += scores
                case Token(token=token, logprobs=logprobs):
                    last = time.perf_counter()
                    if not answer.token_ids:
                        answer.ttft_s = last - started
                    answer.decode_s = last - started - answer.ttft_s
                    answer.token_ids.append(token)
                    answer.logprobs.append(list(logprobs))
                    if write(writer.push(token)):
                        answer.finish_reason = "stop"
                        return answer
                case Finished(reason=reason, tokens=tokens, steps=steps):
                    answer.finish_reason = reason
                    answer.tokens_per_step = tokens / steps if steps else None
    finally:
        events.close()  # cancels what still runs
    if write(writer.finish()):
        answer.finish_reason = "stop"
    return answer
