"""The loop of a node: rank 0 leads (plan, embed, forward, head, sample), the others follow (plan, forward).

Rank 0's `generate` is the life of a request on the tensor plane: prefill the prompt in as few steps as the activation
budget allows, then one step per token. The other nodes never see a token id, only hidden states and positions.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tpiedge.collectives.communicator import Communicator
from tpiedge.collectives.route import Route
from tpiedge.engine.forward import ForwardPass
from tpiedge.engine.head import Head
from tpiedge.engine.meter import Meter
from tpiedge.engine.overlap import StepCancelled
from tpiedge.engine.sampler import Sampler
from tpiedge.engine.steps import StepLimits
from tpiedge.errors import UserError
from tpiedge.kv.cache import KVCache
from tpiedge.memory.weights import Weights
from tpiedge.model.config import ModelConfig
from tpiedge.units import counted
from tpiedge.wire.control import Finished, FinishReason, PromptScores, Token
from tpiedge.wire.data import Segment, StepPlan
from tpiedge.wire.requests import GenerationRequest

__all__ = ["Follower", "Leader"]

_SLOT = 0
_SCORE_ROWS = 64


class Leader:
    """Rank 0: owns the sequence, the embedding, the head and the sampler."""

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
    ) -> None:
        self._config = config
        self._epoch = epoch
        self._weights = weights
        self._forward = forward
        self._head = head
        self._cache = cache
        self._communicator = communicator
        self._meter = meter
        self._step = 0
        self._cancelled: Callable[[], bool] = _never
        self._kept: list[int] = []
        self._limits = limits
        self._route = route

    def generate(
        self,
        request: GenerationRequest,
        emit: Callable[[Token | PromptScores], None],
        cancelled: Callable[[], bool],
    ) -> Finished:
        """Run the request to its end, handing every token to `emit` as soon as it is drawn.

        `cancelled` is asked between steps; the thread that sets it inside one also calls the communicator's
        `request_cancel`. Raises UserError where prompt + max_tokens exceed the KV cache, PeerLost, ProtocolError.
        """
        self._check(request)
        self._cancelled = cancelled
        sampler = Sampler(request.sampling, request.prompt_ids, self._config.vocab_size)
        tokens = 0
        reason: FinishReason = "length"
        try:
            x_H = self._prefill(request, emit)
            while tokens < request.max_tokens:
                if cancelled():
                    reason = "cancel"
                    break
                with self._meter.head_span():
                    drawn = sampler.sample(self._head.logits(x_H[None])[0])
                    sampler.accept(drawn.token)
                emit(Token(self._epoch, request.id, tokens, drawn.token, drawn.logprobs))
                tokens += 1
                if drawn.token in request.stop_ids and not request.ignore_eos:
                    reason = "stop"
                    break
                if tokens < request.max_tokens:
                    position = len(self._kept)
                    x_H = self._run_step([drawn.token], position, position + 1)[-1]
        except StepCancelled:
            reason = "cancel"
        finally:
            self._cancelled = _never
        return Finished(
            epoch=self._epoch,
            request=request.id,
            reason=reason,
            prompt_tokens=len(request.prompt_ids),
            tokens=tokens,
        )

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """[T, vocabulary] at every position of a text that is short enough for one step. Forgets the sequence."""
        return self._head.logits(self._run_step(token_ids, 0, len(token_ids), all_positions=True))

    def _check(self, request: GenerationRequest) -> None:
        if not request.prompt_ids:
            raise UserError("the prompt is empty: give at least one token")
        beyond = max(request.prompt_ids)
        if beyond >= self._config.vocab_size:
            raise UserError(f"token id {beyond} is outside the vocabulary of {self._config.vocab_size}")
        needed = len(request.prompt_ids) + max(request.max_tokens - 1, 0)
        if needed > self._cache.capacity:
            raise UserError(
                f"{counted(len(request.prompt_ids), 'prompt token')} and {counted(request.max_tokens, 'new one')} need "
                f"{counted(needed, 'position')}, "
                f"the KV cache has {self._cache.capacity}: shorten the prompt or raise --context"
            )

    def _prefill(self, request: GenerationRequest, emit: Callable[[Token | PromptScores], None]) -> Tensor:
        """The hidden state [H] of the prompt's last position."""
        prompt = request.prompt_ids
        start = self._reusable(request)
        x_H = torch.empty(0)
        while start < len(prompt):
            stop = min(len(prompt), start + self._limits.step_tokens)
            x_TH = self._run_step(prompt[start:stop], start, len(prompt), all_positions=request.prompt_scores)
            if request.prompt_scores:
                self._score(x_TH, prompt[start + 1 : stop + 1], start + 1, request.id, emit)
            x_H = x_TH[-1].clone()
            del x_TH  # a view would keep the whole step in memory while the next one is computed
            start = stop
        return x_H

    def _reusable(self, request: GenerationRequest) -> int:
        """Length of the prefix that the cache holds already; the last position is always computed."""
        if not request.keep_prefix or request.prompt_scores or self._config.rope.depends_on_length:
            return 0
        common = 0
        for kept, wanted in zip(self._kept, request.prompt_ids[:-1], strict=False):
            if kept != wanted:
                break
            common += 1
        return common

    def _score(
        self,
        x_TH: Tensor,
        following: Sequence[int],
        first: int,
        request: str,
        emit: Callable[[Token | PromptScores], None],
    ) -> None:
        """Log probabilities of the prompt's own tokens, from position `first` on."""
        if not following:
            return
        with self._meter.head_span():
            scores = self._head.scores(x_TH[: len(following)], torch.tensor(following)).tolist()
        for row in range(0, len(scores), _SCORE_ROWS):
            part = tuple(scores[row : row + _SCORE_ROWS])
            emit(PromptScores(self._epoch, request, first + row, part))

    def _run_step(
        self, token_ids: Sequence[int], start: int, rope_length: int, *, all_positions: bool = False
    ) -> Tensor:
        """One sweep over the model for the tokens at positions start, start + 1, ...; their hidden states [T, H], of
        which only the last is complete unless `all_positions`."""
        self._step += 1
        del self._kept[start:]
        plan = StepPlan(
            epoch=self._epoch,
            step=self._step,
            segments=(Segment(_SLOT, start, len(token_ids), rope_length),),
            chunk_tokens=self._limits.chunk_of(len(token_ids), shared=self._communicator.size > 1),
            tokens=len(token_ids),
            all_positions=all_positions,
            collective=self._route.small,
            bulk_collective=self._route.bulk,
            small_bytes=self._route.small_bytes,
            wire=self._route.wire,
        )
        with self._meter.embedding_span():
            x_TH = self._weights.embedding_rows(token_ids)
        with self._meter.announce_span():
            self._communicator.announce(plan)
            # A cancel that came before the announcement was meant for this request, but belonged to no step yet.
            if self._cancelled():
                self._communicator.request_cancel()
        self._forward.run(x_TH, plan)
        self._kept += token_ids
        return x_TH


def _never() -> bool:
    return False


class Follower:
    """Any other rank: takes steps until the cluster ends."""

    def __init__(self, config: ModelConfig, forward: ForwardPass, communicator: Communicator) -> None:
        self._hidden_size = config.hidden_size
        self._forward = forward
        self._communicator = communicator

    def run(self) -> None:
        """Never returns; ends with Cancelled at shutdown, or PeerLost, ProtocolError."""
        while True:
            self.run_step()

    def run_step(self) -> None:
        """Wait for a plan, then take the step."""
        plan = self._communicator.next_plan()
        x_TH = torch.empty(plan.tokens, self._hidden_size)
        # The cancelled step's hidden states are dropped with it; the next plan says where the sequence stands.
        try:
            self._forward.run(x_TH, plan)
        except StepCancelled:
            return
