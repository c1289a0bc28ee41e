"""Runs the steps: `Leader` on rank 0, `follow` on the other ranks, which see no token ids."""

import functools
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

import torch
from torch import Tensor

from tpiedge.collectives.communicator import Route
from tpiedge.engine.batcher import Batch, Batcher
from tpiedge.engine.constraints import (
    AnswerConstraint,
    GrammarPreparations,
    MaskWaits,
    end_constraint,
    failed,
)
from tpiedge.engine.drawing import Drawing, LiveRequest, MeanState, refusing
from tpiedge.engine.forward import Engine
from tpiedge.engine.grammars import Grammars
from tpiedge.engine.meter import StepRecorder
from tpiedge.engine.page_moves import PageMoves
from tpiedge.engine.paging import Disk
from tpiedge.engine.sampler import Sampler
from tpiedge.engine.step_cost import StepCost
from tpiedge.engine.steps import StepCancelled, StepLimits
from tpiedge.errors import UserError
from tpiedge.kv.pages import NameKeys, PagePool
from tpiedge.units import counted
from tpiedge.wire.control import (
    AnswerPart,
    Compiled,
    Failed,
    Finished,
    Halt,
    Halted,
    PageKeys,
    StepSpans,
)
from tpiedge.wire.data import PageOrders, StepPlan
from tpiedge.wire.fields import MAX_BLOB, MAX_NAMED_PAGES, NAME_BYTES
from tpiedge.wire.requests import GenerationRequest

#: Requests of the previous epoch are resubmitted at once unless cancelled. Parked pages beyond the usual space are
#: deleted after this time.
_CLAIM_S: Final = 10.0
#: How often nodes are asked about moves of pages: while a sequence waits for one and no step runs, and otherwise.
ASK_S: Final = 0.005
#: A transfer is planned to take at most two minutes.
_HALT_S: Final = 150.0
_ASK_SELDOM_S: Final = 0.1


@dataclass(frozen=True)
class Serving:
    """Settings of an epoch."""

    epoch: int
    #: The most positions of a sequence.
    context_tokens: int
    #: How many sequences run at once.
    sequences: int = 1
    #: The most drafts of a sequence in a step.
    speculate: int = 0
    #: How many pages give back their memory together (0: never).
    grain_pages: int = 0
    limits: StepLimits | None = None
    route: Route = field(default_factory=Route)
    #: None: pages of the KV cache stay in memory.
    pages: PageKeys | None = None


