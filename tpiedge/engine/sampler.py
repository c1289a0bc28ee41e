"""Chooses tokens from logits on rank 0. The order is that of Hugging Face's processors and warpers:

1. the logit bias is added;
2. tokens of prompt and answer get the repetition penalty, which divides positive scores and multiplies negative scores;
3. tokens of the answer get the presence and frequency penalty: score -= presence + frequency * count;
4. tokens that the grammar forbids get -inf;
5. at temperature 0 the largest score wins; of equal scores, the lowest id wins.

At other temperatures `kernels/draw.py` applies temperature, top-k, top-p and min-p.

A logit of -inf is never drawn. The random number depends on (seed, position) alone.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tpiedge.errors import GrammarRefused, InternalError
from tpiedge.kernels.draw import Filters, draw, likeliest
from tpiedge.wire.requests import Sampling

if TYPE_CHECKING:
    from torch import Tensor


_F32 = NDArray[np.float32]
TokenMask = NDArray[np.uint8]
"""A bit for each token, the lowest first: whether the token is allowed."""


@dataclass(frozen=True, slots=True)
class Sampled:
    token: int
    #: (id, log probability) of the likeliest tokens, descending, then of the drawn token if it is not among them.
    logprobs: tuple[tuple[int, float], ...]


class Sampler:
    """Draws the tokens of one sequence. `accept` adds a token; `sample` changes nothing. Parameters must be within
    their ranges."""

    def __init__(
        self, sampling: Sampling, prompt_ids: Sequence[int], vocab_size: int, answer_ids: Iterable[int] = ()
    ) -> None:
        self._sampling = sampling
        self._vocab_size = vocab_size
        self._position = len(prompt_ids)  # of the next token
        self._bias_ids = np.array([token for token, _ in sampling.logit_bias], dtype=np.intp)
        self._bias = np.array([bias for _, bias in sampling.logit_bias], dtype=np.float32)
        self._seen = _Occurrences(prompt_ids, vocab_size) if sampling.repetition_penalty != 1 else None
        counts_answer = sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
        self._answered = _Occurrences((), vocab_size) if counts_answer else None
        self._filters = Filters(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
        for token in answer_ids:
            self.accept(token)

    def accept(self, token: int) -> None:
        self._position += 1
        if self._seen is not None:
            self._seen.add(token)
        if self._answered is not None:
            self._answered.add(token)

    def sample(self, logits_V: "Tensor", allowed: TokenMask | None = None) -> Sampled:
        """Draws the next token from f32 logits [V]. `allowed` None allows all tokens. Raises InternalError,
        GrammarRefused."""
        raw_V, best = self._checked(logits_V)
        scores_V = self._adjusted(raw_V)
        if allowed is not None:
            bits_V = np.unpackbits(allowed, count=self._vocab_size, bitorder="little").view(np.bool_)
            scores_V = np.where(bits_V, scores_V, np.float32(-np.inf))
            if scores_V.max() == -np.inf:
                raise GrammarRefused(
                    f"the grammar allows none of the model's tokens at position {self._position}: give another one"
                )
        if self._sampling.temperature == 0:
            token = best if scores_V is raw_V else int(scores_V.argmax())  # the first of equals
        else:
            token = draw(scores_V, self._filters, uniform(self._sampling.seed, self._position))
        return Sampled(token, _logprobs(raw_V, self._sampling.logprobs, token))

    def _checked(self, logits_V: "Tensor") -> tuple[_F32, int]:
        raw_V: _F32 = np.ascontiguousarray(logits_V.detach().cpu().numpy(), dtype=np.float32)
        if raw_V.shape != (self._vocab_size,):
            raise InternalError(
                f"logits of shape {raw_V.shape} for a vocabulary of {self._vocab_size}: report it"
            )
        best = int(raw_V.argmax())  # NaN wins every maximum
        if not math.isfinite(raw_V[best]):
            raise InternalError(
                f"the model's largest logit at position {self._position} is {raw_V[best]}: "
                "check the model's files, and report it if they are sound"
            )
        return raw_V, best

    def _adjusted(self, raw_V: _F32) -> _F32:
        if not len(self._bias_ids) and self._seen is None and self._answered is None:
            return raw_V
        scores_V = raw_V.copy()
        scores_V[self._bias_ids] += self._bias
        if self._seen is not None:
            ids, penalty = self._seen.ids, np.float32(self._sampling.repetition_penalty)
            seen = scores_V[ids]
            scores_V[ids] = np.where(seen < 0, seen * penalty, seen / penalty)
        if self._answered is not None:
            presence, frequency = self._sampling.presence_penalty, self._sampling.frequency_penalty
            scores_V[self._answered.ids] -= (
                np.float32(presence) + np.float32(frequency) * self._answered.times
            )
        return scores_V


class _Occurrences:
    def __init__(self, text_ids: Sequence[int], vocab_size: int) -> None:
        ids, times = np.unique(np.asarray(text_ids, dtype=np.intp), return_counts=True)
        self._places = {token: place for place, token in enumerate(ids.tolist())}
        # At full length: untouched memory costs nothing.
        self._ids_V = np.zeros(vocab_size, dtype=np.intp)
        self._times_V = np.zeros(vocab_size, dtype=np.int32)
        self._ids_V[: len(ids)], self._times_V[: len(ids)] = ids, times

    @property
    def ids(self) -> NDArray[np.intp]:
        return self._ids_V[: len(self._places)]

    @property
    def times(self) -> NDArray[np.int32]:
        return self._times_V[: len(self._places)]

    def add(self, token: int) -> None:
        place = self._places.setdefault(token, len(self._places))
        self._ids_V[place] = token
        self._times_V[place] += 1


def uniform(seed: int, position: int) -> float:
    """Returns a pseudo-random number in [0, 1), by BLAKE2b."""
    message = seed.to_bytes(8, "little") + position.to_bytes(8, "little")
    digest = hashlib.blake2b(message, digest_size=8, person=b"tpiedge sampler").digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _logprobs(raw_V: _F32, count: int, token: int) -> tuple[tuple[int, float], ...]:
    if count == 0:
        return ()
    likeliest_ids, log_total = likeliest(raw_V, count)
    ids = [i for i in likeliest_ids if raw_V[i] > -math.inf]
    if token not in ids:
        ids.append(token)
    return tuple((i, float(raw_V[i]) - log_total) for i in ids)
