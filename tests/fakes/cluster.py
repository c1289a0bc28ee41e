"""A cluster inside one process: every rank a thread, the links queues, everything else as in real processes."""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest.mock import patch

import torch
from torch import Tensor

from tests.fakes.inprocess import InProcessPeer
from tpiedge.clock import MonotonicClock
from tpiedge.collectives.communicator import Communicator, DeadlineLiveness, Route
from tpiedge.collectives.group import Group
from tpiedge.collectives.peer_channel import node_name
from tpiedge.engine.forward import Engine, kv_cache
from tpiedge.engine.grammars import Grammars, await_any
from tpiedge.engine.meter import Meter
from tpiedge.engine.page_moves import PageDisk, PageMoves
from tpiedge.engine.runner import Leader, Serving, follow
from tpiedge.engine.sampler import Sampler
from tpiedge.engine.steps import StepLimits
from tpiedge.errors import InternalError, TpiedgeError, UserError
from tpiedge.kernels.kv_format import usual_kv
from tpiedge.kernels.linear import Arithmetic, Linear
from tpiedge.kv.store import PageStore
from tpiedge.memory.disk import DiskQueue
from tpiedge.memory.sweep import Placement, Sweep
from tpiedge.memory.weights import NodeWeights
from tpiedge.model.spec import config_of_pack
from tpiedge.pack.grids import grid_exponents
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare
from tpiedge.planner.arithmetic import usual_compute
from tpiedge.transport.endpoint import EndpointClosed
from tpiedge.wire.control import AnswerPart, Failed, Finished, KVSnapshot, PageKeys, StepSpans, Token
from tpiedge.wire.data import PageOrders, StepPlan
from tpiedge.wire.fields import Compute, KVPrecision
from tpiedge.wire.requests import GenerationRequest

_EPOCH = 1
_WAIT_S = 20.0
_DISK_BYTES = 1 << 30


def greedy_request(prompt_ids: Sequence[int], max_tokens: int) -> GenerationRequest:
    return GenerationRequest("test", tuple(prompt_ids), max_tokens, ignore_eos=True)


class SoloLeader(Leader):
    """Rank 0 for one request at a time, without a master."""

    #: Draws the tokens of a request, other than as it asks.
    sampler_of: Callable[[GenerationRequest], Any] | None = None

    def await_grammar(self, limit_s: float) -> None:
        """Waits for a grammar, or for pages from this node's disk."""
        if self._batcher.awaited:
            self._moves.wait(limit_s)
        else:
            await_any(self._awaited, limit_s)

    def generate(
        self, request: GenerationRequest, emit: Callable[[AnswerPart], None], cancelled: Callable[[], bool]
    ) -> Finished:
        """Runs a request, alone, to its end. `cancelled` is asked between steps, and once in each. Raises UserError."""

        def poll() -> None:
            if cancelled():
                self.cancel(request.id)

        announce = self._communicator.announce

        def announced(plan: StepPlan | PageOrders) -> None:
            announce(plan)
            poll()

        self.submit(request, emit)
        with patch.object(self._communicator, "announce", announced):
            while True:
                poll()
                for ended in self.step():
                    if isinstance(ended, Failed):
                        raise UserError(ended.message)
                    if isinstance(ended, Finished):
                        return ended
                if self.idle:
                    self.await_grammar(0.05)

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        sequence = self._batcher.add(GenerationRequest("logits", tuple(token_ids), 0, prompt_scores=True))
        parts: list[Tensor] = []
        try:
            while sequence.remaining and (batch := self._batcher.plan()) is not None:
                parts.append(self._run(batch))
                self._batcher.decided(batch.pieces[0], ())
            return self._drawing.head.logits(torch.cat(parts))
        finally:
            self._batcher.end(sequence)

    def _sampler(self, request: GenerationRequest) -> Sampler:
        found: Sampler = self.sampler_of(request) if self.sampler_of else super()._sampler(request)
        return found


