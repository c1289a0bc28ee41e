"""Logits to tokens, on rank 0.

One token is drawn in this order, which is that of Hugging Face's processors and warpers:

1. logit bias: added to the logits;
2. repetition penalty r, for every token of prompt and answer: a positive score is divided by r, a negative
   one multiplied;
3. presence and frequency penalty, for the tokens of the answer only (as OpenAI counts):
   score -= presence + frequency * count;
4. temperature 0 ends here: the largest score, the lowest id among equals. Otherwise scores are divided by it;
5. top-k: scores below the k-th largest go; what equals it stays, so more than k may be left;
6. top-p: the smallest set of the likeliest survivors whose probability reaches p (the token that crosses p
   stays; equals go by id);
7. min-p: tokens less likely than min_p times the likeliest go;
8. one of the rest is drawn by inverting the cumulative distribution over ascending ids, in float64.

Laws: at least one token survives every filter; a token with logit -inf is never drawn; the random number is
a function of (seed, position) and nothing else, so the same logits give the same token whatever the number of
nodes, the batch and the number of times a step was repeated; the arithmetic is numpy's on one thread, so the
number of threads changes nothing either.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tpiedge.errors import InternalError
from tpiedge.wire.requests import Sampling

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Sampled", "Sampler", "uniform"]

_F32 = NDArray[np.float32]
_F64 = NDArray[np.float64]
_Ids = NDArray[np.intp]

_NUCLEUS_GUESS = 1024
"""How many tokens top-p looks at first: a full sort of a large vocabulary takes 12 ms, this 1 ms."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One drawn token.

    `logprobs`: empty where none were asked for; otherwise (id, log probability) of the likeliest, descending,
    masked ones left out, and of the drawn token at the end where it is not among them. They are the
    model's own: of the logits as they came, before bias, penalties, temperature and filters.
    """

    token: int
    logprobs: tuple[tuple[int, float], ...]


class Sampler:
    """Draws the tokens of one sequence, one after the other.

    `sample` changes nothing, so a step can be repeated; `accept` appends the token that was decided on. A
    sampler made anew from the prompt and the answer so far draws what the old one would have drawn. Token ids
    must be below `vocab_size`; `sampling` is within the ranges of `engine/sampling.py`.
    """

    def __init__(
        self, sampling: Sampling, prompt_ids: Sequence[int], vocab_size: int, answer_ids: Iterable[int] = ()
    ) -> None:
        self._sampling = sampling
        self._vocab_size = vocab_size
        self._position = len(prompt_ids)
        self._bias_ids = np.array([token for token, _ in sampling.logit_bias], dtype=np.intp)
        self._bias = np.array([bias for _, bias in sampling.logit_bias], dtype=np.float32)
        self._seen_V = _seen(prompt_ids, vocab_size) if sampling.repetition_penalty != 1 else None
        counts_answer = sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
        self._counts_V = np.zeros(vocab_size, dtype=np.int32) if counts_answer else None
        for token in answer_ids:
            self.accept(token)

    @property
    def position(self) -> int:
        """Where in the sequence the next token will stand; position 0 is the prompt's first token."""
        return self._position

    def accept(self, token: int) -> None:
        """Append `token` to the answer. Constant time."""
        self._position += 1
        if self._seen_V is not None:
            self._seen_V[token] = True
        if self._counts_V is not None:
            self._counts_V[token] += 1

    def sample(self, logits_V: "Tensor") -> Sampled:
        """Draw the token at `position` from f32 logits of shape [V], which stay as they are.

        Raises InternalError for logits of the wrong shape, with NaN or +inf, or all -inf.
        """
        raw_V = self._checked(logits_V)
        scores_V = self._adjusted(raw_V)
        if self._sampling.temperature == 0:
            token = int(scores_V.argmax())  # numpy promises the first of equals
        else:
            ids, weights = _survivors(scores_V, self._sampling)
            token = int(ids[_invert(weights, uniform(self._sampling.seed, self._position))])
        return Sampled(token, _logprobs(raw_V, self._sampling.logprobs, token))

    def _checked(self, logits_V: "Tensor") -> _F32:
        raw_V: _F32 = np.asarray(logits_V.detach().cpu().numpy(), dtype=np.float32)
        if raw_V.shape != (self._vocab_size,):
            raise InternalError(
                f"logits of shape {raw_V.shape} for a vocabulary of {self._vocab_size}: report it"
            )
        best = float(raw_V.max())  # NaN wins every maximum
        if not math.isfinite(best):
            raise InternalError(
                f"the model's largest logit at position {self._position} is {best}: "
                "check the model's files, and report it if they are sound"
            )
        return raw_V

    def _adjusted(self, raw_V: _F32) -> _F32:
        """Steps 1 to 3: bias and penalties, vectorised; a copy only where something changes."""
        if not len(self._bias_ids) and self._seen_V is None and self._counts_V is None:
            return raw_V
        scores_V = raw_V.copy()
        scores_V[self._bias_ids] += self._bias
        if self._seen_V is not None:
            seen, penalty = scores_V[self._seen_V], np.float32(self._sampling.repetition_penalty)
            scores_V[self._seen_V] = np.where(seen < 0, seen * penalty, seen / penalty)
        if self._counts_V is not None:
            presence, frequency = self._sampling.presence_penalty, self._sampling.frequency_penalty
            scores_V -= np.float32(presence) * (self._counts_V > 0) + np.float32(frequency) * self._counts_V
        return scores_V


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) for (seed, position): the first 53 bits of their BLAKE2b hash."""
    message = seed.to_bytes(8, "little") + position.to_bytes(8, "little")
    digest = hashlib.blake2b(message, digest_size=8, person=b"tpiedge sampler").digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _seen(ids: Sequence[int], vocab_size: int) -> NDArray[np.bool_]:
    seen_V = np.zeros(vocab_size, dtype=np.bool_)
    seen_V[np.asarray(ids, dtype=np.intp)] = True
    return seen_V


def _survivors(scores_V: _F32, sampling: Sampling) -> tuple[_Ids, _F64]:
    """Steps 4 to 7: the ids that may be drawn, ascending, and their weights (the likeliest has weight 1)."""
    ids = _top_k(scores_V, sampling.top_k)
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
        weights = np.exp((scores_V[ids].astype(np.float64) - float(scores_V.max())) / sampling.temperature)
    kept = _nucleus(weights, sampling.top_p)
    kept = kept[weights[kept] >= sampling.min_p]
    return ids[kept], weights[kept]


def _top_k(values: _F32 | _F64, k: int) -> _Ids:
    """Indices, ascending, of the k largest values and of what equals the least of them. k = 0 keeps all."""
    if k == 0 or k >= len(values):
        return np.arange(len(values))
    return np.flatnonzero(values >= np.partition(values, -k)[-k])


def _descending(values: _F32 | _F64, k: int) -> _Ids:
    """Those of `_top_k`, largest value first, equals by index."""
    largest = _top_k(values, k)
    return largest[np.argsort(-values[largest], kind="stable")]


def _nucleus(weights: _F64, top_p: float) -> _Ids:
    """Indices, ascending, of the fewest largest weights that sum to `top_p` of the total.

    Looks at the largest `count` weights only and widens the view until the sum is reached inside it.
    """
    if top_p == 1:
        return np.arange(len(weights))
    needed = top_p * float(weights.sum())
    count = _NUCLEUS_GUESS
    while True:
        largest = _descending(weights, count)
        sum_before = np.concatenate(([0.0], np.cumsum(weights[largest])[:-1]))
        kept = largest[sum_before < needed]
        if len(kept) < len(largest) or len(largest) == len(weights):
            return np.sort(kept)
        count *= 16


def _invert(weights: _F64, draw: float) -> int:
    """The first index whose cumulative weight exceeds `draw` of the total; never one of weight zero."""
    cumulative = np.cumsum(weights)
    index = int(np.searchsorted(cumulative, draw * cumulative[-1], side="right"))
    # draw * total may round up to the total: then the last index that raised the sum is meant
    return min(index, int(np.searchsorted(cumulative, cumulative[-1], side="left")))


def _logprobs(raw_V: _F32, count: int, token: int) -> tuple[tuple[int, float], ...]:
    if count == 0:
        return ()
    ids = [int(i) for i in _descending(raw_V, count)[:count] if raw_V[i] > -math.inf]
    if token not in ids:
        ids.append(token)
    best = float(raw_V.max())
    log_total = best + math.log(float(np.exp(raw_V.astype(np.float64) - best).sum()))
    return tuple((i, float(raw_V[i]) - log_total) for i in ids)
