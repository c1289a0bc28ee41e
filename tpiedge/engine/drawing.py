"""Draws tokens with the LM head, on rank 0 only (TPI-LLM, section 3.1).

Shapes: M positions, V vocabulary, R vocabulary rows of a tile.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tpiedge.engine.batcher import Batch, Batcher
from tpiedge.engine.constraints import AnswerConstraint, MaskWaits
from tpiedge.engine.forward import Engine
from tpiedge.engine.sampler import Sampler
from tpiedge.engine.sequence import RunningSequence, StepPiece
from tpiedge.errors import ChildLost, UserError
from tpiedge.kernels.elementwise import Activation, activate, rms_norm
from tpiedge.kernels.library import NATIVE_TOKENS
from tpiedge.kernels.linear import Linear
from tpiedge.kernels.panel_matrix import Weight
from tpiedge.memory.weights import NodeWeights
from tpiedge.model.config import ModelConfig
from tpiedge.wire.control import AnswerPart, Embedding, FinishReason, PromptScores, Token

_SCORE_ROWS: Final = 64  # positions whose logits of a tile exist at a time

Scored: TypeAlias = tuple[tuple[int, float], ...]
"""Tokens with their log probabilities, the likeliest first."""


class Head:
    """Computes the final norm and the LM head, in one product if `NodeWeights.head` is there, else tile by tile."""

    def __init__(self, config: ModelConfig, weights: NodeWeights, linear: Linear) -> None:
        self._config = config
        self._weights = weights
        self._linear = linear

    def logits(self, x_MH: Tensor, *, apart: bool = False, room: Tensor | None = None) -> Tensor:
        """Returns f32 logits [M, V], in `room` if given. `apart`: no row's bits depend on other rows."""
        h_MH = self.states(x_MH)
        rows = NATIVE_TOKENS if apart else max(1, len(h_MH))
        logits_MV = torch.empty(len(h_MH), self._config.vocab_size) if room is None else room
        whole = None if apart else self._weights.head  # `apart` would read all of it for every few rows
        for first, tile_RH in self._weights.head_tiles() if whole is None else ((0, whole),):
            for row in range(0, len(h_MH), rows):
                logits_MR = logits_MV[row : row + rows, first : first + tile_RH.shape[0]]
                if logits_MR.shape[1] == tile_RH.shape[0]:
                    self._linear.project_into(h_MH[row : row + rows], tile_RH, logits_MR)
                else:  # the vocabulary ends within the tile
                    logits_MR.copy_(self._of_tile(h_MH[row : row + rows], first, tile_RH))
                self._scale(logits_MR)
        return logits_MV

    def scores(self, x_MH: Tensor, ids_M: Tensor, likeliest: int = 0) -> tuple[list[float], list[Scored]]:
        """Returns the log probability of each token of `ids_M`, and each position's `likeliest` most probable
        tokens."""
        count = min(likeliest, self._config.vocab_size)
        total_M = torch.full((len(ids_M),), -torch.inf)  # the logarithm of the sum of exponentials so far
        own_M = torch.empty(len(ids_M))
        best_MK = torch.full((len(ids_M), count), -torch.inf)
        best_ids_MK = torch.zeros(len(ids_M), count, dtype=torch.long)
        for first, tile_RH in self._weights.head_tiles():
            for rows in (slice(row, row + _SCORE_ROWS) for row in range(0, len(ids_M), _SCORE_ROWS)):
                logits_MR = self._scale(self._of_tile(self.states(x_MH[rows]), first, tile_RH))
                total_M[rows] = torch.logaddexp(total_M[rows], logits_MR.logsumexp(dim=-1))
                places_M = ids_M[rows] - first
                here = torch.nonzero((places_M >= 0) & (places_M < logits_MR.shape[1]))[:, 0]
                own_M[rows][here] = logits_MR[here, places_M[here]]
                if count:
                    new_MK, places_MK = logits_MR.topk(min(count, logits_MR.shape[1]))
                    ids_ML = torch.cat([best_ids_MK[rows], places_MK + first], dim=1)
                    best_MK[rows], places_MK = torch.cat([best_MK[rows], new_MK], dim=1).topk(count)
                    best_ids_MK[rows] = ids_ML.gather(1, places_MK)
        best = zip(best_ids_MK.tolist(), (best_MK - total_M[:, None]).tolist(), strict=True)
        return (own_M - total_M).tolist(), [tuple(zip(*one, strict=True)) for one in best]

    def states(self, x_MH: Tensor) -> Tensor:
        weight = self._weights.vectors["head"]["final_norm"]
        return rms_norm(x_MH, weight, self._config.rms_norm_eps, self._linear.pool)

    def _scale(self, logits_MR: Tensor) -> Tensor:
        """Applies the model's divisor and soft cap of logits, in place, row by row to save memory."""
        factors = self._config.factors
        for logits_R in logits_MR if factors.logit_divisor != 1 or factors.logit_cap else ():
            values_R = logits_R.numpy()  # not by torch: see `draw`
            if factors.logit_divisor != 1:
                values_R /= factors.logit_divisor
            if factors.logit_cap:
                values_R /= factors.logit_cap
                capped_R = activate(logits_R, None, Activation.TANH, self._linear.pool)
                np.multiply(capped_R.numpy(), factors.logit_cap, out=values_R)
        return logits_MR

    def _of_tile(self, h_MH: Tensor, first: int, tile_RH: Weight) -> Tensor:
        rows = min(tile_RH.shape[0], self._config.vocab_size - first)
        return self._linear.project(h_MH, tile_RH)[:, :rows]


