"""Runs a cluster for one command, and collects its answers as text. No torch."""

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tpiedge.clock import MonotonicClock
from tpiedge.errors import InternalError, PeerError, TpiedgeError, UserError
from tpiedge.launch.bootstrap import NodeBootstrap, Timing, control_name, node_of, to_line
from tpiedge.launch.child import Child, Place
from tpiedge.launch.slot import NODE_MODULE, ForkServer, node_environment
from tpiedge.local.layout import Layout
from tpiedge.local.prepare import PreparedModel
from tpiedge.master.assignments import Assignment, Assignments, Served
from tpiedge.master.epoch import Epoch, EpochEvent
from tpiedge.model.output import OutputForm, OutputParser, OutputText
from tpiedge.model.tokenizer import TextWriter, Tokenizer
from tpiedge.planner.solve import Plan
from tpiedge.progress import ByteProgress, ProgressCallback
from tpiedge.transport.endpoint import CONTROL, EndpointClosed, LinkReset, MalformedMessage
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub
from tpiedge.wire import control
from tpiedge.wire.fields import Message
from tpiedge.wire.requests import GenerationRequest

_EPOCH = 1
_PLAIN = OutputForm()


class LocalCluster:
    """Nodes that start and end together. Make all calls in one thread. `assignments`, `traces` (trace files) and
    `places` (of nodes) are in rank order. Without `places`, all nodes run on this computer."""

    def __init__(
        self,
        served: Served,
        assignments: tuple[Assignment, ...],
        timing: Timing | None = None,
        traces: tuple[Path, ...] = (),
        places: tuple[Place, ...] = (),
    ) -> None:
        self._pack = str(served.pack)
        self._assignments = assignments
        self._timing = timing or Timing()
        self._traces = traces
        self._places = places or (Place(),) * len(assignments)
        self._loaded = {rank: (0, one.weight_bytes) for rank, one in enumerate(assignments)}
        self._clock = MonotonicClock()
        self._keys = CurveKeys.generate()
        self._node_keys = [CurveKeys.generate() for _ in assignments]
        self._children: list[Child] = []
        self._server: ForkServer | None = None
        self._broken = False
        self.routing: control.Ready | None = None  # Rank 0's Ready, which names the collectives
        self._hub = ZmqHub(
            address=f"tcp://{self._places[0].host}:*",
            keys=self._keys,
            name="master",
            allowed={keys.public: control_name(rank, _EPOCH) for rank, keys in enumerate(self._node_keys)},
            plane=CONTROL,
        )
        self._events: queue.Queue[EpochEvent] = queue.Queue()  # messages of nodes, or the error that ends all
        public_keys = {rank: keys.public for rank, keys in enumerate(self._node_keys)}
        self._epoch = Epoch(
            _EPOCH,
            self._clock,
            len(assignments),
            self._timing,
            partial(served.assign, _EPOCH, Assignments(assignments), keys=public_keys, snapshot=None),
            self._post,
            self._events.put,
        )
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="controller", daemon=True)

    def start(self, on_loading: ProgressCallback = lambda _done, _total: None) -> None:
        """Waits until all nodes have loaded. Raises PeerLost, UserError or ResourceError."""
        try:
            for rank in range(len(self._assignments)):
                self._children.append(self._spawn(rank))
            self._thread.start()
            self._await_ready(on_loading)
        except BaseException:
            self._broken = True  # a node that still imports does not hear Shutdown
            self.close()
            raise

    def generate(self, request: GenerationRequest) -> Generator[control.AnswerPart | control.Finished]:
        """Yields the request's events up to Finished. Blocks. Closing the generator cancels the request. Raises
        UserError, PeerError."""
        self._post(control.Generate(_EPOCH, request), 0)
        ended = False
        try:
            while not ended:
                message = self._next_event()
                match message:
                    case control.Failed(request=request.id):
                        ended = True
                        raise UserError(message.message)
                    case (
                        control.Token() | control.PromptScores() | control.Embedding() | control.Finished()
                    ) if message.request == request.id:
                        ended = isinstance(message, control.Finished)
                        yield message
        finally:
            if not ended:
                self._post(control.Cancel(_EPOCH, request.id), 0)

    def stats(self) -> list[control.Stats]:
        """Returns all nodes' counters. Blocks. Raises PeerError after ten seconds."""
        for rank in range(len(self._children)):
            self._post(control.AskStats(_EPOCH), rank)
        answers: dict[int, control.Stats] = {}
        deadline = self._clock.now() + 10.0
        while len(answers) < len(self._children):
            message = self._next_event(deadline)
            if isinstance(message, control.Stats):
                answers[message.rank] = message
        return [answers[rank] for rank in sorted(answers)]

    def close(self) -> None:
        """Ends all nodes; kills nodes that still run after 3 s. Blocks. Idempotent."""
        if self._thread.is_alive():
            for rank in range(len(self._children)):
                self._post(control.Shutdown(_EPOCH), rank)
            deadline = time.monotonic() + (0.2 if self._broken else 3.0)
            while time.monotonic() < deadline and any(child.exit_cause() is None for child in self._children):
                time.sleep(0.01)
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        for child in self._children:
            child.stop(time.monotonic())
        if self._server is not None:
            self._server.stop(time.monotonic())
        self._hub.close()

    def _await_ready(self, on_loading: ProgressCallback) -> None:
        missing = set(range(len(self._assignments)))
        while missing:
            match message := self._next_event():
                case control.Loading(rank=rank, done_bytes=done, total_bytes=total):
                    self._loaded[rank] = (done, total)
                case control.Ready(rank=rank, weight_bytes=total):
                    self._loaded[rank] = (total, total)
                    missing.discard(rank)
                    if rank == 0:
                        self.routing = message
            parts = self._loaded.values()
            on_loading(sum(done for done, _ in parts), sum(total for _, total in parts))

    def _next_event(self, deadline: float | None = None) -> Message:
        while True:
            try:
                event = self._events.get(timeout=0.1)
            except queue.Empty:
                if not self._thread.is_alive():
                    raise InternalError("the cluster's control thread has ended") from None
                if deadline is not None and self._clock.now() > deadline:
                    raise PeerError("the nodes did not answer in time") from None
                continue
            if isinstance(event, TpiedgeError):
                self._broken = True
                raise event
            return event

    def _spawn(self, rank: int) -> Child:
        place, threads = self._places[rank], self._assignments[rank].threads
        bootstrap = NodeBootstrap(
            rank,
            _EPOCH,
            self._hub.address,
            self._keys.public,
            self._node_keys[rank],
            self._timing,
            f"tcp://{place.host}:*",
            pack=self._pack,
            trace=str(self._traces[rank]) if self._traces else "",
        )
        if place.prefix:
            return Child(NODE_MODULE, to_line(bootstrap), node_environment(threads), prefix=place.prefix)
        if self._server is None:
            self._server = ForkServer(threads)
        return self._server.start_node(bootstrap)

    def _post(self, message: Message, rank: int) -> None:
        self._hub.post(message, to=control_name(rank, _EPOCH))

    def _keep_up(self) -> None:
        due = self._clock.now()
        while not self._closing.is_set():
            try:
                # After a delay heartbeats are queued: take them all before looking for silence.
                while (envelope := self._hub.recv(max(0.0, due - self._clock.now()))) is not None:
                    self._epoch.handle(_rank(envelope.sender), envelope.message)
                due = self._clock.now() + self._timing.heartbeat_s
                for rank, child in enumerate(self._children):
                    if (cause := child.exit_cause()) is not None and not self._closing.is_set():
                        self._epoch.ended(rank, cause)
                self._epoch.tick()
            except (MalformedMessage, LinkReset) as error:
                self._epoch.mark_lost(_rank(error.peer), str(error))
            except EndpointClosed:
                return
            except Exception as error:
                words = f"the control thread failed: {type(error).__name__}: {error}"
                self._events.put(error if isinstance(error, TpiedgeError) else InternalError(words))
                return