class InProcessCluster:
    def __init__(
        self,
        pack: Path,
        shares: Sequence[NodeShare],
        *,
        compute: Compute | None = None,
        kv: KVPrecision | None = None,
        capacity_tokens: int = 256,
        limits: StepLimits | None = None,
        placement: Callable[[Sweep], Placement] | None = None,
        grain_pages: int = 0,
        route: Route | None = None,
        sequences: int = 1,
        speculate: int = 0,
        context_tokens: int | None = None,
        sampler_of: Callable[[GenerationRequest], Any] | None = None,
        threads: int = 1,
        folders: Sequence[Path] = (),
        pages: PageKeys | None = None,
        snapshot: KVSnapshot | None = None,
        tokenizer: Path | None = None,
        told: Callable[[StepSpans], None] = lambda _: None,
    ) -> None:
        """`placement` of every node's weights (None: pinned); with `grain_pages` they also use what the KV cache leaves
        free. `folders`: of each node's KV pages, with the keys `pages`. `told` gets recorded steps. The others are
        as in `Serving` and `Leader`."""
        self._folders = folders
        self._snapshot = snapshot
        self.disks: list[PageDisk] = []
        self.warnings: list[str] = []  # pages that could not be written
        self._tokenizer = tokenizer
        self._told = told
        self._placement = placement
        self._sampler_of = sampler_of
        self._threads_of_node = threads
        self._sequences = sequences
        self._pack = Pack.open(pack)
        self._config = config_of_pack(self._pack)
        self._shares = shares
        self._compute = compute or usual_compute(self._pack.precision)
        self._serving = Serving(
            _EPOCH,
            context_tokens or capacity_tokens,
            sequences,
            speculate,
            grain_pages,
            limits=limits,
            route=route or Route(),
            pages=pages,
        )
        self._kv = kv or usual_kv(self._compute)
        self._capacity = capacity_tokens
        self._resources = ExitStack()
        self._threads: list[threading.Thread] = []
        self.errors: list[TpiedgeError] = []
        self.weights: list[NodeWeights] = []
        self._queues: list[DiskQueue] = []
        self._page_bytes = 0
        self._meter = Meter()  # rank 0's
        self.endpoints = InProcessPeer.group([node_name(rank) for rank in range(len(shares))])
        self.leader = self._start()

    def generate(self, request: GenerationRequest) -> list[AnswerPart]:
        events: list[AnswerPart] = []
        self.leader.generate(request, events.append, lambda: False)
        return events

    def greedy(self, prompt_ids: Sequence[int], max_tokens: int) -> list[int]:
        events = self.generate(greedy_request(prompt_ids, max_tokens))
        return [event.token for event in events if isinstance(event, Token)]

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Returns [T, vocabulary]."""
        return self.leader.logits(token_ids)

    @property
    def computed(self) -> int:
        return self._meter.tokens

    @property
    def page_bytes(self) -> int:
        return self._page_bytes

    def close(self) -> None:
        for endpoint in self.endpoints[1:]:
            endpoint.close()
        for thread in self._threads:
            thread.join(_WAIT_S)
        self.endpoints[0].close()
        self._resources.close()
        unexpected = [error for error in self.errors if not isinstance(error, EndpointClosed)]
        if unexpected or any(thread.is_alive() for thread in self._threads):
            raise InternalError(f"a follower did not end as it should: {unexpected or 'it is still running'}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> SoloLeader:
        try:
            engines = [self._engine(rank) for rank in range(len(self._shares))]
        except BaseException:
            self._resources.close()
            raise
        moves = [self._moves(engine, rank) for rank, engine in enumerate(engines)]
        for pair in zip(engines[1:], moves[1:], strict=True):
            thread = threading.Thread(target=self._follow, args=pair, name="follower")
            thread.start()
            self._threads.append(thread)
        grammars = Grammars(self._tokenizer or Path("nowhere"), self._config.vocab_size)
        self._resources.callback(grammars.close)
        moves[0].scatter(self._snapshot)
        leader = SoloLeader(engines[0], self._serving, self._told, grammars, moves[0])
        leader.sampler_of = self._sampler_of
        return leader

    def _moves(self, engine: Engine, rank: int) -> PageMoves:
        disk, keys = None, self._serving.pages
        if keys is not None:
            folder = self._folders[rank]
            kept = PageStore(folder / "kept", _DISK_BYTES, keys.kept_seal)
            parked = PageStore(folder / "parked", 2 * _DISK_BYTES, keys.parked_seal, durable=False)
            usual_bytes = _DISK_BYTES if keys.park else 0
            told = self.warnings.append
            disk = PageDisk(self._queues[rank], parked, kept, told, usual_bytes, 2 * _DISK_BYTES)
            self.disks.append(disk)
        return PageMoves(engine, self._shares[rank].along("attention"), disk)

    def _engine(self, rank: int) -> Engine:
        share = self._shares[rank]
        cache = kv_cache(self._config, share, self._kv, self._sequences, self._capacity)
        kv_bytes = cache.reserved_bytes if self._serving.grain_pages else 0
        offset = self._config.norm_offset
        queue = DiskQueue()
        self._queues.append(queue)
        weights = NodeWeights(
            self._pack, share, rank == 0, self._placement, kv_bytes=kv_bytes, norm_offset=offset, disk=queue
        )
        self.weights.append(weights)
        if rank == 0:
            self._page_bytes = cache.page_bytes
        self._resources.callback(weights.close)
        linear = Linear.create(Arithmetic(self._compute), self._threads_of_node)
        self._resources.callback(linear.close)
        meter = Meter() if rank else self._meter
        grids = grid_exponents(self._pack) if self._compute == "int8" else ()
        return Engine(self._config, share, weights, cache, self._communicator(rank), linear, meter, grids)

    def _communicator(self, rank: int) -> Communicator:
        size = len(self._shares)
        liveness = DeadlineLiveness(MonotonicClock(), _WAIT_S)
        if size == 1:
            return Communicator()
        return Group(self.endpoints[rank], liveness, epoch=_EPOCH, rank=rank, size=size, linked=True)

    def _follow(self, engine: Engine, moves: PageMoves) -> None:
        try:
            moves.scatter(self._snapshot)
            follow(engine, moves, self._told)
        except TpiedgeError as error:
            self.errors.append(error)  # closing its spoke ends it with EndpointClosed