class MeanState:
    """The mean of hidden states. Its bits do not depend on batches."""

    def __init__(self, width: int) -> None:
        self._total_H: NDArray[np.float64] = np.zeros(width)
        self.count = 0

    def add(self, h_MH: Tensor) -> None:
        for row_H in h_MH.numpy():  # one by one, so that batches do not change the bits
            self._total_H += row_H
        self.count += len(h_MH)

    @property
    def values(self) -> tuple[float, ...]:
        """The mean. Raises UserError unless it is finite in f32."""
        mean_H = self._total_H / self.count
        if not (np.abs(mean_H) <= np.finfo(np.float32).max).all():
            raise UserError("the model makes an embedding with a number that is not finite: check its files")
        return tuple(mean_H.tolist())


@dataclass(eq=False)
class LiveRequest:
    """A request that has not ended."""

    sequence: RunningSequence
    sampler: Sampler
    emit: Callable[[AnswerPart], None]
    pooled: MeanState | None = None
    reason: FinishReason | None = None
    #: The first position whose log probability was not sent.
    scored: int = 1
    constraint: AnswerConstraint | None = None
    #: A piece without its mask, its logits, and whether several requests shared the step.
    deferred: tuple[StepPiece, Tensor, bool] | None = None
    refused: UserError | ChildLost | None = None

    def known(self) -> bool:
        found = True
        with refusing(self):
            found = self.constraint is None or self.constraint.known()
        return found

    def heard(self) -> bool:
        return self.forced() is not None

    def forced(self) -> Sequence[int] | None:
        """Returns the tokens that the grammar forces next; None while they are unknown."""
        found: Sequence[int] | None = ()
        with refusing(self):
            found = () if self.constraint is None else self.constraint.forced()
        return found


