"""A cluster that answers by a script, for tests of the HTTP API and of its clients."""

import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace

from tpiedge.errors import DiskFull, UnknownWorker, UserError
from tpiedge.kv.page_folder import PageUsage
from tpiedge.local.served_models import ServedModel, UnknownModel
from tpiedge.local.service import MachinePages, Service
from tpiedge.master.counters import StepTimeline
from tpiedge.master.history import ClusterEvent
from tpiedge.master.journal import AnswerEvent, Paused, RequestLine, Resubmitted, Resumed
from tpiedge.master.loss_plans import Forecast
from tpiedge.master.reconciler import CannotDrain, NotServing
from tpiedge.master.request_queue import Dismissed, QueueFull
from tpiedge.master.request_times import Reading
from tpiedge.master.status import ClusterStatus, NodeStatus
from tpiedge.model.template import ChatTemplate
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.control import AnswerPart, Embedding, Finished, Token, WorkerLink
from tpiedge.wire.requests import GenerationRequest, Sampling

PACK = "pack-1"
"""The id of the first model's weights."""
WIDTH = 4
"""Numbers of an embedding."""

_LIMIT_S = 30.0


def token(request: str, index: int, token_id: int, logprobs: tuple[tuple[int, float], ...] = ()) -> Token:
    return Token(epoch=1, request=request, index=index, token=token_id, logprobs=logprobs)


def finished(
    request: GenerationRequest,
    tokens: int,
    reason: str = "length",
    *,
    cached: int = 0,
    steps: int | None = None,
) -> Finished:
    """Makes a Finished with a step for each token unless told otherwise."""
    found = {"stop": "stop", "length": "length", "cancel": "cancel"}[reason]
    taken = tokens if steps is None else steps
    return Finished(1, request.id, found, len(request.prompt_ids), tokens, cached, taken)  # type: ignore[arg-type]


class FakeGeneration:
    def __init__(
        self, request: GenerationRequest, count: int = 0, *, has_reader: bool = True, client: str = ""
    ) -> None:
        self.request = request
        self.client = client
        self.cancelled = threading.Event()
        self.completed = threading.Event()
        self.ended = threading.Event()
        self.has_reader = has_reader
        self._items: queue.Queue[AnswerEvent | BaseException] = queue.Queue()
        self._count = count

    @property
    def said(self) -> int:
        return self._count

    def say(self, *token_ids: int) -> None:
        for token_id in token_ids:
            scores = tuple((token_id + i, -0.5 - i) for i in range(self.request.sampling.logprobs))
            self._items.put(token(self.request.id, self._count, token_id, scores))
            self._count += 1

    def tell(self, event: AnswerEvent) -> None:
        self._items.put(event)

    def finish(self, reason: str = "length", *, cached: int = 0, steps: int | None = None) -> None:
        self._items.put(finished(self.request, self._count, reason, cached=cached, steps=steps))

    def embed(self, *values: float) -> None:
        self._items.put(Embedding(1, self.request.id, values))

    def pause(self, why: str) -> None:
        self.tell(Paused(why))

    def take_up(self) -> None:
        self.tell(Resubmitted())

    def resume(self, paused_s: float) -> None:
        self.tell(Resumed(paused_s))

    def fail(self, error: BaseException) -> None:
        self._items.put(error)

    def events(self) -> Iterator[AnswerEvent]:
        try:
            while True:
                item = self._items.get(timeout=_LIMIT_S)
                if isinstance(item, BaseException):
                    raise item
                yield item
                if isinstance(item, Finished):
                    return
        finally:
            self.ended.set()

    def set_has_reader(self, has_reader: bool) -> None:
        self.has_reader = has_reader

    def cancel(self) -> None:
        self._stop(self.cancelled)

    def complete(self) -> None:
        self._stop(self.completed)

    def _stop(self, how: threading.Event) -> None:
        if not how.is_set():
            how.set()
            self.finish("cancel")


