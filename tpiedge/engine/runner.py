"""The loop of a node: rank 0 leads (plan, embed, forward, head, sample), the others follow (plan, forward).

Rank 0's `step` is one sweep over the model for all requests that run: pieces of their prompts, the next rows of their
answers, and guesses of what comes after them. The other nodes never see a token id, only hidden states and positions.
"""

import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, repeat
from typing import Final, Protocol

import torch
from torch import Tensor

from tpiedge.collectives.communicator import Communicator
from tpiedge.collectives.route import Route
from tpiedge.engine.batcher import Batch, Batcher, BatchLimits
from tpiedge.engine.carrying import Carrier, Taken
from tpiedge.engine.forward import ForwardPass
from tpiedge.engine.grammars import AnswerConstraint, Grammars, await_any
from tpiedge.engine.head import Head
from tpiedge.engine.late_constraint import begin_late
from tpiedge.engine.meter import Meter
from tpiedge.engine.overlap import StepCancelled
from tpiedge.engine.pooling import MeanState
from tpiedge.engine.sampler import Sampled, Sampler, TokenMask
from tpiedge.engine.sequence import CarriedSequence, RunningSequence, StepPiece
from tpiedge.engine.step_cost import StepCost
from tpiedge.engine.step_recorder import StepRecorder
from tpiedge.engine.steps import StepLimits
from tpiedge.errors import UserError
from tpiedge.kv.cache import KVCache
from tpiedge.kv.pages import PagePool, root_name
from tpiedge.kv.room import KVRoom
from tpiedge.memory.weights import Weights
from tpiedge.model.config import ModelConfig
from tpiedge.units import counted
from tpiedge.wire.control import (
    AnswerPart,
    Embedding,
    Failed,
    Finished,
    FinishReason,
    Halt,
    PromptScores,
    Token,
)
from tpiedge.wire.data import LeavePages, StepPlan
from tpiedge.wire.limits import MAX_PAGES
from tpiedge.wire.requests import GenerationRequest

__all__ = ["Draws", "Follower", "Leader", "Serving"]

_SCORE_ROWS: Final = 64
_KEY_BYTES: Final = 32
_KEPT_CANCELS: Final = 64
_KEPT_LOGITS_BYTES: Final = 16 << 20
#: The master asks at once for what it asked the epoch before, but for what was cancelled meanwhile.
_CLAIM_S: Final = 10.0
_PREPARING_S: Final = 0.05


class Draws(Protocol):
    """Draws the tokens of one sequence, as `Sampler` does."""

    def sample(self, logits_V: Tensor, allowed: TokenMask | None = None) -> Sampled: ...

    def accept(self, token: int) -> None: ...


@dataclass(frozen=True)
class Serving:
    """How a cluster serves. `context_tokens`: most positions of one sequence; `sequences`: that run at once;
    `speculate`: tokens drafted for one in a step; `grain_pages`: by how many pages memory that none needs goes back,
    because weights can use it, or 0 where they cannot; `facts`: what keys and values depend on beside the tokens."""

    context_tokens: int
    sequences: int = 1
    speculate: int = 0
    grain_pages: int = 0
    facts: tuple[str, ...] = ()


@dataclass(eq=False)
class _Live:
    """A request that has not ended, and what becomes of its tokens. `scored`: the first position whose log probability
    was not told yet. `pooled`: of a request for an embedding. `constraint`: what the answer must keep to, if
    anything."""

    sequence: RunningSequence
    sampler: Draws
    emit: Callable[[AnswerPart], None]
    pooled: MeanState | None = None
    reason: FinishReason | None = None
    scored: int = 1
    constraint: AnswerConstraint | None = None
    #: Why the request is refused, though it was accepted.
    refused: UserError | None = None


