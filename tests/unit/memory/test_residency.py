import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tpiedge.errors import InternalError
from tpiedge.memory.residency import Drop, Instruction, Read, Residency, smallest_ring

NOTHING: frozenset[int] = frozenset()


@pytest.mark.parametrize(
    ("blocks", "pinned", "expected"),
    [
        ([[5], [7], [3]], NOTHING, 7),
        ([[5, 2], [7]], NOTHING, 12),
        ([[5, 2], [7]], {0}, 7),
        ([[5, 2], [7]], {0, 1, 2}, 0),
        ([[], [4], []], NOTHING, 4),
    ],
)
def test_smallest_ring_has_expected_size(blocks: list[list[int]], pinned: set[int], expected: int) -> None:
    assert smallest_ring(blocks, pinned) == expected


def test_read_ahead_fills_ring_and_wraps_around_sweep() -> None:
    machine = Residency([[1], [1], [1]], 2, NOTHING, 9)
    assert machine.start() == [Read(1, 0, 0), Read(2, 1, 1)]
    assert machine.enter(0) == []
    assert machine.places(0) is None
    assert machine.loaded(1) == []
    assert machine.places(0) == [0]
    assert machine.leave() == [Read(3, 2, 0)]
    assert [machine.loaded(ticket) for ticket in (2, 3)] == [[], []]
    assert machine.enter(1) == []
    assert machine.leave() == [Read(4, 0, 1)]


def test_aborted_sweep_discards_its_read_ahead() -> None:
    machine = Residency([[1], [1], [1], [1]], 2, NOTHING, 9)
    machine.start()
    machine.enter(0)
    machine.loaded(1)
    assert machine.leave() == [Read(3, 2, 0)]
    machine.loaded(2)
    machine.loaded(3)
    assert machine.enter(0) == [Read(4, 0, 0), Read(5, 1, 1)]
    assert machine.places(0) is None
    machine.loaded(4)
    assert machine.places(0) == [0]


def test_reads_in_flight_are_limited() -> None:
    machine = Residency([[3], [3], [3]], 9, NOTHING, 4)
    assert machine.start() == [Read(1, 0, 0), Read(2, 1, 3)]
    assert machine.loaded(1) == [Read(3, 2, 6)]


def test_unpinned_piece_is_dropped_after_its_pending_read() -> None:
    machine = Residency([[1], [1]], 1, {0, 1}, 9)
    machine.start()
    machine.loaded(1)
    assert machine.repin({0}) == []
    assert machine.loaded(2) == [Drop(1), Read(3, 1, 0)]
    assert machine._pins == {0: True}
    machine.loaded(3)
    assert machine.repin({0, 1}) == [Drop(None), Read(4, 1, None)]
    machine.enter(0)
    with pytest.raises(InternalError, match="inside a block"):
        machine.repin({0})


def test_block_places_tell_pinned_from_ring_pieces() -> None:
    machine = Residency([[1, 1], [1], []], 1, {0, 2}, 9)
    machine.start()
    for ticket in (1, 2, 3):
        machine.loaded(ticket)
    for block, expected in ((0, [None, 0]), (1, [None]), (2, [])):
        machine.enter(block)
        assert machine.places(block) == expected
        machine.leave()


def test_unused_ring_is_released() -> None:
    machine = Residency([[1], [1], [1]], 2, {0}, 2)
    assert machine.start() == [Read(1, 0, None), Read(2, 1, 0)]
    assert machine.loaded(1) == [Read(3, 2, 1)]
    machine.loaded(2)
    assert machine.repin({0, 1, 2}) == []
    assert machine.loaded(3) == [Drop(None), Read(4, 1, None), Read(5, 2, None)]
    machine.loaded(4)
    machine.loaded(5)
    for block in range(3):
        assert machine.enter(block) == []
        assert machine.places(block) == [None]
        assert machine.leave() == []
    assert machine.repin({0}) == [Drop(1), Drop(2), Read(6, 1, 0), Read(7, 2, 1)]


def test_too_small_ring_raises_internal_error() -> None:
    with pytest.raises(InternalError, match="8 bytes is too small: 9 are needed"):
        Residency([[9]], 8, NOTHING, 1)
    machine = Residency([[9]], 8, {0}, 1)
    with pytest.raises(InternalError, match="8 bytes is too small: 9 are needed"):
        machine.repin(NOTHING)