class Drawing:
    def __init__(self, epoch: int, engine: Engine, batcher: Batcher, waits: MaskWaits) -> None:
        self._epoch = epoch
        self._vocab_size = engine.config.vocab_size
        self.head = Head(engine.config, engine.weights, engine.linear)
        self._meter = engine.meter
        self._batcher = batcher
        #: `apart` of Head.logits.
        self._apart = not engine.int8
        self._waits = waits
        self._logits_MV = torch.empty(0, self._vocab_size)

    def draw(self, batch: Batch, x_TH: Tensor, requests: Mapping[str, LiveRequest]) -> None:
        """Draws tokens for all sequences whose last position was computed."""
        ends = accumulate(len(piece.ids) for piece in batch.pieces)
        pieces = list(zip(batch.pieces, ends, strict=True))
        answers = [one for one in pieces if one[0].draws and one[0].sequence.request.pooling == "none"]
        rows = [row for piece, end in answers for row in range(end - 1 - piece.drafted, end)]
        with self._meter.head_span:
            logits_MV = self._room(len(rows))
            if rows:
                # By numpy: torch uses threads of its own, which then wait for work on the cores of ours.
                x_MH = x_TH if len(rows) == len(x_TH) else torch.from_numpy(x_TH.numpy()[rows])
                self.head.logits(x_MH, apart=self._apart, room=logits_MV)
        first, shared = 0, len(pieces) > 1
        drawing = [requests[piece.sequence.request.id] for piece in batch.pieces if piece.draws]
        self._waits.until([(one.constraint, one.known) for one in drawing if one.constraint is not None])
        for piece, end in pieces:
            live = requests[piece.sequence.request.id]
            if piece.sequence.request.prompt_scores and piece.sequence.answer_tokens == 0:
                self._score(live, piece, x_TH[end - len(piece.ids) : end])
            if live.pooled is not None:
                self._embed(live, live.pooled, piece, x_TH[end - len(piece.ids) : end])
            if not piece.draws or live.pooled is not None:
                self._batcher.decided(piece, ())
                continue
            own_MV = logits_MV[first : first + piece.drafted + 1]
            first += piece.drafted + 1
            if live.known():
                self._decide(live, piece, own_MV, shared=shared)
            else:
                self._batcher.undrawn(piece)
                live.deferred = piece, own_MV.clone(), shared

    def draw_deferred(self, requests: Iterable[LiveRequest]) -> None:
        """Draws the tokens of earlier steps whose masks came late."""
        for live in requests:
            if live.deferred is not None and not live.sequence.undrawn:
                live.deferred = None
            elif live.deferred is not None and live.known():
                (piece, logits_MV, shared), live.deferred = live.deferred, None
                self._decide(live, piece, logits_MV, shared=shared)

    def _decide(self, live: LiveRequest, piece: StepPiece, logits_MV: Tensor, *, shared: bool) -> None:
        tokens: list[int] = []
        with self._meter.head_span, refusing(live):
            tokens += self._drawn(live, piece, logits_MV, shared=shared)
        self._batcher.decided(piece, tokens)
        if live.constraint is not None and live.reason is None and tokens:
            with refusing(live):
                live.constraint.accept(tokens)
        self._meter.drafted += piece.drafted
        self._meter.accepted += max(0, len(tokens) - 1)

    def _room(self, rows: int) -> Tensor:
        if self._logits_MV.shape[0] >= rows:
            return self._logits_MV[:rows]
        room = torch.empty(rows, self._vocab_size)
        if room.nbytes <= 16 << 20:
            self._logits_MV = room  # kept between steps, to save page faults
        return room

    def _drawn(
        self, live: LiveRequest, piece: StepPiece, logits_MV: Tensor, *, shared: bool
    ) -> Iterator[int]:
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
            brought = live.sequence.brought if index == len(request.answer_ids) else 0
            live.emit(Token(self._epoch, request.id, index, drawn.token, drawn.logprobs, brought))
            yield drawn.token
            index += 1
            if drawn.token in request.stop_ids and not request.ignore_eos:
                live.reason = "stop"
            elif index >= request.max_tokens:
                live.reason = "length"
            if live.reason is not None or drawn.token != guess:
                return

    def _score(self, live: LiveRequest, piece: StepPiece, x_TH: Tensor) -> None:
        told = max(0, live.scored - piece.start - 1)
        following = live.sequence.request.prompt_ids[piece.start + 1 + told : piece.stop + 1]
        if not following:
            return
        request = live.sequence.request
        with self._meter.head_span:
            x_MH = x_TH[told : told + len(following)]
            scores, best = self.head.scores(x_MH, torch.tensor(following), request.sampling.logprobs)
        for row in range(0, len(scores), _SCORE_ROWS):
            part = slice(row, row + _SCORE_ROWS)
            likeliest = tuple(itertools.chain.from_iterable(best[part]))
            live.emit(PromptScores(self._epoch, request.id, live.scored, tuple(scores[part]), likeliest))
            live.scored += len(scores[part])

    def _embed(self, live: LiveRequest, pooled: MeanState, piece: StepPiece, x_TH: Tensor) -> None:
        sequence = live.sequence
        first = max(0, pooled.count - piece.start) if sequence.scanned else len(x_TH) - int(piece.draws)
        with self._meter.head_span:
            for row in range(first, len(x_TH), _SCORE_ROWS):
                pooled.add(self.head.states(x_TH[row : row + _SCORE_ROWS]))
        if piece.draws:
            with refusing(live):
                live.emit(Embedding(self._epoch, sequence.request.id, pooled.values))
                live.reason = "stop"


@contextmanager
def refusing(live: LiveRequest) -> Iterator[None]:
    try:
        yield
    except (UserError, ChildLost) as error:
        live.refused = live.refused or error
