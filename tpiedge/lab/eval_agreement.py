"""Compares the logits of two models over a text.

Shapes: T tokens of a window, R rows at a time, V vocabulary, H hidden size. Sums are in f64.
"""

import functools
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from tpiedge.collectives.communicator import Communicator
from tpiedge.engine.drawing import Head
from tpiedge.engine.forward import Engine, kv_cache
from tpiedge.engine.meter import Meter
from tpiedge.engine.steps import StepLimits
from tpiedge.errors import UserError
from tpiedge.host.device import available_memory_bytes, default_memory_bytes
from tpiedge.host.process import rss_bytes
from tpiedge.kernels.linear import Arithmetic, Linear
from tpiedge.lab.eval_text import EvalText, Window
from tpiedge.local.layout import Layout, plan_cluster
from tpiedge.local.prepare import PreparedModel
from tpiedge.memory.sweep import elastic_bytes, placed
from tpiedge.memory.weights import NodeWeights
from tpiedge.progress import ByteProgress
from tpiedge.wire.data import Segment, StepPlan, TableChange

ROWS = 32
"""The most positions whose logits exist at a time."""

_EPOCH = 1
_SLOT = 0


class WindowRows:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._head = Head(engine.config, engine.weights, engine.linear)
        self._limits = StepLimits.of(engine.config.hidden_size, engine.config.input_columns)
        self._step = 0

    def logits(self, ids: tuple[int, ...]) -> Iterator[torch.Tensor]:
        """Yields the f32 logits [R, V] of all positions in order. Each tensor is valid until the next."""
        for start in range(0, len(ids), self._limits.step_tokens):
            long = len(ids) > self._engine.config.short_tokens
            x_TH = self._run(ids[start : start + self._limits.step_tokens], start, long=long)
            for row in range(0, x_TH.shape[0], ROWS):
                yield self._head.logits(x_TH[row : row + ROWS])

    def _run(self, ids: tuple[int, ...], start: int, *, long: bool) -> torch.Tensor:
        self._step += 1
        plan = StepPlan(
            epoch=_EPOCH,
            step=self._step,
            segments=(Segment(_SLOT, start, len(ids), len(ids), long),),
            chunk_tokens=self._limits.chunk_of(len(ids), shared=False),
            tokens=len(ids),
            tables=(TableChange(_SLOT, 0, tuple(range(self._engine.cache.pages)), start),),
        )
        x_TH, inputs_TI = self._engine.embedding(ids)
        self._engine.communicator.announce(plan)
        self._engine.run(x_TH, plan, inputs_TI)
        return x_TH


@contextmanager
def open_engine(model: PreparedModel, layout: Layout, capacity_tokens: int) -> Iterator[WindowRows]:
    """Opens the whole model as one node. Raises OutOfMemory, ReadFault, IntegrityError, UserError."""
    plan = plan_cluster(model, layout, capacity_tokens)
    (share,), (need,) = plan.shares, plan.needs
    torch.set_num_threads(layout.threads_per_node)
    with ExitStack() as resources:
        cache = kv_cache(model.config, share, model.kv, 1, capacity_tokens)
        weights = NodeWeights(
            model.pack,
            share,
            True,
            functools.partial(placed, need.weights),
            kv_bytes=elastic_bytes(need.weights, cache.reserved_bytes),
            direct=need.weights.direct,
            norm_offset=model.config.norm_offset,
        )
        resources.callback(weights.close)
        linear = Linear.create(Arithmetic(model.compute), layout.threads_per_node)
        resources.callback(linear.close)
        alone, grids = Communicator(), model.grids
        yield WindowRows(Engine(model.config, share, weights, cache, alone, linear, Meter(), grids))