class Schedules(RuleBasedStateMachine):
    """A disk that brings what it was asked for in any order, or fails, and an engine that goes through the blocks,
    mostly. What waits for a read that failed is given up, as the scheduler does."""

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.blocks = data.draw(st.lists(st.lists(st.integers(1, 9), max_size=4), min_size=1, max_size=6))
        self.sizes = [size for block in self.blocks for size in block]
        self.ring_bytes = smallest_ring(self.blocks, NOTHING) + data.draw(st.integers(0, 30))
        reading = data.draw(st.integers(1, 40))
        self.allowed = self.some_pieces(data)  # to be pinned
        self.machine = Residency(self.blocks, self.ring_bytes, self.allowed, reading)
        self.may_fail = data.draw(st.booleans())
        self.asked: dict[int, Read] = {}
        self.failed: dict[int, Read] = {}
        self.own: set[int] = set()  # pieces whose own place is filled
        self.ring: dict[int, int] = {}  # the piece that was read to an offset, as far as nothing lies over it
        self.entered: int | None = None
        self.next = 0
        self.obey(self.machine.start())

    def some_pieces(self, data: st.DataObject) -> frozenset[int]:
        return data.draw(st.frozensets(st.sampled_from(range(len(self.sizes))))) if self.sizes else NOTHING

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def a_read_ends(self, data: st.DataObject) -> None:
        self.finish(data.draw(st.sampled_from(sorted(self.asked))))

    @precondition(lambda self: self.asked and self.may_fail)
    @rule(data=st.data())
    def a_read_fails(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.asked)))
        self.failed[ticket] = self.asked.pop(ticket)

    @precondition(lambda self: self.entered is None)
    @rule(data=st.data(), jump=st.integers(0, 5))
    def enter(self, data: st.DataObject, jump: int) -> None:
        self.entered = self.next if jump else data.draw(st.sampled_from(range(len(self.blocks))))
        self.obey(self.machine.enter(self.entered))

    @precondition(lambda self: self.entered is not None)
    @rule()
    def compute_and_leave(self) -> None:
        assert self.entered is not None
        while self.asked and self.machine.places(self.entered) is None:
            self.finish(min(self.asked))
        if self.machine.places(self.entered) is not None:
            self.check_the_block()
        else:
            assert self.failed, "nothing is read, and the block does not become ready"
        self.next = (self.entered + 1) % len(self.blocks)
        self.entered = None
        self.obey(self.machine.leave())

    @precondition(lambda self: self.entered is None)
    @rule(data=st.data())
    def repin(self, data: st.DataObject) -> None:
        self.allowed = self.some_pieces(data)
        self.obey(self.machine.repin(self.allowed))

    @invariant()
    def the_laws_hold(self) -> None:
        if not hasattr(self, "machine"):
            return
        assert sum(entry.nbytes for entry in self.machine._ring) <= self.ring_bytes
        assert self.machine.idle == (not self.under_way)
        assert self.own <= self.allowed
        reading = {read.piece for read in self.under_way if read.offset is None}
        assert self.machine._pins == dict.fromkeys(reading, False) | dict.fromkeys(self.own, True)
        if self.entered is not None and self.machine.places(self.entered) is not None:
            self.check_the_block()

    @property
    def under_way(self) -> list[Read]:
        return [*self.asked.values(), *self.failed.values()]

    def obey(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Drop) and instruction.piece is not None:
                self.own.remove(instruction.piece)
            elif isinstance(instruction, Drop):
                assert not self.machine._ring
                assert not [read for read in self.under_way if read.offset is not None]
                self.ring.clear()
            else:
                self.begin_read(instruction)

    def begin_read(self, read: Read) -> None:
        if read.offset is None:
            assert read.piece not in self.own
            assert read.piece not in {one.piece for one in self.under_way if one.offset is None}
        else:
            assert 0 <= read.offset <= self.ring_bytes - self.sizes[read.piece]
            assert not any(self.overlap(read, other) for other in self.under_way)
            for offset, piece in list(self.ring.items()):
                if self.overlap(read, Read(0, piece, offset)):
                    del self.ring[offset]
        self.asked[read.ticket] = read

    def overlap(self, one: Read, other: Read) -> bool:
        if one.offset is None or other.offset is None:
            return False
        return (
            one.offset < other.offset + self.sizes[other.piece]
            and other.offset < one.offset + self.sizes[one.piece]
        )

    def finish(self, ticket: int) -> None:
        read = self.asked.pop(ticket)
        if read.offset is None:
            self.own.add(read.piece)
        else:
            self.ring[read.offset] = read.piece
        self.obey(self.machine.loaded(ticket))

    def check_the_block(self) -> None:
        assert self.entered is not None
        first = sum(map(len, self.blocks[: self.entered]))
        places = self.machine.places(self.entered) or ()
        assert len(places) == len(self.blocks[self.entered])
        for piece, offset in enumerate(places, first):
            assert piece in self.own if offset is None else self.ring.get(offset) == piece


@pytest.mark.fault("P21", "no block is computed before its bytes are there")
class TestSchedules(Schedules.TestCase):
    settings = settings(max_examples=150, stateful_step_count=50)
