"""A model computed in this process, for what no message between processes carries: all logits at every position.

Shapes: T tokens of a window, R rows that exist at a time, V the vocabulary, H hidden size.
"""

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from tpiedge.collectives.local import LocalCommunicator
from tpiedge.engine.assembly import Engine, kv_cache
from tpiedge.engine.head import Head
from tpiedge.engine.meter import Meter
from tpiedge.engine.steps import StepLimits
from tpiedge.local.launch import Layout, plan_cluster
from tpiedge.local.prepare import PreparedModel
from tpiedge.memory.pinning import elastic_bytes, placed
from tpiedge.memory.weights import NodeWeights
from tpiedge.pack.grids import grid_exponents
from tpiedge.wire.data import Segment, StepPlan, TableChange

ROWS = 32
"""Positions whose logits exist at a time."""

_EPOCH = 1
_SLOT = 0


class WindowRows:
    """Logits of windows, some rows at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._head = Head(engine.config, engine.weights, engine.linear)
        self._limits = StepLimits.of(engine.config.hidden_size)
        self._step = 0

    def logits(self, ids: tuple[int, ...]) -> Iterator[torch.Tensor]:
        """[R, V] f32 of the window's positions in order, each tensor valid until the next."""
        for start in range(0, len(ids), self._limits.step_tokens):
            x_TH = self._run(ids[start : start + self._limits.step_tokens], start, len(ids))
            for row in range(0, x_TH.shape[0], ROWS):
                yield self._head.logits(x_TH[row : row + ROWS])

    def _run(self, ids: tuple[int, ...], start: int, rope_length: int) -> torch.Tensor:
        self._step += 1
        plan = StepPlan(
            epoch=_EPOCH,
            step=self._step,
            segments=(Segment(_SLOT, start, len(ids), rope_length, len(ids)),),
            chunk_tokens=self._limits.chunk_of(len(ids), shared=False),
            tokens=len(ids),
            tables=(TableChange(_SLOT, 0, tuple(range(self._engine.cache.pages)), start),),
        )
        x_TH = self._engine.weights.embedding_rows(ids)
        self._engine.communicator.announce(plan)
        self._engine.forward.run(x_TH, plan)
        return x_TH


@contextmanager
def open_engine(model: PreparedModel, layout: Layout, capacity_tokens: int) -> Iterator[WindowRows]:
    """The whole model as one node. Raises OutOfMemory, ReadFault, IntegrityError, UserError."""
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
        )
        resources.callback(weights.close)
        engine = Engine.build(
            model.config,
            share,
            weights,
            cache,
            LocalCommunicator(),
            epoch=_EPOCH,
            compute=model.compute,
            threads=layout.threads_per_node,
            meter=Meter(),
            grids=grid_exponents(model.pack),
        )
        resources.callback(engine.close)
        yield WindowRows(engine)