def _rank(peer: str) -> int:
    rank, _ = node_of(peer)
    if rank is None:
        raise InternalError(f"the hub let in {peer}, which is no node")
    return rank


@dataclass
class Answer:
    """`ttft_s` is the time to the first token, `decode_s` from the first to the last token. `tokens_per_step` is None
    after a stop string."""

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
    speech: OutputForm = _PLAIN,
) -> Answer:
    """Runs the request. Blocks. Raises what LocalCluster.generate raises. `goes_on`: the answer continues the prompt's
    text. The answer's text has no reasoning of the form `speech`, which only `show` gets."""
    answer = Answer()
    writer = TextWriter(tokenizer, tuple(stops), request.prompt_ids if goes_on else (), speech.marks)
    parser, reasoned = OutputParser(speech), False

    def write(piece: tuple[str, bool], last: str | None = None) -> bool:
        nonlocal reasoned
        text, stopped = piece
        for part in parser.feed(text, "stop" if stopped else last):
            assert isinstance(part, OutputText), part  # without tools there are no calls
            show(f"\n\n{part.text}" if reasoned and not part.reasoning else part.text)
            reasoned = part.reasoning
            answer.text += "" if part.reasoning else part.text
        return stopped

    started = last = time.perf_counter()
    events = cluster.generate(request)
    try:
        for event in events:
            match event:
                case control.PromptScores(scores=scores):
                    answer.prompt_logprobs += scores
                case control.Token(token=token, logprobs=logprobs):
                    last = time.perf_counter()
                    if not answer.token_ids:
                        answer.ttft_s = last - started
                    answer.decode_s = last - started - answer.ttft_s
                    answer.token_ids.append(token)
                    answer.logprobs.append(list(logprobs))
                    if write(writer.push(token)):
                        answer.finish_reason = "stop"
                        return answer
                case control.Finished(reason=reason, tokens=tokens, steps=steps):
                    answer.finish_reason = reason
                    answer.tokens_per_step = tokens / steps if steps else None
    finally:
        events.close()  # cancels a request that still runs
    if write(writer.finish(), answer.finish_reason or "stop"):
        answer.finish_reason = "stop"
    return answer