class Leader:
    """Rank 0's engine. It owns sequences, their pages, the embedding, the head and the samplers."""

    def __init__(
        self,
        engine: Engine,
        serving: Serving,
        told: Callable[[StepSpans], None],
        grammars: Grammars,
        moves: PageMoves,
    ) -> None:
        cache = engine.cache
        self._engine, self._config, self._communicator = engine, engine.config, engine.communicator
        self._epoch = serving.epoch
        self._limits = serving.limits or StepLimits.of(engine.config.hidden_size, engine.config.input_columns)
        self._serving = serving
        self._preparations = GrammarPreparations(serving.epoch, grammars)
        self._recorder = StepRecorder(0, engine.meter, engine.weights, told)
        self._recording_wanted = False
        #: Prompts in the step under way: (request, first position, how many).
        self._read: tuple[tuple[str, int, int], ...] = ()
        self._moves, pages = moves, serving.pages
        keys = NameKeys(
            *((pages.shared, pages.own) if pages else (secrets.token_bytes(32) for _ in range(2)))
        )
        disk = Disk(moves.__contains__, pages.keep, pages.park) if pages and moves.stored else None
        self._pool = PagePool(cache.pages, cache.page_positions, keys, serving.grain_pages)
        step_tokens, short_tokens = self._limits.step_tokens, engine.config.short_tokens
        self._batcher = Batcher(
            self._pool, step_tokens, serving.sequences, serving.speculate, short_tokens, disk
        )
        self._batcher.cost = StepCost(functools.cache(engine.config.touched_columns))
        self._asked_at = 0.0  # when nodes were asked about moves of pages
        self._usual_at = math.inf  # when parked pages may take the usual space only
        self.resume()
        self._waits = MaskWaits()
        self._drawing = Drawing(serving.epoch, engine, self._batcher, self._waits)
        self._live: dict[str, LiveRequest] = {}
        self._cancels: dict[str, None] = {}
        self._step = 0
        #: The lone request of the step under way, and the step.
        self._lone = "", 0

    @property
    def idle(self) -> bool:
        return self._batcher.idle

    @property
    def preparing(self) -> bool:
        """Whether a request waits for its grammar, or for pages from disk."""
        return bool(self._awaited) or self._batcher.awaited

    @property
    def _awaited(self) -> Sequence[AnswerConstraint]:
        waiting = (one.constraint for one in self._live.values() if one.sequence.undrawn)
        return [*(one for one in waiting if one is not None), *self._preparations.unready]

    @property
    def pages(self) -> tuple[int, int]:
        return self._pool.held, self._pool.pages

    @property
    def reading(self) -> tuple[tuple[str, int], ...]:
        """Returns (request, computed prompt positions) for each prompt of this step. Thread-safe."""
        blocks = 2 * self._config.num_layers
        meter = self._engine.meter
        done = meter.block if meter.step == self._step else 0
        return tuple((name, start + count * done // blocks) for name, start, count in self._read)

    def record_next(self) -> None:
        """Makes all nodes record the next step that computes no prompt. Thread-safe."""
        self._recording_wanted = True

    def compile(self, request: GenerationRequest, group: str) -> None:
        """Starts to compile a future request's grammar. Raises UserError."""
        self._preparations.add(request, group)

    def submit(self, request: GenerationRequest, emit: Callable[[AnswerPart], None]) -> None:
        """Accepts a request. `emit` gets the parts of the answer. Raises UserError."""
        self._check(request)
        sampler = self._sampler(request)
        pooled = None if request.pooling == "none" else MeanState(self._config.hidden_size)
        constraint = self._preparations.claim(request)
        sequence = self._batcher.add(request)
        live = LiveRequest(sequence, sampler, emit, pooled, constraint=constraint)
        if constraint is not None:
            sequence.forced = live.forced
        self._live[request.id] = live

    def halt(self, order: Halt) -> Halted:
        """Parks the running sequences' pages, and gathers the heads that `order` names. Raises PeerLost,
        ProtocolError."""
        self._batcher.park()
        self._tell(PageOrders(self._epoch, self._next_step(), room="halt"))
        self._give_orders()
        deadline = time.monotonic() + _HALT_S
        while self._batcher.outstanding and time.monotonic() < deadline:
            self._moves.wait(ASK_S)
            self._ask()
            self._give_orders()  # a message has a limit
        names = b"".join(self._batcher.parked_names())[: MAX_BLOB // NAME_BYTES * NAME_BYTES]
        most = MAX_NAMED_PAGES * NAME_BYTES
        for start in range(0, len(names), most) if order.gathered else ():
            some = names[start : start + most]
            self._tell(PageOrders(self._epoch, self._next_step(), gathered=order.gathered, names=some))
        why = "" if names else "no request had computed pages, or a machine could not write them"
        return Halted(self._epoch, 0, order.following, names, why)

    def resume(self) -> None:
        """Goes on after a change of plan, or because none comes after `halt`."""
        if self._serving.pages is not None:
            self._usual_at = time.monotonic() + _CLAIM_S

    def cancel(self, request: str) -> None:
        """Ends the request after the step; a step of this request alone is cut short. Thread-safe."""
        self._cancels[request] = None
        lone, step = self._lone
        if lone == request:
            self._communicator.request_cancel(step)

    def step(self) -> list[Finished | Failed | Compiled]:
        """Computes one step. Returns messages about ended or failed requests and compiled grammars. Raises PeerLost,
        ProtocolError."""
        self._drawing.draw_deferred(self._live.values())
        ended = [*self._preparations.news(), *self._take_cancels()]
        self._look_at_moves()
        self._waits.start_step(lone=len(self._live) == 1)
        able = [one for one in self._live.values() if one.sequence.decodes and not one.sequence.undrawn]
        guessed = [one for one in able if one.sequence.lookup is not None]
        self._waits.until([(one.constraint, one.heard) for one in guessed if one.constraint is not None])
        batch = self._batcher.plan()
        self._give_orders()
        if batch is None:
            return ended
        begun = time.perf_counter()
        for piece in batch.pieces:
            live = self._live[piece.sequence.request.id]
            if live.constraint is not None:
                with refusing(live):
                    live.constraint.guess(piece.ids[len(piece.ids) - piece.drafted :])
        try:
            x_TH = self._run(batch)
        except StepCancelled:
            self._recorder.drop()
            return [*ended, *self._take_cancels()]
        self._waits.computed(time.perf_counter() - begun)
        self._drawing.draw(batch, x_TH, self._live)
        self._read = ()
        self._recorder.end()
        self._batcher.cost.measured(len(x_TH), time.perf_counter() - begun)
        ended += self._take_ended()
        # Before the next request takes the memory of idle pages.
        self._look_at_moves()
        self._give_orders()
        return ended

    def _look_at_moves(self) -> None:
        now, waits = time.monotonic(), self._batcher.awaited
        if self._batcher.outstanding and (waits or now - self._asked_at >= _ASK_SELDOM_S):
            self._ask()
        if now > self._usual_at and not waits:
            self._usual_at = math.inf
            self._tell(PageOrders(self._epoch, self._next_step(), room="usual"))

    def _ask(self) -> None:
        """Asks every node how far its moves of pages are."""
        self._asked_at = time.monotonic()
        asked = PageOrders(self._epoch, self._next_step(), asked=self._batcher.outstanding)
        for number, good, seconds in self._tell(asked):
            if good < 0:
                self._batcher.waited(number, seconds)
            else:
                self._batcher.answered(number, good, seconds)

    def _give_orders(self) -> None:
        while orders := self._batcher.take_orders():
            self._tell(PageOrders(self._epoch, self._next_step(), orders))
        while used := self._batcher.take_used():
            self._tell(PageOrders(self._epoch, self._next_step(), used=used))

    def _tell(self, message: PageOrders) -> Sequence[tuple[int, int, float]]:
        self._communicator.announce(message)
        return self._moves.handle(message)

    def _next_step(self) -> int:
        self._step += 1
        return self._step

    def _sampler(self, request: GenerationRequest) -> Sampler:
        return Sampler(request.sampling, request.prompt_ids, self._config.vocab_size, request.answer_ids)

    def _check(self, request: GenerationRequest) -> None:
        if not request.prompt_ids:
            raise UserError("the prompt is empty: give at least one token")
        beyond = max(*request.prompt_ids, *request.answer_ids, 0)
        if beyond >= self._config.vocab_size:
            raise UserError(f"token id {beyond} is outside the vocabulary of {self._config.vocab_size}")
        needed = len(request.prompt_ids) + max(request.max_tokens - 1, 0)
        context = self._serving.context_tokens
        if needed > context:
            raise UserError(
                f"{counted(len(request.prompt_ids), 'prompt token')} and {counted(request.max_tokens, 'new one')} need "
                f"{counted(needed, 'position')}, "
                f"the KV cache has {context}: shorten the prompt or raise --context"
            )
        if request.id in self._live:
            raise UserError(f"request {request.id} is running already")

    def _take_cancels(self) -> list[Finished | Failed]:
        for request in list(self._cancels):
            if request in self._live:
                self._live[request].reason = "cancel"
        dropped = self._preparations.drop(list(self._cancels))
        for one in dropped:
            self._cancels.pop(one.request, None)
        # Only the latest cancels of unknown requests are kept: the request may be the next command.
        for request in list(self._cancels)[:-64]:
            del self._cancels[request]
        return [*dropped, *self._take_ended()]

    def _take_ended(self) -> list[Finished | Failed]:
        ended = [live for live in self._live.values() if live.reason is not None or live.refused is not None]
        return [self._end(live) for live in ended]

    def _end(self, live: LiveRequest) -> Finished | Failed:
        sequence, name = live.sequence, live.sequence.request.id
        self._batcher.end(sequence)
        spent_s = end_constraint(live.constraint)
        del self._live[name]
        self._cancels.pop(name, None)
        if live.refused is not None:
            return failed(self._epoch, name, live.refused, spent_s)
        return Finished(
            epoch=self._epoch,
            request=name,
            reason=live.reason or "length",
            prompt_tokens=sequence.prompt_tokens,
            tokens=sequence.answer_tokens,
            cached_tokens=sequence.cached,
            steps=sequence.steps,
            processor_s=spent_s,
            brought_tokens=min(sequence.brought, sequence.cached),
        )

    def _run(self, batch: Batch) -> Tensor:
        self._next_step()
        ids, engine, route = batch.ids, self._engine, self._serving.route
        self._read = tuple(
            (piece.sequence.request.id, piece.start, len(piece.ids))
            for piece in batch.pieces
            if not piece.sequence.decodes
        )
        recorded = self._recording_wanted and batch.decode_tokens == len(ids)
        plan = StepPlan(
            epoch=self._epoch,
            step=self._step,
            segments=batch.segments,
            chunk_tokens=self._limits.chunk_of(len(ids), shared=self._communicator.size > 1),
            tokens=len(ids),
            apart_tokens=0 if self._engine.int8 else batch.decode_tokens,
            tables=batch.tables,
            discarded=batch.discarded,
            collective=route.small,
            bulk_collective=route.bulk,
            small_bytes=route.small_bytes,
            wire=route.wire,
            recorded=recorded,
        )
        if recorded:
            self._recording_wanted = False
        engine.meter.block, engine.meter.step = 0, self._step
        self._recorder.start(plan)
        with engine.meter.embedding_span:
            x_TH, inputs_TI = engine.embedding(ids)
        self._lone = batch.lone, self._step
        try:
            with engine.meter.announce_span:
                self._communicator.announce(plan)
                # A cancel that came before the announcement belonged to no step yet.
                if batch.lone in self._cancels:
                    self._communicator.request_cancel(self._step)
            engine.run(x_TH, plan, inputs_TI)
        finally:
            self._lone = "", 0
        return x_TH


def follow(engine: Engine, moves: PageMoves, told: Callable[[StepSpans], None]) -> NoReturn:
    """Runs steps on a rank other than 0. Ends with Cancelled (shutdown), PeerLost or ProtocolError."""
    recorder = StepRecorder(engine.communicator.rank, engine.meter, engine.weights, told)
    while True:
        plan = engine.communicator.next_plan()
        if isinstance(plan, PageOrders):
            moves.handle(plan)
            continue
        x_TH = torch.empty(plan.tokens, engine.config.hidden_size)
        recorder.start(plan)
        try:
            engine.run(x_TH, plan)
        except StepCancelled:
            recorder.drop()
        recorder.end()
