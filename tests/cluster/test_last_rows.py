"""In the last FFN, and in the message that ends it, only those rows are left that the head is asked for."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.cluster.packs import split
from tests.reference import Reference
from tpiedge.collectives.communicator import Tag
from tpiedge.collectives.local import LocalCommunicator
from tpiedge.engine.assembly import Engine, kv_cache
from tpiedge.engine.meter import Meter
from tpiedge.engine.runner import Serving
from tpiedge.engine.steps import StepLimits
from tpiedge.memory.weights import NodeWeights
from tpiedge.model.spec import config_of_pack
from tpiedge.pack.reader import Pack
from tpiedge.testing.cluster import greedy_request
from tpiedge.wire.data import Segment, StepPlan, TableChange


class Recorder(LocalCommunicator):
    """Notes how many rows each all-reduce carries, by block and chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[tuple[int, int], int] = {}

    def all_reduce(self, partial: torch.Tensor, tag: Tag, *, contributes: bool = True) -> torch.Tensor:
        self.rows[tag.block, tag.chunk] = partial.shape[0]
        return super().all_reduce(partial, tag, contributes=contributes)

    def begin_all_reduce(self, partial: torch.Tensor, tag: Tag, *, contributes: bool = True) -> None:
        self.rows[tag.block, tag.chunk] = partial.shape[0]
        super().begin_all_reduce(partial, tag, contributes=contributes)


@pytest.fixture
def engine(
    references: Callable[[str], Reference], packs: Callable[[Reference], Path]
) -> Iterator[tuple[Engine, Recorder]]:
    """One node with three slots."""
    reference, recorder = references("llama-gqa-odd"), Recorder()
    pack, (share,) = Pack.open(packs(reference)), split(reference, "1")
    config = config_of_pack(pack)
    with ExitStack() as stack:
        weights = NodeWeights(pack, share, True)
        stack.callback(weights.close)
        cache = kv_cache(config, share, "f32", 3, 400)
        built = Engine.build(
            config,
            share,
            weights,
            cache,
            recorder,
            epoch=1,
            compute="f32",
            threads=1,
            meter=Meter(),
            grids=(),
        )
        stack.callback(built.close)
        yield built, recorder


@pytest.mark.parametrize("scores", [False, True])
def test_a_prompt_ends_in_one_row(engine: tuple[Engine, Recorder], scores: bool) -> None:
    """Unless the log probabilities of all of its tokens are wanted."""
    built, recorder = engine
    request = replace(greedy_request(range(5, 12), 1), prompt_scores=scores)
    built.leader(Serving(64), StepLimits(100, 4)).generate(request, lambda _: None, lambda: False)
    last = 2 * built.config.num_layers - 1
    rows = {chunk: rows for (block, chunk), rows in recorder.rows.items() if block == last}
    assert rows == ({0: 4, 1: 3} if scores else {0: 1})
    others = [(chunk, rows) for (block, chunk), rows in recorder.rows.items() if block < last]
    assert others == [(0, 4), (1, 3)] * last


def run(
    engine: Engine, step: int, segments: Sequence[tuple[int, list[int]]], *, all_positions: bool = False
) -> torch.Tensor:
    """Hidden states of texts that begin in their slots."""
    ids = [token for _, text in segments for token in text]
    x_TH = engine.weights.embedding_rows(ids)
    parts = tuple(
        Segment(slot, 0, len(text), len(text), len(text) if all_positions else 1) for slot, text in segments
    )
    tables = tuple(TableChange(slot, 0, (slot,), 0) for slot, _ in segments)
    engine.forward.run(x_TH, StepPlan(1, step, parts, 4, len(ids), tables=tables))
    return x_TH


def test_every_sequence_of_a_step_has_its_last_row(engine: tuple[Engine, Recorder]) -> None:
    built, recorder = engine
    texts = [(2, [7, 8, 9]), (0, [3]), (1, [11, 12, 13, 14, 15])]
    whole = run(built, 1, texts, all_positions=True)
    ends = [2, 3, 8]
    recorder.rows.clear()
    together = run(built, 2, texts)
    assert recorder.rows[2 * built.config.num_layers - 1, 0] == 3
    torch.testing.assert_close(together[ends], whole[ends], rtol=1e-5, atol=1e-5)
    for at, (slot, text) in enumerate(texts):
        alone = run(built, 3 + at, [(slot, text)])
        torch.testing.assert_close(alone[-1], whole[ends[at]], rtol=1e-4, atol=1e-4)
