import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.unit.memory.conftest import MakePack, narrow
from tpiedge.errors import IntegrityError, InternalError, ReadFault, TpiedgeError
from tpiedge.memory.residency import Read, Residency
from tpiedge.memory.scheduler import Scheduler
from tpiedge.memory.sweep import Placement, Sweep
from tpiedge.memory.weights import NodeWeights

DEADLINE_S = 10.0


@pytest.fixture
def stream(make_pack: MakePack) -> Iterator[Callable[..., NodeWeights]]:
    made: list[NodeWeights] = []

    def make(placement: Callable[[Sweep], Placement] = narrow, **kwargs: int) -> NodeWeights:
        made.append(NodeWeights(pack := make_pack(layers=4), pack.whole, True, placement, **kwargs))
        return made[-1]

    yield make
    for weights in made:
        weights.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tpiedge-disk")]


def sweep_through(weights: NodeWeights) -> list[torch.Tensor]:
    found = []
    for block in weights.sweep.blocks:
        if block.kind != "head":
            with weights.resident(block) as held:
                found += [matrix.clone() for matrix in held.matrices.values()]
    return found + [tile.clone() for _, tile in weights.head_tiles()]


def test_every_sweep_brings_the_same_bytes(make_pack: MakePack, stream: Callable[..., NodeWeights]) -> None:
    streamed = stream()
    whole = NodeWeights(streamed._pack, streamed._pack.whole, True)
    expected = sweep_through(whole)
    for _ in range(3):
        assert all(map(torch.equal, sweep_through(streamed), expected))
    assert streamed.disk_busy_s > 0
    whole.close()


def cut(path: Path, offset: int) -> None:
    os.truncate(path, offset)


def alter(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"\x55")


@pytest.mark.parametrize(
    ("harm", "kind", "words"),
    [(cut, ReadFault, "of {}: the file ends"), (alter, IntegrityError, "unit 1 of gate of {} is damaged")],
)
def test_file_changed_while_node_runs_is_named(
    stream: Callable[..., NodeWeights],
    harm: Callable[[Path, int], None],
    kind: type[TpiedgeError],
    words: str,
) -> None:
    streamed = stream()
    sweep_through(streamed)
    path, matrix = streamed._pack.blob_path(2), streamed._pack.layout(2).matrix("gate")
    offset, _ = matrix.span(1, 2)
    harm(path, offset)
    seen: list[BaseException] = []
    for _ in range(3):  # the first sweep may have been read before; afterwards it stays broken
        try:
            sweep_through(streamed)
        except TpiedgeError as error:
            seen.append(error)
    assert len(seen) >= 2
    for error in seen:
        assert isinstance(error, kind)
        assert words.format(path) in str(error)


class SlowDisk:
    """A loader whose reads end when the test says so."""

    def __init__(self) -> None:
        self.reads: list[tuple[Read, Callable[[TpiedgeError | None], None]]] = []
        self.asked = threading.Semaphore(0)
        self.bytes_read = 0

    def read(self, order: Read, done: Callable[[TpiedgeError | None], None]) -> None:
        self.reads.append((order, done))
        self.asked.release()

    def drop(self, piece: int | None) -> None:
        raise AssertionError("nothing is pinned, and everything passes through the ring")

    def await_reads(self, count: int) -> None:
        for _ in range(count):
            assert self.asked.acquire(timeout=DEADLINE_S)

    def finish(self, error: TpiedgeError | None = None) -> None:
        self.await_reads(1)
        self.bring(error)

    def bring(self, error: TpiedgeError | None = None) -> None:
        self.reads.pop(0)[1](error)


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


def scheduler(disk: SlowDisk, **kwargs: float) -> Scheduler:
    return Scheduler(Residency([[1], [1], [1]], 2, frozenset(), 10), disk, **kwargs)


def in_thread(work: Callable[[], None]) -> tuple[threading.Thread, list[TpiedgeError]]:
    errors: list[TpiedgeError] = []

    def run() -> None:
        try:
            work()
        except TpiedgeError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def test_a_failed_read_is_raised_by_every_later_entry(disk: SlowDisk) -> None:
    memory = scheduler(disk)
    thread, errors = in_thread(lambda: memory.enter(0))
    fault = ReadFault(Path("blob"), 0, 1, "broken")
    disk.finish(fault)
    thread.join(DEADLINE_S)
    assert errors == [fault]
    with pytest.raises(ReadFault):
        memory.enter(1)
    memory.close()


def test_closing_ends_a_wait(disk: SlowDisk) -> None:
    memory = scheduler(disk)
    thread, errors = in_thread(lambda: memory.enter(0))
    assert disk.asked.acquire(timeout=DEADLINE_S)
    memory.close()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [InternalError]


@pytest.mark.fault("P16", "an error with the file")
def test_stalled_disk_raises_error(disk: SlowDisk) -> None:
    memory = scheduler(disk, stall_s=0.05)
    with pytest.raises(TpiedgeError, match="the disk brought nothing for"):
        memory.enter(0)
    memory.close()


def test_no_read_starts_after_close(disk: SlowDisk) -> None:
    """Nor does one of a reading thread, whose pool may be closing: it would wait for itself."""
    memory = scheduler(disk)
    thread, _ = in_thread(lambda: memory.preload(lambda: None))
    disk.finish()
    disk.finish()
    thread.join(DEADLINE_S)
    memory.enter(0)
    memory.close()
    memory.leave()
    assert not disk.reads


def test_reader_thread_failure_is_raised_in_waiting_thread(
    disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Scheduler(Residency([[1], [1]], 2, frozenset(), 1), disk)
    thread, errors = in_thread(lambda: memory.preload(lambda: None))
    disk.await_reads(1)
    monkeypatch.setattr(disk, "read", lambda _order, _done: int("a bug"))
    disk.bring()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    (error,) = errors
    assert str(error).startswith("the memory scheduler failed: ValueError: ")


def test_thread_start_failure_raises_internal_error(disk: SlowDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_order: Read, _done: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(disk, "read", refuse)
    with pytest.raises(
        InternalError, match="the memory scheduler failed: RuntimeError: can't start new thread"
    ):
        scheduler(disk).preload(lambda: None)
