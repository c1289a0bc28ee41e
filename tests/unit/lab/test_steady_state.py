"""The steady conditions: by hand for a few numbers, and against a sweep that is played through for many."""

from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.errors import InternalError
from tpiedge.lab.steady_state import (
    Sides,
    Streaming,
    steady_placement,
    streaming,
)
from tpiedge.memory.pinning import Placement
from tpiedge.memory.residency import Instruction, Read, Residency, smallest_ring


def test_ring_of_one_block_ahead_waits_where_the_tight_condition_fails() -> None:
    """Attention (8 bytes, work 5) and FFN (12 bytes, work 15), a byte per second, room for both: the 12 bytes are
    read during 5 of work, so 7 are waited for; the 8 are covered by 15."""
    node = Streaming((5, 15), ((8,), (12,)), 20, 1)
    assert node.sweep == Sides(20, 20)
    assert node.tight == Sides(5, 12)
    assert node.stretch == Sides(5, 12)
    assert not node.loose
    assert node.stalls_s == pytest.approx((0, 7), rel=0.02)
    assert node.hidden == pytest.approx(1 - 7 / 20, rel=0.02)


def test_room_for_a_block_more_hides_what_the_tight_condition_does_not() -> None:
    """With 12 bytes more each FFN block is read while the one before computes, too."""
    node = Streaming((5, 15, 5, 15), ((8,), (12,), (8,), (12,)), 32, 1)
    assert not node.tight.holds
    assert node.loose
    assert node.stalls_s == (0, 0, 0, 0)
    assert node.hidden == 1.0


def test_a_slow_disk_decides() -> None:
    """20 of reads against 6 of work: 14 are waited for, wherever."""
    node = Streaming((2, 4), ((8,), (12,)), 20, 1)
    assert node.stall_s == pytest.approx(14, rel=0.05)
    assert node.hidden == pytest.approx(0.3, abs=0.02)


def test_nothing_is_waited_for_where_nothing_is_streamed() -> None:
    node = Streaming((1, 2), ((), ()), 0, 1)
    assert (node.loose, node.stall_s, node.hidden) == (True, 0, 1.0)
    assert node.tight.holds


def test_pinned_pieces_cost_no_reads() -> None:
    node = streaming([[4, 4], [6]], [9, 9], Placement(10, frozenset({1})), 2.0)
    assert node.streamed == [[4], [6]]
    assert node.sweep == Sides(18, 5.0)


def test_a_ring_must_hold_a_block() -> None:
    with pytest.raises(InternalError):
        Streaming((1,), ((3, 3),), 5, 1)


def test_least_memory_that_reaches_the_steady_state() -> None:
    """Each of ten blocks of 60 bytes takes 60 s to read and 31 to work: less than half of them may be streamed."""
    blocks, work_s = [[20, 20, 20]] * 10, [31.0] * 10
    found = steady_placement(blocks, work_s, 1.0)
    assert streaming(blocks, work_s, found, 1.0).loose
    assert 600 - 310 <= found.pinned_bytes([20] * 30) < 600
    assert steady_placement(blocks, [1e-3] * 10, 1.0).ring_bytes == 0, "only all of them are enough"


# --- many sweeps, in whole seconds and bytes so that every sum is exact

SIZES = st.lists(st.integers(1, 9), max_size=3)
BLOCKS = st.lists(st.tuples(st.integers(1, 12), SIZES), min_size=1, max_size=7)
ROOM = st.integers(0, 30)


def node_of(blocks: list[tuple[int, list[int]]], room: int) -> Streaming:
    streamed = [sizes for _, sizes in blocks]
    return Streaming([work for work, _ in blocks], streamed, max(map(sum, streamed)) + room, 1)


@given(BLOCKS, ROOM)
def test_nothing_is_waited_for_if_and_only_if_the_loose_condition_holds(
    blocks: list[tuple[int, list[int]]], room: int
) -> None:
    node = node_of(blocks, room)
    assert node.loose == (node.stall_s == 0)


