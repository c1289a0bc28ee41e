"""The native all-reduce when libzmq does what it seldom does: a libzmq made of Python stands in for it."""

import ctypes
import errno
import struct
from collections import deque
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tpiedge.collectives.arrays import F32Array
from tpiedge.collectives.codec import CODECS
from tpiedge.transport.native_library import TransportLibrary, transport_library
from tpiedge.transport.native_reducer import DONE, Combine, Exchange, NativeReducer
from tpiedge.wire.fields import WirePrecision
from tpiedge.wire.flat import FLAT_BYTES
from tpiedge.wire.tensors import SummandPrecision

pytestmark = pytest.mark.skipif(transport_library() is None, reason="native: the transport is not built")

_int, _size, _pointer = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
PLACE = bytes(range(16))
PLACE_AT = 7
HUB, SPOKE = 1, 2
ROUTE = b"node-1/nonce"
OWN, OTHER = (1.0, 2.0), (10.0, 20.0)


def header(first: int, place: bytes = PLACE) -> bytes:
    data = bytearray([first] * FLAT_BYTES)
    data[PLACE_AT : PLACE_AT + len(place)] = place
    return bytes(data)


class FakeZmq:
    """Keeps what is sent in `sent`, gives what is in `incoming` of a socket. Messages are known by their addresses."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.incoming: dict[int, deque[bytes]] = {HUB: deque(), SPOKE: deque()}
        #: How many more frames are taken.
        self.taken = 100
        #: The calls of send and recv that a signal interrupts, by number.
        self.interrupted: set[int] = set()
        #: How many messages there is memory for.
        self.room = 100
        self.calls = 0
        #: Called before every message.
        self.before_recv: Callable[[], None] = lambda: None
        self._messages: dict[int, ctypes.F32Array[ctypes.c_char] | None] = {}
        kinds = [
            (self.init, _int, _pointer),
            (self.init_size, _int, _pointer, _size),
            (self.copy, _int, _pointer, _pointer),
            (self.data, _pointer, _pointer),
            (self.size, _size, _pointer),
            (self.more, _int, _pointer),
            (self.gets, _pointer, _pointer, _pointer),
            (self.send, _int, _pointer, _pointer, _int),
            (self.recv, _int, _pointer, _pointer, _int),
            (self.close, _int, _pointer),
        ]
        self._functions = [ctypes.CFUNCTYPE(*types, use_errno=True)(method) for method, *types in kinds]

    @property
    def addresses(self) -> list[int]:
        return [ctypes.cast(function, _pointer).value or 0 for function in self._functions]

    @property
    def open(self) -> int:
        """How many messages nobody has closed."""
        return len(self._messages)

    def init(self, message: int) -> int:
        self._messages[message] = (ctypes.c_char * 0)()
        return 0

    def init_size(self, message: int, count: int) -> int:
        self.room -= 1
        self._messages[message] = (ctypes.c_char * count)() if self.room >= 0 else None
        return 0 if self.room >= 0 else -1

    def copy(self, to: int, source: int) -> int:
        self._messages[to] = self._buffer(source)
        return 0

    def data(self, message: int) -> int:
        return ctypes.addressof(self._buffer(message))

    def size(self, message: int) -> int:
        return len(self._buffer(message))

    def more(self, _message: int) -> int:
        return 0

    def gets(self, _message: int, _name: int) -> None:
        return None

    def send(self, message: int, _socket: int, _flags: int) -> int:
        if self._is_interrupted() or not self.taken:
            return -1
        self.taken -= 1
        self.sent.append(self._buffer(message).raw)
        return self.init(message)

    def recv(self, message: int, socket: int, _flags: int) -> int:
        if self._is_interrupted() or not self.incoming[socket]:
            return -1
        self.before_recv()
        data = self.incoming[socket].popleft()
        self._messages[message] = (ctypes.c_char * len(data)).from_buffer_copy(data)
        return len(data)

    def close(self, message: int) -> int:
        self._buffer(message)
        del self._messages[message]
        return 0

    def _is_interrupted(self) -> bool:
        self.calls += 1
        ctypes.set_errno(errno.EINTR if self.calls in self.interrupted else errno.EAGAIN)
        return self.calls in self.interrupted

    def _buffer(self, message: int) -> "ctypes.F32Array[ctypes.c_char]":
        buffer = self._messages[message]
        # libzmq would follow a null pointer.
        assert buffer is not None, "a message is used for which there was no memory"
        return buffer


class Rank:
    """`run` does its all-reduces. `ways`: of each peer; their ranks are all but the own."""

    def __init__(
        self,
        zmq: FakeZmq,
        *ways: tuple[int, bytes],
        rank: int = 0,
        combine: Combine = Combine.EXCHANGE,
        changes: ctypes.c_uint32 | None = None,
        precision: SummandPrecision = "f32",
        own: tuple[float, ...] = OWN,
    ) -> None:
        library = transport_library()
        assert library is not None
        self._own = own
        self.scratch = bytearray(4 * len(OWN))
        others = [peer for peer in range(len(ways) + 1) if peer != rank]
        exchange = Exchange(
            combine,
            rank,
            precision,
            (1, len(OWN)),
            header(100 + rank),
            {f"node-{peer}": header(100 + peer) for peer in others},
            PLACE_AT,
            len(PLACE),
            self.scratch,
        )
        self._zmq = zmq
        self._reducer = NativeReducer(TransportLibrary(library.dll, zmq.addresses), exchange)
        element = ctypes.c_int32 if precision == "i32" else ctypes.c_float
        self._tensor = (element * len(OWN))(*own)
        assert self._reducer.open(ways, ctypes.c_uint32() if changes is None else changes, 0)

    def run(self, place: bytes = PLACE) -> int:
        self._tensor[:] = self._own
        return self._reducer.run(place, ctypes.addressof(self._tensor))

    @property
    def tensor(self) -> tuple[float, ...]:
        return tuple(self._tensor)

    def received(self) -> list[tuple[int, bytes, bytes]]:
        """Hands over what was received and not used."""
        found = [(socket, route, bytes(frame.buffer)) for socket, route, frame in self._reducer.received()]
        self._reducer.release()
        return found

    def close(self) -> None:
        self._reducer.close()
        assert self._zmq.open == 0


def frame(rank: int, values: tuple[float, ...], place: bytes = PLACE) -> bytes:
    return header(100 + rank, place) + struct.pack("<2f", *values)


OWN_FRAME, OTHER_FRAME = frame(0, OWN), frame(1, OTHER)
SUM = tuple(a + b for a, b in zip(OWN, OTHER, strict=True))


@pytest.fixture(params=[(HUB, ROUTE), (SPOKE, b"")], ids=["router", "dealer"])
def way(request: pytest.FixtureRequest) -> tuple[int, bytes]:
    way: tuple[int, bytes] = request.param
    return way


def parts(route: bytes, frame: bytes) -> list[bytes]:
    return [route, frame] if route else [frame]


def give(zmq: FakeZmq, way: tuple[int, bytes], frame: bytes) -> None:
    zmq.incoming[way[0]].extend(parts(way[1], frame))


def test_it_is_done_in_one_call(way: tuple[int, bytes]) -> None:
    zmq = FakeZmq()
    rank = Rank(zmq, way)
    give(zmq, way, OTHER_FRAME)
    assert rank.run() == DONE
    assert rank.tensor == SUM
    assert zmq.sent == parts(way[1], OWN_FRAME)
    rank.close()


UNEVEN = (0.3, -2.83), (1.52, 0.23)


def packed(precision: WirePrecision, values: F32Array) -> bytes:
    return bytes(CODECS[precision].encode(values))


def rounded(precision: WirePrecision, values: F32Array) -> F32Array:
    return CODECS[precision].decode(packed(precision, values), values.shape)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize("combine", [Combine.EXCHANGE, Combine.SUM])
def test_every_part_is_rounded_and_so_is_the_sum(combine: Combine, precision: WirePrecision) -> None:
    zmq = FakeZmq()
    rank = Rank(zmq, (SPOKE, b""), combine=combine, precision=precision, own=UNEVEN[0])
    own, other = (np.array([values], np.float32) for values in UNEVEN)
    give(zmq, (SPOKE, b""), header(101) + packed(precision, other))
    summed = rounded(precision, own) + rounded(precision, other)
    # It shows where one of them is not.
    for others in (summed, rounded(precision, own + rounded(precision, other))):
        assert not np.array_equal(others, rounded(precision, summed))
    assert rank.run() == DONE
    assert np.array_equal([rank.tensor], rounded(precision, summed))
    sent = own if combine is Combine.EXCHANGE else summed
    assert zmq.sent == [header(100) + packed(precision, sent)]
    rank.close()


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_a_sum_that_some_have_is_in_the_scratch_as_it_was_rounded_from(precision: WirePrecision) -> None:
    """So that whoever goes on rounds it once."""
    zmq = FakeZmq()
    zmq.taken = 2
    ways = [(HUB, b"node-1/nonce"), (HUB, b"node-2/nonce")]
    rank = Rank(zmq, *ways, combine=Combine.SUM, precision=precision, own=UNEVEN[0])
    own, other = (np.array([values], np.float32) for values in UNEVEN)
    for peer, way in enumerate(ways, 1):
        give(zmq, way, header(100 + peer) + packed(precision, other))
    assert rank.run() == 1
    summed = rounded(precision, own) + rounded(precision, other) + rounded(precision, other)
    assert rank.scratch == summed.tobytes()
    assert zmq.sent == [ways[0][1], header(100) + packed(precision, summed)]
    assert np.array_equal([rank.tensor], own)
    rank.close()


def test_without_memory_nothing_is_sent_and_nothing_is_freed_twice(way: tuple[int, bytes]) -> None:
    for room in range(len(parts(way[1], OWN_FRAME))):
        zmq = FakeZmq()
        rank = Rank(zmq, way)
        zmq.room = room
        assert rank.run() == 0
        assert zmq.sent == []
        assert rank.tensor == OWN
        rank.close()


def test_a_signal_does_not_tear_a_message_apart() -> None:
    """Otherwise the next message would be taken for the second part of this one, of either direction."""
    for call in (1, 2, 4):  # both parts that are sent; the second one that is received
        zmq = FakeZmq()
        rank = Rank(zmq, (HUB, ROUTE))
        give(zmq, (HUB, ROUTE), OTHER_FRAME)
        zmq.interrupted = {call, call + 1}
        assert rank.run() == DONE
        assert zmq.sent == parts(ROUTE, OWN_FRAME)
        assert rank.tensor == SUM
        rank.close()


def test_a_signal_ends_a_wait_and_nothing_is_lost(way: tuple[int, bytes]) -> None:
    zmq = FakeZmq()
    rank = Rank(zmq, way)
    give(zmq, way, OTHER_FRAME)
    zmq.interrupted = {len(parts(way[1], OWN_FRAME)) + 1}
    assert rank.run() == 1
    assert list(zmq.incoming[way[0]]) == parts(way[1], OTHER_FRAME)
    assert rank.tensor == OWN
    rank.close()


ROUTES = [b"node-2/nonce", b"node-3/nonce"]
MESH = [(SPOKE, b""), *((HUB, route) for route in ROUTES)]
"""The ways of rank 1 of four."""
VALUES = [(1e8, 1.0), OWN, (-1e8, 2.0), (3.0, 4.0)]


def test_the_own_part_has_its_place_in_the_sum() -> None:
    zmq = FakeZmq()
    rank = Rank(zmq, *MESH, rank=1)
    for peer in (3, 2, 0):
        give(zmq, MESH[peer - (peer > 1)], frame(peer, VALUES[peer]))
    assert rank.run() == DONE
    summed = np.float32(VALUES[0])
    for values in VALUES[1:]:
        summed = summed + np.float32(values)
    assert rank.tensor == tuple(summed)
    own = frame(1, OWN)
    assert zmq.sent == [own, ROUTES[0], own, ROUTES[1], own]
    rank.close()


def test_it_says_how_many_have_its_part() -> None:
    own = frame(1, OWN)
    for taken, sent in ((0, 0), (1, 1), (2, 1), (3, 2), (4, 2)):
        zmq = FakeZmq()
        zmq.taken = taken
        rank = Rank(zmq, *MESH, rank=1)
        give(zmq, MESH[0], frame(0, VALUES[0]))
        assert rank.run() == sent
        assert zmq.sent == [own, ROUTES[0], own, ROUTES[1], own][:taken]
        # Whoever cannot send does not wait.
        assert len(zmq.incoming[SPOKE]) == 1
        assert rank.received() == []
        rank.close()


@pytest.mark.parametrize("note", [b"", b"duplicate", bytes(FLAT_BYTES + 5 * len(OWN))])
def test_notes_of_the_transport_and_what_is_too_large_are_not_kept(note: bytes) -> None:
    zmq = FakeZmq()
    rank = Rank(zmq, *MESH, rank=1)
    first = [(SPOKE, b"", frame(0, VALUES[0])), (HUB, ROUTES[0], frame(2, VALUES[2]))]
    for socket, route, data in [*first, (HUB, ROUTES[0], note)]:
        give(zmq, (socket, route), data)
    give(zmq, MESH[2], frame(3, VALUES[3]))
    assert rank.run() == 3
    assert rank.received() == [*first, (HUB, ROUTES[0], note)]
    assert rank.run() == 3  # the last part alone is there
    assert rank.received() == []
    rank.close()


@pytest.mark.parametrize("combine", [Combine.EXCHANGE, Combine.SUM])
def test_whoever_becomes_unwelcome_in_mid_call_is_not_heard(combine: Combine) -> None:
    zmq = FakeZmq()
    changes = ctypes.c_uint32()
    rank = Rank(zmq, (HUB, ROUTE), combine=combine, changes=changes)
    give(zmq, (HUB, ROUTE), OTHER_FRAME)

    def change() -> None:
        changes.value = 1

    zmq.before_recv = change
    assert rank.run() == (1 if combine is Combine.EXCHANGE else 0)
    assert rank.tensor == OWN
    assert rank.received() == [(HUB, ROUTE, OTHER_FRAME)]
    assert rank.run() == 0
    rank.close()


def test_a_sum_that_some_have_is_in_the_scratch_and_its_parts_are_gone() -> None:
    ways = [(HUB, b"node-1/nonce"), (HUB, b"node-2/nonce")]
    for taken, sent in ((0, 0), (2, 1), (4, DONE)):
        zmq = FakeZmq()
        zmq.taken = taken
        rank = Rank(zmq, *ways, combine=Combine.SUM)
        frames = [frame(1, VALUES[1]), frame(2, VALUES[2])]
        for way, data in zip(ways, frames, strict=True):
            give(zmq, way, data)
        assert rank.run() == sent
        total = np.float32(OWN) + np.float32(VALUES[1]) + np.float32(VALUES[2])
        assert rank.scratch == total.tobytes()
        assert rank.tensor == (tuple(total) if sent == DONE else OWN)
        left = [] if sent else [(*way, data) for way, data in zip(ways, frames, strict=True)]
        assert rank.received() == left
        rank.close()


WHOLE = (2**31 - 2, -5)
"""The own integers. Sums of whoever breaks the law of their size wrap around."""


def integers(rank: int, values: tuple[int, ...], kind: str = "i", place: bytes = PLACE) -> bytes:
    """`kind`: i for narrow ones, q for wide ones, whose header is another, too."""
    return header((100 if kind == "i" else 150) + rank, place) + struct.pack(f"<{len(values)}{kind}", *values)


@pytest.mark.parametrize("combine", [Combine.EXCHANGE, Combine.SUM])
def test_integers_are_added_as_integers(combine: Combine, way: tuple[int, bytes]) -> None:
    zmq = FakeZmq()
    rank = Rank(zmq, way, combine=combine, precision="i32", own=WHOLE)
    # As floats: an infinity and something that is none.
    given = (0x7F800000, 0x7FC00001)
    give(zmq, way, integers(1, given))
    assert rank.run() == DONE
    summed = (2**31 - 2 + 0x7F800000 - 2**32, 0x7FC00001 - 5)
    assert rank.tensor == summed
    assert zmq.sent == parts(way[1], integers(0, WHOLE if combine is Combine.EXCHANGE else summed))
    rank.close()


def test_integers_are_taken_as_they_come() -> None:
    zmq = FakeZmq()
    rank = Rank(zmq, (SPOKE, b""), rank=1, combine=Combine.TAKE, precision="i32", own=WHOLE)
    give(zmq, (SPOKE, b""), integers(0, (0x7F800001, -(2**31))))
    assert rank.run() == DONE
    assert rank.tensor == (0x7F800001, -(2**31))
    assert zmq.sent == [integers(1, WHOLE)]
    rank.close()


WIDE = (1 << 40, -7)


@pytest.mark.parametrize(("combine", "sent"), [(Combine.TAKE, 1), (Combine.EXCHANGE, 2), (Combine.SUM, 0)])
def test_a_wide_part_is_handed_to_python_with_what_came_before(combine: Combine, sent: int) -> None:
    """It comes in the middle: one narrow part is summed already, and another one is yet to come."""
    zmq = FakeZmq()
    taking = combine is Combine.TAKE
    ways = [(SPOKE, b"")] if taking else [(HUB, ROUTES[0]), (HUB, ROUTES[1])]
    rank = Rank(zmq, *ways, rank=int(taking), combine=combine, precision="i32", own=WHOLE)
    frames = [integers(0, WIDE, "q")] if taking else [integers(1, (1, 2)), integers(2, WIDE, "q")]
    for way, data in zip(ways, frames, strict=True):
        give(zmq, way, data)
    assert rank.run() == sent
    assert rank.tensor == WHOLE
    assert rank.received() == [(*way, data) for way, data in zip(ways, frames, strict=True)]
    rank.close()


def test_a_peer_may_send_a_wide_part_after_its_narrow_one() -> None:
    zmq = FakeZmq()
    ways = [(HUB, ROUTES[0]), (HUB, ROUTES[1])]
    rank = Rank(zmq, *ways, precision="i32", own=(1, 2))
    ahead = integers(1, WIDE, "q", bytes(16))
    for way, data in [(ways[0], integers(1, (3, 4))), (ways[0], ahead), (ways[1], integers(2, (5, 6)))]:
        give(zmq, way, data)
    assert rank.run() == DONE - 1
    assert rank.tensor == (9, 12)
    # In the next all-reduce it is not the narrow part that belongs there.
    assert rank.run(bytes(16)) == 2
    assert rank.received() == [(*ways[0], ahead)]
    rank.close()


def test_a_narrow_sum_that_some_have_is_in_the_scratch() -> None:
    zmq = FakeZmq()
    zmq.taken = 2
    ways = [(HUB, ROUTES[0]), (HUB, ROUTES[1])]
    rank = Rank(zmq, *ways, combine=Combine.SUM, precision="i32", own=(1, 2))
    for peer, way in enumerate(ways, 1):
        give(zmq, way, integers(peer, (0x7F800000, -1)))
    assert rank.run() == 1
    summed = (1 + 0xFF000000 - 2**32, 0)
    assert rank.scratch == struct.pack("<2i", *summed)
    assert rank.tensor == (1, 2)
    assert rank.received() == []
    rank.close()


class Mesh:
    """Rank 1 of four, natively, and a Python that goes on where that leaves off.

    What peers have sent is in `sent`; what was used, or came to Python, in `heard`.
    """

    peers: ClassVar = {b"": 0, ROUTES[0]: 2, ROUTES[1]: 3}

    def __init__(self) -> None:
        self.zmq = FakeZmq()
        self.rank = Rank(self.zmq, *MESH, rank=1)
        self.sent: dict[int, list[bytes]] = {0: [], 2: [], 3: []}
        self.heard: dict[int, list[bytes]] = {0: [], 2: [], 3: []}
        self.parts = dict.fromkeys(self.sent, 0)
        self.holds = False

    def send(self, peer: int, data: bytes | None) -> None:
        """The next part, or something else."""
        if data is None:
            data = frame(peer, VALUES[peer], bytes([self.parts[peer]] * 16))
            self.parts[peer] += 1
        self.sent[peer].append(data)
        give(self.zmq, MESH[peer - (peer > 1)], data)

    def reduce(self, block: int) -> int:
        place = bytes([block] * 16)
        outcome = 0 if self.holds else self.rank.run(place)
        if outcome < 0:
            for peer in self.heard:
                self.heard[peer].append(frame(peer, VALUES[peer], place))
            assert self.rank.tensor[1] == sum(values[1] for values in VALUES)
            return outcome
        assert self.rank.tensor == OWN
        for peer, count in self.parts.items():
            if count <= block:
                self.send(peer, None)
        self.hand_over()
        # Until Python has no part of a later block the native side has no chance.
        self.holds = max(self.parts.values()) > block + 1
        return outcome

    def hand_over(self) -> None:
        """Python receives everything."""
        for _socket, route, data in self.rank.received():
            self.heard[self.peers[route]].append(data)
        while self.zmq.incoming[SPOKE]:
            self.heard[0].append(self.zmq.incoming[SPOKE].popleft())
        while self.zmq.incoming[HUB]:
            route, data = (self.zmq.incoming[HUB].popleft() for _ in range(2))
            self.heard[self.peers[route]].append(data)


NOTES = [bytes(20), header(50), frame(2, OWN, bytes([255] * 16)), b"duplicate"]
ORDERS = st.permutations([0, 2, 3])
# Of the peer whose part comes first, before the last part comes: its next part, something else, nothing.
EXTRAS = st.sampled_from(["part", "part", "nothing", *NOTES])
LATE = st.sampled_from([False, False, False, True])


@given(st.lists(st.tuples(ORDERS, EXTRAS, LATE), min_size=1, max_size=20))
def test_nothing_is_lost_and_nothing_heard_in_another_order(
    calls: list[tuple[list[int], str | bytes, bool]],
) -> None:
    mesh = Mesh()
    for block, (order, extra, late) in enumerate(calls):
        for peer in order[:2]:
            if mesh.parts[peer] == block:
                mesh.send(peer, None)
        if extra != "nothing":
            mesh.send(order[0], extra if isinstance(extra, bytes) else None)
        if not late and mesh.parts[order[2]] == block:
            mesh.send(order[2], None)
        event(f"outcome {mesh.reduce(block)}")
    mesh.hand_over()
    assert mesh.heard == mesh.sent
    mesh.rank.close()


def test_peers_that_are_a_block_ahead_stay_so_without_python() -> None:
    mesh = Mesh()
    for block in range(10):
        if block == 0:
            mesh.send(0, None)
        for peer in (2, 3, 0):
            if peer == 3 and block == 0:
                mesh.send(2, None)
            mesh.send(peer, None)
        assert mesh.reduce(block) == DONE - 1
    mesh.hand_over()
    assert mesh.heard == mesh.sent
    mesh.rank.close()