class Leader:
    """Rank 0: owns the sequences, their pages, the embedding, the head and the samplers."""

    def __init__(
        self,
        config: ModelConfig,
        epoch: int,
        weights: Weights,
        forward: ForwardPass,
        head: Head,
        cache: KVCache,
        communicator: Communicator,
        meter: Meter,
        limits: StepLimits,
        route: Route,
        serving: Serving,
        recorder: StepRecorder,
        sampler_of: Callable[[GenerationRequest], Draws] | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self._config = config
        self._epoch = epoch
        self._weights = weights
        self._forward = forward
        self._head = head
        self._communicator = communicator
        self._meter = meter
        self._limits = limits
        self._route = route
        self._serving = serving
        self._sampler_of = sampler_of or self._sampler
        self._grammars = grammars
        self._recorder = recorder
        #: Whether the next step of answers alone is to be recorded.
        self._recording_wanted = False
        #: What the step under way computes of prompts: (request, first position, how many).
        self._read: tuple[tuple[str, int, int], ...] = ()
        self._cost = StepCost()
        self._pool = PagePool(
            cache.pages,
            cache.format.page_positions,
            secrets.token_bytes(_KEY_BYTES),
            root_name(b"", *serving.facts),
        )
        self._batcher = Batcher(
            self._pool,
            BatchLimits(limits.step_tokens, serving.sequences, serving.speculate),
            self._cost,
            KVRoom(cache.pages, serving.grain_pages) if serving.grain_pages else None,
            turning=config.rope.depends_on_length,
        )
        self._live: dict[str, _Live] = {}
        self._cancels: dict[str, None] = {}
        self._step = 0
        self._logits_MV = torch.empty(0, config.vocab_size)
        #: Until when pages of an earlier epoch are held for requests that have not come; 0: for none.
        self._adopted_until = 0.0
        #: The request whose step is under way alone, and that step.
        self._lone = "", 0
        self._poll: Callable[[], None] = _nothing

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute."""
        return self._batcher.idle

    @property
    def preparing(self) -> bool:
        """Whether a request waits for its grammar, so that a step may have something to compute soon."""
        return any(live.sequence.held for live in self._live.values())

    @property
    def pages(self) -> tuple[int, int]:
        """How many pages of the KV cache sequences hold, of how many."""
        return self._pool.held, self._pool.pages

    @property
    def reading(self) -> tuple[tuple[str, int], ...]:
        """How many positions are computed of each request whose prompt is a part of the step under way; of this step
        by the blocks that are done. From any thread."""
        blocks = 2 * self._config.num_layers
        done = (
            self._meter.block if self._meter.step == self._step else 0
        )  # in this order: a step begins at block 0
        return tuple((name, start + count * done // blocks) for name, start, count in self._read)

    def record_next(self) -> None:
        """From any thread: have all nodes record the next step in which answers alone are computed."""
        self._recording_wanted = True

    def submit(self, request: GenerationRequest, emit: Callable[[AnswerPart], None]) -> None:
        """Accepts a request; its tokens go to `emit` as soon as they are drawn, but for `answer_ids`, which were told
        before. Raises UserError where it cannot be answered, for example because prompt + max_tokens exceed the
        context."""
        self._check(request)
        sampler = self._sampler_of(request)
        pooled = None if request.pooling == "none" else MeanState(self._config.hidden_size)
        constraint = self._constraint(request)
        sequence = self._batcher.add(request)
        live = _Live(sequence, sampler, emit, pooled, constraint=constraint)
        if constraint is not None:
            sequence.held, sequence.forced = True, partial(_forced, live, constraint)
        self._live[request.id] = live

    def leave(self, halt: Halt) -> tuple[LeavePages, tuple[CarriedSequence, ...]]:
        """In place of a step: every node is told what it is to leave for the next epoch of the requests that run.
        Returns that, and who has which of the pages. Raises PeerLost."""
        pages, sequences = self._batcher.leave(MAX_PAGES)
        self._step += 1
        order = LeavePages(self._epoch, self._step, pages, halt.kept, halt.sent)
        self._communicator.announce(order)
        return order, sequences

    def adopt(self, taken: Taken, *, private: bool) -> None:
        """These requests, whose keys and values are in the first pages, are about to come. Before anything is
        submitted. `private`: as of Carried."""
        self._batcher.adopt(taken.sequences, taken.pages, private=private)
        self._adopted_until = time.monotonic() + _CLAIM_S

    def cancel(self, request: str) -> None:
        """From any thread: the request ends as soon as it costs no other anything, within a step if it is alone in
        it."""
        self._cancels[request] = None
        lone, step = self._lone
        if lone == request:
            self._communicator.request_cancel(step)

    def step(self) -> list[Finished | Failed]:
        """Computes one step, and returns the requests that ended, or were refused after all. Raises PeerLost,
        ProtocolError."""
        self._release_held()
        ended = self._take_cancels()
        if self._adopted_until and time.monotonic() > self._adopted_until:
            self._adopted_until = 0.0
            self._batcher.forget()
        batch = self._batcher.plan()
        if batch is None:
            return ended
        begun = time.perf_counter()
        self._ask_masks(batch)
        try:
            x_TH = self._run(batch)
        except StepCancelled:
            self._recorder.drop()
            return [*ended, *self._take_cancels()]
        self._draw(batch, x_TH)
        self._read = ()
        self._recorder.end()
        self._cost.measured(len(x_TH), time.perf_counter() - begun)
        return [*ended, *self._take_ended()]

    def await_grammar(self, limit_s: float) -> None:
        """Wait until more is known of a grammar for which a request waits, at most that long; not at all where none
        does."""
        held = (live.constraint for live in self._live.values() if live.sequence.held)
        await_any([constraint for constraint in held if constraint is not None], limit_s)

    def generate(
        self,
        request: GenerationRequest,
        emit: Callable[[AnswerPart], None],
        cancelled: Callable[[], bool],
    ) -> Finished:
        """Runs a request, alone, to its end. `cancelled` is asked between steps, and once in each. Raises UserError."""

        def poll() -> None:
            if cancelled():
                self.cancel(request.id)

        self.submit(request, emit)
        self._poll = poll
        try:
            while True:
                poll()
                for ended in self.step():
                    if isinstance(ended, Failed):
                        raise UserError(ended.message)
                    return ended
                if self.idle:
                    self.await_grammar(_PREPARING_S)
        finally:
            self._poll = _nothing

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """[T, vocabulary] at every position of a text, while nothing else runs."""
        sequence = self._batcher.add(GenerationRequest("logits", tuple(token_ids), 0, prompt_scores=True))
        parts: list[Tensor] = []
        try:
            while sequence.remaining and (batch := self._batcher.plan()) is not None:
                parts.append(self._run(batch))
                self._batcher.decided(batch.pieces[0], ())
            return self._head.logits(torch.cat(parts))
        finally:
            self._batcher.end(sequence)

    # --- requests

    def _sampler(self, request: GenerationRequest) -> Draws:
        return Sampler(request.sampling, request.prompt_ids, self._config.vocab_size, request.answer_ids)

    def _constraint(self, request: GenerationRequest) -> AnswerConstraint | None:
        if request.grammar is None:
            return None
        if request.grammar.begins is not None:
            return begin_late(self._grammars, request, request.grammar) if self._grammars else None
        if self._grammars is None:
            raise UserError("answers by a grammar are not to be had here")
        return self._grammars.begin(request)

    def _release_held(self) -> None:
        """Those whose grammar is compiled begin."""
        for live in self._live.values():
            if live.sequence.held and live.constraint is not None:
                with _refusing(live):
                    live.sequence.held = not live.constraint.ready()

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
        # Of those that ended before, or have not begun, which is the command that is read next, only the latest are
        # kept.
        for request in list(self._cancels)[:-_KEPT_CANCELS]:
            del self._cancels[request]
        return self._take_ended()

    def _take_ended(self) -> list[Finished | Failed]:
        ended = [live for live in self._live.values() if live.reason is not None or live.refused is not None]
        return [self._end(live) for live in ended]

    def _end(self, live: _Live) -> Finished | Failed:
        sequence, reason = live.sequence, live.reason
        self._batcher.end(sequence)
        if live.constraint is not None:
            live.constraint.close()
        del self._live[sequence.request.id]
        self._cancels.pop(sequence.request.id, None)
        if live.refused is not None:
            return Failed(self._epoch, 0, sequence.request.id, type(live.refused).__name__, str(live.refused))
        return Finished(
            epoch=self._epoch,
            request=sequence.request.id,
            reason=reason or "length",
            prompt_tokens=sequence.prompt_tokens,
            tokens=sequence.answer_tokens,
            cached_tokens=sequence.cached,
            steps=sequence.steps,
        )

    # --- a step

    def _ask_masks(self, batch: Batch) -> None:
        """What is allowed after guesses is found out while the step is computed."""
        for piece in batch.pieces:
            live = self._live[piece.sequence.request.id]
            if live.constraint is not None:
                with _refusing(live):
                    live.constraint.guess(piece.ids[len(piece.ids) - piece.drafted :])

    def _run(self, batch: Batch) -> Tensor:
        """One sweep over the model: the hidden states [T, H], of which only the wanted rows are complete."""
        self._step += 1
        ids = batch.ids
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
            apart_tokens=0 if self._forward.quantised else batch.decode_tokens,
            tables=batch.tables,
            discarded=batch.discarded,
            collective=self._route.small,
            bulk_collective=self._route.bulk,
            small_bytes=self._route.small_bytes,
            wire=self._route.wire,
            recorded=recorded,
        )
        if recorded:
            self._recording_wanted = False
        self._recorder.begin(plan)
        with self._meter.embedding_span():
            x_TH = self._weights.embedding_rows(ids)
        self._lone = batch.lone, self._step
        try:
            with self._meter.announce_span():
                self._communicator.announce(plan)
                self._poll()
                # A cancel that came before the announcement belonged to no step yet.
                if batch.lone in self._cancels:
                    self._communicator.request_cancel(self._step)
            self._forward.run(x_TH, plan)
        finally:
            self._lone = "", 0
        return x_TH

    def _draw(self, batch: Batch, x_TH: Tensor) -> None:
        """Draws the next tokens of all sequences whose last position the step has computed."""
        ends = accumulate(len(piece.ids) for piece in batch.pieces)
        pieces = list(zip(batch.pieces, ends, strict=True))
        answers = [one for one in pieces if one[0].draws and one[0].sequence.request.pooling == "none"]
        rows = [row for piece, end in answers for row in range(end - 1 - piece.drafted, end)]
        with self._meter.head_span():
            logits_MV = self._room(len(rows))
            if rows:
                self._head.logits(_rows(x_TH, rows), apart=not self._forward.quantised, room=logits_MV)
        first = 0
        for piece, end in pieces:
            live = self._live[piece.sequence.request.id]
            if piece.sequence.request.prompt_scores and piece.sequence.answer_tokens == 0:
                self._score(live, piece, x_TH[end - len(piece.ids) : end])
            if live.pooled is not None:
                self._embed(live, live.pooled, piece, x_TH[end - len(piece.ids) : end])
            if not piece.draws or live.pooled is not None:
                self._batcher.decided(piece, ())
                continue
            tokens: list[int] = []
            with self._meter.head_span(), _refusing(live):
                tokens += self._drawn(live, piece, logits_MV[first:], shared=len(pieces) > 1)
            first += piece.drafted + 1
            self._batcher.decided(piece, tokens)
            if live.constraint is not None and live.reason is None and tokens:
                with _refusing(live):
                    live.constraint.accept(tokens)
            accepted = max(0, len(tokens) - 1)
            self._meter.drafted += piece.drafted
            self._meter.accepted += accepted

    def _room(self, rows: int) -> Tensor:
        """For logits, until the next step: in megabytes that are new, every 4 KiB costs a page fault."""
        if self._logits_MV.shape[0] >= rows:
            return self._logits_MV[:rows]
        room = torch.empty(rows, self._config.vocab_size)
        if room.nbytes <= _KEPT_LOGITS_BYTES:
            self._logits_MV = room
        return room

    def _drawn(self, live: _Live, piece: StepPiece, logits_MV: Tensor, *, shared: bool) -> Iterator[int]:
        """The tokens at the piece's last position and after every guess that came true. `shared`: the step has others,
        too."""
        request = live.sequence.request
        index = live.sequence.answer_tokens
        if index >= request.max_tokens:
            live.reason = "length"
            return
        guesses = [*piece.ids[len(piece.ids) - piece.drafted :], None]
        masks = live.constraint.masks(shared=shared) if live.constraint is not None else repeat(None)
        for row, (guess, allowed) in enumerate(zip(guesses, masks, strict=False)):
            drawn = live.sampler.sample(logits_MV[row], allowed)
            live.sampler.accept(drawn.token)
            live.emit(Token(self._epoch, request.id, index, drawn.token, drawn.logprobs))
            yield drawn.token
            index += 1
            if drawn.token in request.stop_ids and not request.ignore_eos:
                live.reason = "stop"
            elif index >= request.max_tokens:
                live.reason = "length"
            if live.reason is not None or drawn.token != guess:
                return

    def _score(self, live: _Live, piece: StepPiece, x_TH: Tensor) -> None:
        """Log probabilities of the prompt's own tokens after the piece's positions, but for those that were told before
        the sequence gave up its pages."""
        told = max(0, live.scored - piece.start - 1)
        following = live.sequence.request.prompt_ids[piece.start + 1 + told : piece.stop + 1]
        if not following:
            return
        request = live.sequence.request
        with self._meter.head_span():
            x_MH = x_TH[told : told + len(following)]
            scores, best = self._head.scores(x_MH, torch.tensor(following), request.sampling.logprobs)
        for row in range(0, len(scores), _SCORE_ROWS):
            part = slice(row, row + _SCORE_ROWS)
            likeliest = tuple(itertools.chain.from_iterable(best[part]))
            live.emit(PromptScores(self._epoch, request.id, live.scored, tuple(scores[part]), likeliest))
            live.scored += len(scores[part])

    def _embed(self, live: _Live, pooled: MeanState, piece: StepPiece, x_TH: Tensor) -> None:
        """The hidden states of the piece's positions, but for those that were taken before the sequence gave up its
        pages, or its last one; after the prompt's last position the request has ended."""
        sequence = live.sequence
        first = max(0, pooled.count - piece.start) if sequence.scanned else len(x_TH) - int(piece.draws)
        with self._meter.head_span():
            for row in range(first, len(x_TH), _SCORE_ROWS):
                pooled.add(self._head.states(x_TH[row : row + _SCORE_ROWS]))
        if piece.draws:
            with _refusing(live):
                live.emit(Embedding(self._epoch, sequence.request.id, pooled.values))
                live.reason = "stop"


@contextmanager
def _refusing(live: _Live) -> Iterator[None]:
    """What is wrong with one request's grammar ends that request."""
    try:
        yield
    except UserError as error:
        live.refused = live.refused or error


def _forced(live: _Live, constraint: AnswerConstraint) -> Sequence[int]:
    """The tokens that come next whatever the model says; none where the grammar has failed."""
    found: Sequence[int] = ()
    with _refusing(live):
        found = constraint.forced()
    return found


def _rows(x_TH: Tensor, rows: Sequence[int]) -> Tensor:
    """Those rows, which ascend. By numpy: torch takes threads of its own, which wait for more work where ours go on."""
    return x_TH if len(rows) == len(x_TH) else torch.from_numpy(x_TH.numpy()[rows])


def _nothing() -> None:
    return


class Follower:
    """Any other rank: takes steps until the cluster ends, and leaves what `carrier` can."""

    def __init__(
        self,
        config: ModelConfig,
        forward: ForwardPass,
        communicator: Communicator,
        carrier: Carrier,
        recorder: StepRecorder,
    ) -> None:
        self._hidden_size = config.hidden_size
        self._recorder = recorder
        self._forward = forward
        self._communicator = communicator
        self._carrier = carrier

    def run(self) -> None:
        """Never returns; ends with Cancelled at shutdown, or PeerLost, ProtocolError."""
        while True:
            self.run_step()

    def run_step(self) -> None:
        """Wait for a plan, then take the step."""
        plan = self._communicator.next_plan()
        if isinstance(plan, LeavePages):
            self._carrier.leave(plan)
            return
        self._carrier.discard()
        x_TH = torch.empty(plan.tokens, self._hidden_size)
        self._recorder.begin(plan)
        # The cancelled step's hidden states are dropped with it; the next plan says where the sequences stand.
        try:
            self._forward.run(x_TH, plan)
        except StepCancelled:
            self._recorder.drop()
            return
        self._recorder.end()
