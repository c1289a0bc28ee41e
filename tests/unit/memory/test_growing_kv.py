"""Pinned pieces, ring and KV cache share one budget, whatever requests come: the two machines run together."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tpiedge.kv.pages import NameKeys, PagePool
from tpiedge.memory.residency import Drop, Instruction, Read, Residency, smallest_ring
from tpiedge.memory.sweep import Placement, SparePins, place

POSITION_BYTES = 1  # of one layer
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=4)


@st.composite
def some_blocks(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    layers = draw(st.integers(1, 12))
    head = draw(st.lists(st.integers(1, 40), max_size=2))
    return [draw(SIZES), draw(SIZES)] * layers + [[size] for size in head], layers


class Device:
    """A node's memory while it takes steps: what is resident, after every event."""

    def __init__(
        self, blocks: list[list[int]], layers: int, room: int, capacity: int, grain: int, reading_bytes: int
    ) -> None:
        sizes = [size for block in blocks for size in block]
        found = place(blocks, room)
        assert isinstance(found, Placement)
        self.blocks, self.layers, self.ring_bytes = blocks, layers, found.ring_bytes
        self.budget = room + capacity * layers * POSITION_BYTES
        self.kv_bytes = capacity * layers * POSITION_BYTES
        self.spare = SparePins(sizes, found)
        self.pool = PagePool(capacity, 1, NameKeys(b"key", b"key"), grain)
        self.pages = 0  # in memory, of one position each
        self.written = [0] * layers
        self.sizes = sizes
        self.machine = Residency(
            blocks,
            found.ring_bytes,
            self.spare.placement(self.kv_bytes).pinned,
            reading_bytes,
        )
        self.reads: list[Read] = []
        self.ring_filled = False
        self.over = 0  # bytes beyond the budget, at the worst moment
        self.obey(self.machine.start())
        self.read_all()

    def step(self, stop: int, reach: int, head: bool) -> None:
        self.pages = min(max(self.pages, stop), self.pool.bound(max(stop, reach)))
        self.written = [min(written, self.pages) for written in self.written]
        held = self.pages * self.layers * POSITION_BYTES
        self.obey(self.machine.repin(self.spare.placement(self.kv_bytes - held).pinned))
        for number in range(len(self.blocks) if head else 2 * self.layers):
            self.obey(self.machine.enter(number))
            while self.machine.places(number) is None:
                self.read_one()
            if number % 2 == 0 and number < 2 * self.layers:
                self.written[number // 2] = max(self.written[number // 2], stop)
            self.measure()
            self.obey(self.machine.leave())
            self.measure()

    def read_one(self) -> None:
        self.obey(self.machine.loaded(self.reads.pop(0).ticket))

    def read_all(self) -> None:
        while self.reads:
            self.read_one()

    def obey(self, instructions: list[Instruction]) -> None:
        for one in instructions:
            if one == Drop(None):
                self.ring_filled = False
            elif isinstance(one, Read):
                self.reads.append(one)
                self.ring_filled |= one.offset is not None
        self.measure()

    def measure(self) -> None:
        used = (
            self.ring_filled * self.ring_bytes
            + sum(self.sizes[piece] for piece in self.machine._pins)
            + sum(self.written) * POSITION_BYTES
        )
        self.over = max(self.over, used - self.budget)


@settings(max_examples=300)
@given(st.data(), some_blocks(), st.integers(1, 200), st.integers(1, 30), st.integers(1, 500))
def test_weights_and_kv_cache_share_a_budget(
    data: st.DataObject, model: tuple[list[list[int]], int], capacity: int, grain: int, reading: int
) -> None:
    blocks, layers = model
    least = smallest_ring(blocks, frozenset())
    room = data.draw(st.integers(least, max(least, sum(map(sum, blocks)))))
    device = Device(blocks, layers, room, capacity, grain, reading)
    requests = data.draw(
        st.lists(st.tuples(st.integers(1, capacity), st.integers(0, 5), st.integers(1, 3)), max_size=6)
    )
    for prompt, answer, steps in requests:
        for step in range(1, steps + 1):
            device.step(prompt * step // steps, prompt, step == steps)
        for stop in range(prompt + 1, min(prompt + answer, capacity) + 1):
            device.step(stop, stop, True)
    assert device.over == 0
