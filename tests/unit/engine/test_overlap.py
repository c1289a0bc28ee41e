import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tpiedge.collectives.communicator import Tag
from tpiedge.engine.meter import Meter
from tpiedge.engine.steps import ChunkRows, OverlappedReduces, StepCancelled
from tpiedge.kernels.grid import NOT_A_NUMBER, PLAIN_END, BlockEnd, Grid
from tpiedge.kernels.linear import Arithmetic, Linear
from tpiedge.wire.fields import WirePrecision

HIDDEN = 4


class Recorder:
    """A communicator that notes what is asked of it; the sum of all ranks is twice what this one gives."""

    rank, size = 0, 2

    def __init__(self, cancel_at: Tag | None = None) -> None:
        self.calls: list[tuple[str, int, int]] = []
        self.contributions: dict[Tag, bool] = {}
        self.cancelled = False
        self._cancel_at = cancel_at
        self._begun: dict[Tag, Tensor] = {}
        self.kinds: list[torch.dtype] = []

    def all_reduce(self, partial: Tensor, tag: Tag, *, contributes: bool = True) -> Tensor:
        self._note("reduce", partial, tag, contributes)
        self.cancelled = tag == self._cancel_at
        return 2 * partial if contributes else torch.ones_like(partial)

    def begin_all_reduce(self, partial: Tensor, tag: Tag, *, contributes: bool = True) -> None:
        self._note("begin", partial, tag, contributes)
        self._begun[tag] = 2 * partial if contributes else torch.ones_like(partial)

    def finish_all_reduce(self, tag: Tag) -> Tensor:
        self.calls.append(("finish", tag.block, tag.chunk))
        self.cancelled = tag == self._cancel_at
        return self._begun.pop(tag)

    @property
    def under_way(self) -> int:
        return len(self._begun)

    def _note(self, call: str, partial: Tensor, tag: Tag, contributes: bool) -> None:
        self.calls.append((call, tag.block, tag.chunk))
        self.contributions[tag] = contributes
        self.kinds.append(partial.dtype)


def chunk_rows(x_TH: Tensor, count: int) -> list[ChunkRows]:
    height = x_TH.shape[0] // count
    return ChunkRows.of(x_TH, [slice(i * height, (i + 1) * height) for i in range(count)])


def overlapped(recorder: Recorder, wire: WirePrecision = "f32") -> OverlappedReduces:
    return OverlappedReduces(recorder, Meter(), None, wire)  # type: ignore[arg-type]


@given(chunks=st.integers(2, 9), blocks=st.integers(1, 4), data=st.data())
def test_all_reduces_finish_in_order_with_at_most_two_pending(
    chunks: int, blocks: int, data: st.DataObject
) -> None:
    recorder = Recorder()
    x_TH = torch.zeros(chunks, HIDDEN)
    one = overlapped(recorder)
    for block in range(blocks):
        for rows in chunk_rows(x_TH, chunks):
            if data.draw(st.booleans()):
                one.finish(rows)
            one.all_reduce(rows, torch.ones(1, HIDDEN), Tag(1, block, rows.index), wait=False)
            assert recorder.under_way <= 2
    one.finish()
    assert recorder.under_way == 0
    begun = [call[1:] for call in recorder.calls if call[0] == "begin"]
    assert begun == [call[1:] for call in recorder.calls if call[0] == "finish"]
    assert torch.equal(x_TH, torch.full((chunks, HIDDEN), 2.0 * blocks))


@pytest.mark.parametrize("cancel_at", [Tag(1, 0, 0), Tag(1, 0, 1), Tag(1, 1, 0)])
def test_cancelled_step_ends_at_the_reduce_that_reports_it(cancel_at: Tag) -> None:
    recorder = Recorder(cancel_at)
    x_TH = torch.zeros(2, HIDDEN)
    one = overlapped(recorder)
    with pytest.raises(StepCancelled, match=f"step 1 was cancelled after block {cancel_at.block}"):  # noqa: PT012
        for block in range(2):
            for rows in chunk_rows(x_TH, 2):
                one.finish(rows)
                one.all_reduce(rows, torch.ones(1, HIDDEN), Tag(1, block, rows.index), wait=False)
        one.finish()
    assert recorder.calls[-1] == ("finish", cancel_at.block, cancel_at.chunk)
    expected = 2.0 * cancel_at.block
    assert x_TH[cancel_at.chunk].tolist() == [expected] * HIDDEN


GRID = Grid(-3)
SUMS = {torch.int32: [8, -4, 3, 1 << 29], torch.int64: [8, -4, 3, NOT_A_NUMBER // 2]}


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("kind", SUMS)
def test_grid_sums_are_sent_as_integers(kind: torch.dtype, native: bool, wait: bool) -> None:
    recorder = Recorder()
    x_TH = torch.full((1, HIDDEN), 0.5)
    (rows,) = chunk_rows(x_TH, 1)
    with Linear.create(Arithmetic.F32, 1) as linear:
        one = OverlappedReduces(recorder, Meter(), linear.pool if native else None)  # type: ignore[arg-type]
        one.all_reduce(
            rows,
            torch.tensor([SUMS[kind]], dtype=kind),
            Tag(1, 0, 0),
            BlockEnd(torch.ones(HIDDEN)),
            GRID,
            wait=wait,
        )
        one.finish()
    assert recorder.kinds == [kind]
    assert x_TH[0, :3].tolist() == [3.5, 0.5, 2.25]
    if kind is torch.int64:
        assert x_TH[0, 3].isnan()
    else:
        assert x_TH[0, 3] == 2.0**27


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("wire", ["bf16", "int8"])
def test_rounded_partial_sums_are_sent_as_f32(wire: WirePrecision, wait: bool) -> None:
    for partial, added in (
        (torch.tensor([[8, -4, 3, 0]], dtype=torch.int64), [2.0, -1.0, 0.75, 0.0]),
        (None, [1.0] * 4),
    ):
        recorder = Recorder()
        x_TH = torch.zeros(1, HIDDEN)
        (rows,) = chunk_rows(x_TH, 1)
        one = overlapped(recorder, wire)
        one.all_reduce(rows, partial, Tag(1, 0, 0), PLAIN_END, GRID, wait=wait)
        one.finish()
        assert recorder.kinds == [torch.float32]
        assert x_TH.tolist() == [added]