@contextmanager
def launch(
    model: PreparedModel,
    layout: Layout,
    plan: Plan,
    capacity_tokens: int,
    traces: tuple[Path, ...] = (),
    places: tuple[Place, ...] = (),
) -> Iterator[LocalCluster]:
    """Runs a cluster during the block. Raises what LocalCluster.start raises."""
    there = layout.testbed
    with nullcontext(places) if places or there is None else there.places() as places:
        served = Served(
            model.pack.path.absolute(),
            "",
            model.compute,
            capacity_tokens=capacity_tokens,
            context_tokens=capacity_tokens,
            speculate=layout.speculate,
            collective=layout.collective,
            wire=layout.wire,
            kv=model.kv,
            grids=model.grids,
        )
        assignments = tuple(
            Assignment("", share, layout.threads_per_node, need.weight_bytes, "", need.weights)
            for share, need in zip(plan.shares, plan.needs, strict=True)
        )
        progress = ByteProgress("loading weights")
        cluster = LocalCluster(served, assignments, None if there is None else there.timing, traces, places)
        try:
            cluster.start(progress)
        finally:
            progress.finish(0)
        with closing(cluster):
            yield cluster


def plan_json(
    model: PreparedModel, layout: Layout, plan: Plan, capacity_tokens: int, routing: control.Ready | None
) -> dict[str, object]:
    return {
        **model.described(),
        "collective": (routing.collective if routing else "") or "none",
        "bulk_collective": (routing.bulk_collective if routing else "") or "none",
        "collective_why": routing.why if routing else "",
        "wire": layout.wire,
        "context": capacity_tokens,
        "threads": layout.threads_per_node,
        "shares": [
            {
                **{axis: [units.start, units.stop] for axis, units in share.axes.items()},
                "weight_bytes": need.weight_bytes,
                "kv_bytes": need.kv_bytes,
                "predicted_bytes": need.total_bytes,
            }
            for share, need in zip(plan.shares, plan.needs, strict=True)
        ],
    }