class FakeService(Service):
    """`script` gets every accepted generation in the thread that submits it. More than `places` are refused."""

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        template: ChatTemplate | None = None,
        *,
        script: Callable[[FakeGeneration], None] = lambda _generation: None,
        places: int = 4,
        vocab_size: int = 100,
        max_sequence: int = 512,
        eos_ids: tuple[int, ...] = (2,),
        nodes: Sequence[NodeStatus] = (),
    ) -> None:
        self.usual_sampling = Sampling(temperature=0.7, top_k=40, top_p=0.9)
        self.tokenizer = tokenizer
        self.template = template
        self.vocab_size = vocab_size
        self.max_sequence = max_sequence
        self.eos_ids = eos_ids
        self.script = script
        self.unavailable = ""
        self.failed = ""
        self.generations: queue.Queue[FakeGeneration] = queue.Queue()
        self.retry_after_s = 2.0
        self.approved: list[str] = []
        self.revoked: list[str] = []
        self.no_room = ""  # for another member
        #: Why no worker can be drained; "" where each can. Whether one that is has no part after the next look.
        self.needed = ""
        self.settles = True
        self.cleared = False  # whether page files were to be deleted
        #: What `request_lines` gives beside the requests that run, and `events`; ids that were dismissed.
        self.lines: tuple[RequestLine, ...] = ()
        self.told: tuple[ClusterEvent, ...] = ()
        self.dismissed: list[str] = []
        self.links: tuple[WorkerLink, ...] = ()  # those between workers
        self.recorded: StepTimeline | None = None  # what `timeline` gives
        self.watched = False  # whether somebody wanted one
        self.reading: Reading | None = None  # how far the prompts of requests are read
        self._places = places
        self._nodes = tuple(nodes)
        self._running: list[FakeGeneration] = []
        self.most_postponed = 1000
        self._postponed = Counter[str]()  # by client
        self._lock = threading.Lock()
        self.called = "babbler"
        self.others: list[ServedModel] = []  # models that are served in turns with the first one
        self.used: list[tuple[str, object]] = []  # what `use` and `load` were told
        self.kept_s: float | None = None
        self.asleep = False
        self.next_pack = ""
        self.also_called: tuple[str, ...] = ()
        self.path: str | None = None
        self.pooling = "mean"

    def model(self, name: str = "") -> ServedModel:
        found = [
            one
            for one in self.offered()
            if one.is_called(name) or one.is_called(name.removesuffix(":latest"))
        ]
        if name and not found:
            raise UnknownModel(f"the model {name[:100]!r} is not served here; {self.called!r} is")
        return found[0] if name else self.offered()[0]

    def described(self, name: str) -> ServedModel:
        return self.model(name)

    def packed(self, pack: str) -> ServedModel:
        return next((one for one in self.offered() if one.digest == pack), self.model())

    def offered(self) -> list[ServedModel]:
        first = ServedModel(
            self.called,
            self.max_sequence,
            int(time.time()),
            self.also_called,
            WIDTH,
            digest=PACK,
            path=self.path,
            pooling=self.pooling,
            eos_ids=self.eos_ids,
            vocab_size=self.vocab_size,
            usual_sampling=self.usual_sampling,
            tokenizer=self.tokenizer,
            template=self.template,
        )
        return [first, *self.others]

    def use(self, name: str, *, now: bool) -> ServedModel:
        self.used.append((self.model(name).name, now))
        return self.model(name)

    def load(self, pack: str, keep_s: float | None) -> None:
        self.used.append((self.packed(pack).name, keep_s))

    def keep_weights(self, seconds: float) -> None:
        self.kept_s = seconds

    def status(self) -> ClusterStatus:
        ready = not (self.unavailable or self.failed)
        queued = [line for line in self.lines if line.state == "queued"]
        running = len(self._running) + len(self.lines) - len(queued)
        waiting = self._postponed.total() + len(queued)
        found = ClusterStatus(
            ready,
            self.unavailable,
            self._nodes,
            waiting,
            running,
            failed=self.failed,
            links=self.links,
            asleep=self.asleep,
            kept_s=math.inf if self.kept_s is None else self.kept_s,
            next_pack=self.next_pack,
        )
        draining = [node.name for node in self._nodes if node.state == "draining"]
        # Nothing is written in vain: a test may give other nodes at that moment.
        if self.settles and draining:
            self._set_state("drained", *draining)
        return found

    def observe(self, *, timeline: bool = False) -> ClusterStatus:
        self.watched |= timeline
        return self.status()

    def timeline(self) -> StepTimeline | None:
        return self.recorded

    def request_lines(self) -> tuple[RequestLine, ...]:
        with self._lock:
            running = [one for one in self._running if not one.ended.is_set()]
        return self.lines + tuple(
            RequestLine(
                one.request.id, "answering", 2.0, len(one.request.prompt_ids), one.said,
                one.request.max_tokens, 1.5, "", 0.0, one.has_reader, self.reading, one.client,
            )
            for one in running
        )  # fmt: skip

    def events(self) -> tuple[ClusterEvent, ...]:
        return self.told

    def dismiss(self, request: str) -> bool:
        with self._lock:
            found = [one for one in self._running if one.request.id == request and not one.ended.is_set()]
        for one in found:
            self.dismissed.append(request)
            one.fail(Dismissed())
        return bool(found)

    def submit(
        self, request: GenerationRequest, client: str = "", *, has_reader: bool = True
    ) -> FakeGeneration:
        with self._lock:
            self._running = [running for running in self._running if not running.ended.is_set()]
            if self.unavailable:
                raise NotServing(self.unavailable)
            if len(self._running) >= self._places:
                raise QueueFull("the queue is full", self.retry_after_s)
            generation = FakeGeneration(request, has_reader=has_reader, client=client)
            self._running.append(generation)
        self.script(generation)
        self.generations.put(generation)
        return generation

    def postpone(self, count: int, client: str) -> None:
        with self._lock:
            if self._postponed[client] + count > self.most_postponed:
                raise QueueFull("too many are postponed", self.retry_after_s)
            self._postponed[client] += count

    def resume(self, request: GenerationRequest, said: Sequence[AnswerPart]) -> FakeGeneration:
        count = sum(isinstance(part, Token) for part in said)
        generation = FakeGeneration(request, count, has_reader=False)
        self.script(generation)
        self.generations.put(generation)
        return generation

    def pending(self) -> list[dict[str, str]]:
        return [{"name": "attic", "address": "192.0.2.7"}]

    def members(self) -> dict[str, list[dict[str, str]]]:
        here = [{"name": node.name, "host": node.host} for node in self._nodes if node.host]
        here.append({"name": "w-89ab", "host": "cellar"})
        return {"members": here, "revoked": [{"name": "w-cdef", "host": "thief"}]}

    def approve(self, code: str) -> str:
        if code != "K7Q2":
            raise UserError(f"no worker waits with the code {code[:20]!r}")
        if self.no_room:
            raise DiskFull(self.no_room)
        self.approved.append(code)
        return "attic"

    def revoke(self, name: str) -> str:
        self.revoked.append(self._called(name))
        return self.revoked[-1]

    def what_if(self, without: str) -> Forecast:
        if without:
            self._called(without)
        return Forecast(0.01, None if without and self.needed else 0.0125, 2, True, self.needed)

    def page_files(self, *, clear: bool = False) -> list[MachinePages]:
        self.cleared |= clear
        found = [MachinePages("master", "", PageUsage(2, 8192), PageUsage(), 10**9, 0)]
        for node in self._nodes:
            why = "it is away" if node.state == "lost" else ""
            found.append(
                MachinePages(node.name, node.host, PageUsage(1, 4096), PageUsage(1, 512), 0, 4096, why)
            )
        return found

    def drain(self, name: str) -> Future[str]:
        found, ordered = self._called(name), Future[str]()
        if self.needed:
            ordered.set_exception(CannotDrain(self.needed))
        else:
            self._set_state("draining", found)
            ordered.set_result(found)
        return ordered

    def undrain(self, name: str) -> str:
        found = self._called(name)
        self._set_state("spare", found)
        return found

    def clear(self, name: str) -> str:
        found = self._called(name)
        self._set_state("spare", found)
        return found

    def _set_state(self, state: str, *names: str) -> None:
        self._nodes = tuple(replace(one, state=state) if one.name in names else one for one in self._nodes)

    def _called(self, name: str) -> str:
        found = [node.name for node in self._nodes if name in (node.name, node.host)]
        if not found:
            raise UnknownWorker(f"there is no node {name[:40]!r}")
        return found[0]