def same_positions(one: Iterator[Tensor], other: Iterator[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the models' rows in pairs of equally long pieces. Raises ValueError for unequal numbers of rows."""
    a_RV, b_RV = next(one, None), next(other, None)
    while a_RV is not None and b_RV is not None:
        rows = min(len(a_RV), len(b_RV))
        yield a_RV[:rows], b_RV[:rows]
        a_RV = a_RV[rows:] if rows < len(a_RV) else next(one, None)
        b_RV = b_RV[rows:] if rows < len(b_RV) else next(other, None)
    if a_RV is not None or b_RV is not None:
        raise ValueError("one model has more positions than the other")


class Comparison:
    """Accumulates figures of two models' logits."""

    def __init__(self) -> None:
        self.positions = 0
        self._agreeing = 0
        self._nats = [0.0, 0.0]  # of (reference, model)
        self._divergences: list[Tensor] = []

    def add(self, reference_RV: Tensor, model_RV: Tensor, following: Sequence[int]) -> None:
        """Adds the logits of R positions. `following`: the token after each position. Raises UserError for NaN."""
        logs_RV = reference_RV.double().log_softmax(-1), model_RV.double().log_softmax(-1)
        ids_R1 = torch.tensor(following)[:, None]
        for place, log_RV in enumerate(logs_RV):
            self._nats[place] -= float(log_RV.gather(1, ids_R1).sum())
        reference, model = logs_RV
        # Where the reference has no probability, or one too small for a number, nothing is lost: 0 log 0 = 0.
        expected_RV = reference.exp()
        terms_RV = torch.where(expected_RV == 0, 0.0, expected_RV * (reference - model))
        divergence_R = terms_RV.sum(-1).clamp(min=0.0)  # rounding may leave it below
        if divergence_R.isnan().any():
            raise UserError("a model's logits are not numbers: check its files")
        self._divergences.append(divergence_R)
        self._agreeing += int((reference_RV.argmax(-1) == model_RV.argmax(-1)).sum())
        self.positions += len(following)

    @property
    def agreement(self) -> float:
        return self._agreeing / self.positions

    def divergence(self) -> dict[str, float | None]:
        """Returns mean, 95 % quantile and maximum of KL(reference || model) in nats. None means infinite."""
        every = torch.cat(self._divergences)
        # Not torch's quantile, which takes 16 million numbers at most.
        place = max(0, math.ceil(0.95 * len(every)) - 1)
        return {
            "mean": _finite(float(every.mean())),
            "p95": _finite(float(every.sort().values[place])),
            "max": _finite(float(every.max())),
        }

    def perplexities(self) -> tuple[float | None, float | None]:
        """Returns (model's perplexity, reference's perplexity). None means infinite."""
        reference, model = (_exp(nats / self.positions) for nats in self._nats)
        return model, reference

    def described(self) -> dict[str, object]:
        model, reference = self.perplexities()
        return {
            "positions": self.positions,
            "top1_agreement": self.agreement,
            "kl_nats": self.divergence(),
            "perplexity": model,
            "reference_perplexity": reference,
        }


def _exp(nats: float) -> float | None:
    try:
        return _finite(math.exp(nats))
    except OverflowError:
        return None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def compare(model: PreparedModel, other: PreparedModel, layout: Layout, text: EvalText) -> Comparison:
    """Compares `model` with the reference `other`. Raises the errors of `open_engine`."""
    each = replace(layout, memory_bytes=layout.memory_bytes or _half_of_free_memory())
    found = Comparison()
    progress = ByteProgress("comparing")
    with ExitStack() as engines:
        opened = [engines.enter_context(open_engine(one, each, text.longest)) for one in (other, model)]
        try:
            for window in text.windows:
                compare_window(opened, window, found)
                progress(text.scored_bytes * found.positions // text.scored, text.scored_bytes)
        finally:
            progress.finish(text.scored_bytes * found.positions // text.scored)
    return found


def compare_window(engines: list[WindowRows], window: Window, found: Comparison) -> None:
    """Adds a window's logits to `found`. `engines`: [reference, model]."""
    row = 0
    for reference_RV, model_RV in same_positions(*(engine.logits(window.ids) for engine in engines)):
        # Position t predicts token t + 1.
        first = max(0, window.first - 1 - row)
        last = min(len(reference_RV), len(window.ids) - 1 - row)
        if first < last:
            following = window.ids[row + first + 1 : row + last + 1]
            found.add(reference_RV[first:last], model_RV[first:last], following)
        row += len(reference_RV)


def _half_of_free_memory() -> int:
    return default_memory_bytes(available_memory_bytes() + rss_bytes(os.getpid())) // 2