@given(BLOCKS, ROOM)
def test_a_sweep_lasts_as_long_as_the_longer_of_work_and_reads(
    blocks: list[tuple[int, list[int]]], room: int
) -> None:
    node = node_of(blocks, room)
    work_s, load_s = node.sweep.work_s, node.sweep.load_s
    first_reads = max(map(sum, node.streamed))
    assert node.stall_s * 64 >= (load_s - work_s) * 64 - load_s
    assert node.stall_s * 64 <= load_s * 64 + first_reads
    assert 0 <= node.hidden <= 1


@given(BLOCKS, ROOM, st.integers(1, 10))
def test_a_larger_ring_never_waits_longer(blocks: list[tuple[int, list[int]]], room: int, more: int) -> None:
    assert node_of(blocks, room + more).stall_s <= node_of(blocks, room).stall_s


@given(BLOCKS, ROOM, st.integers(2, 5))
def test_a_faster_disk_never_waits_longer(
    blocks: list[tuple[int, list[int]]], room: int, factor: int
) -> None:
    node = node_of(blocks, room)
    faster = replace(node, disk_bytes_per_s=factor * node.disk_bytes_per_s)
    assert faster.stall_s <= node.stall_s + 1e-9


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=2, max_size=7))
def test_with_room_for_one_block_ahead_loose_is_tight(blocks: list[tuple[int, int]]) -> None:
    """Blocks of one size, two of which fit: each is read while the one before is computed."""
    size = blocks[0][1]
    node = Streaming([work for work, _ in blocks], [[size]] * len(blocks), 2 * size, 1)
    assert node.loose == node.tight.holds


# --- against the machine that decides in a node


class Played:
    """The residency machine with a disk that brings a byte in a second, and an engine that works."""

    def __init__(self, node: Streaming) -> None:
        self.node = node
        self.machine = Residency(node.streamed, node.ring_bytes, frozenset(), 1 << 40)
        self.sizes = [size for sizes in node.streamed for size in sizes]
        self.coming: deque[tuple[float, int]] = deque()
        self.disk = self.now = self.waited = 0.0

    def sweeps(self, count: int) -> float:
        """Seconds of waiting from a full ring on."""
        self.order(self.machine.start(), 0.0)
        while self.coming:
            self.arrive()
        self.disk = 0.0
        for block in list(range(len(self.node.work_s))) * count:
            self.pass_block(block)
        return self.waited

    def pass_block(self, block: int) -> None:
        self.order(self.machine.enter(block), self.now)
        entered = self.now
        while not self.machine.ready(block):
            self.now = max(self.now, self.arrive())
        self.waited += self.now - entered
        self.now += self.node.work_s[block]
        while self.coming and self.coming[0][0] <= self.now:
            self.arrive()
        self.order(self.machine.leave(), self.now)

    def order(self, instructions: list[Instruction], at: float) -> None:
        for instruction in instructions:
            assert isinstance(instruction, Read)
            self.disk = max(self.disk, at) + self.sizes[instruction.piece]
            self.coming.append((self.disk, instruction.ticket))

    def arrive(self) -> float:
        """The next read is complete."""
        at, ticket = self.coming.popleft()
        self.order(self.machine.loaded(ticket), at)
        return at


ALIKE = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=7)


@given(ALIKE, st.integers(1, 9), st.integers(0, 8))
def test_it_is_what_the_residency_machine_does(shapes: list[tuple[int, int]], size: int, more: int) -> None:
    """Pieces of one size, so that nothing stays empty at the end of the ring."""
    streamed = [[size] * pieces for _, pieces in shapes]
    ring = smallest_ring(streamed, frozenset()) + more * size
    node = Streaming([work for work, _ in shapes], streamed, ring, 1)
    waited = Played(node).sweeps(64)
    if node.sweep.holds:
        assert waited / 64 == node.stall_s
    else:  # in the node the ring was full at first
        assert waited / 64 == pytest.approx(node.stall_s, abs=2 * (ring + node.sweep.load_s) / 64)
