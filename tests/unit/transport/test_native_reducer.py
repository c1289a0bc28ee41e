"""The native all-reduce when libzmq does what it seldom does: a libzmq made of Python stands in for it."""

import ctypes
import errno
import struct
import sys
from collections import deque
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tpiedge.transport.backlog import Flow
from tpiedge.transport.native_library import TransportLibrary, _address_of, transport_library
from tpiedge.transport.native_reducer import DONE, Combine, Exchange, NativeReducer
from tpiedge.wire.codec import FLAT_BYTES, PLACE_AT

pytestmark = pytest.mark.skipif(transport_library() is None, reason="native: the transport is not built")

_int, _size, _pointer = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
PLACE = bytes(range(20))
HUB, SPOKE = 1, 2
ROUTE = b"node-1/nonce"
OWN, OTHER = (1.0, 2.0), (10.0, 20.0)


def header(first: int, place: bytes = PLACE) -> bytes:
    data = bytearray([first] * FLAT_BYTES)
    data[PLACE_AT : PLACE_AT + len(place)] = place
    return bytes(data)


@pytest.mark.parametrize("variable", ["TPIEDGE_NATIVE", "TPIEDGE_FAST_LINK"])
def test_the_native_transport_can_be_switched_off(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "0")
    assert transport_library() is None
    monkeypatch.setenv(variable, "1")
    assert transport_library() is not None


def test_ambiguous_libzmq_symbol_is_refused() -> None:
    other = type("Library", (), {"zmq_msg_send": ctypes.CDLL(None).getpid})()
    extension = ctypes.CDLL(sys.modules["zmq.backend.cython._zmq"].__file__)
    with pytest.raises(Exception, match="more than one zmq_msg_send"):
        _address_of("zmq_msg_send", extension, other)


class FakeZmq:
    """Keeps what is sent in `sent`, gives what is in `incoming` of a socket. Messages are known by their addresses."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.incoming: dict[int, deque[bytes]] = {HUB: deque(), SPOKE: deque()}
        #: The calls of send and recv that a signal interrupts, by number.
        self.interrupted: set[int] = set()
        #: How many messages there is memory for.
        self.room = 100
        self.calls = 0
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
    def addresses(self) -> "ctypes.Array[ctypes.c_void_p]":
        return (_pointer * len(self._functions))(
            *(ctypes.cast(one, _pointer).value for one in self._functions)
        )

    @property
    def open(self) -> int:
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
        if self._is_interrupted():
            return -1
        self.sent.append(self._buffer(message).raw)
        return self.init(message)

    def recv(self, message: int, socket: int, _flags: int) -> int:
        if self._is_interrupted() or not self.incoming[socket]:
            return -1
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
    """`run` does its all-reduces. `routes` has socket and route of each peer, in the order of ranks."""

    def __init__(self, zmq: FakeZmq, *routes: tuple[int, bytes], rank: int = 0) -> None:
        library = transport_library()
        assert library is not None
        self.scratch = bytearray(4 * len(OWN))
        others = [peer for peer in range(len(routes) + 1) if peer != rank]
        exchange = Exchange(
            Combine.EXCHANGE,
            rank,
            "f32",
            (1, len(OWN)),
            header(100 + rank),
            {f"node-{peer}": header(100 + peer) for peer in others},
            self.scratch,
        )
        self._zmq = zmq
        links: Any = [
            SimpleNamespace(
                socket=SimpleNamespace(underlying=socket),
                route_to=lambda _name, route=route: (route, Flow()),
                requeue=lambda route, frame: self._received.append((route, bytes(frame.buffer))),
            )
            for socket, route in routes
        ]
        self._received: list[tuple[bytes, bytes]] = []
        links[0].changes = ctypes.c_uint32()
        self._reducer = NativeReducer(TransportLibrary(library.dll, zmq.addresses), exchange, links)
        self._tensor = (ctypes.c_float * len(OWN))(*OWN)
        assert self._reducer.open(links[0])

    def run(self, place: bytes = PLACE) -> int:
        self._tensor[:] = OWN
        return self._reducer.run(place, ctypes.addressof(self._tensor))

    @property
    def tensor(self) -> tuple[float, ...]:
        return tuple(self._tensor)

    def received(self) -> list[tuple[bytes, bytes]]:
        self._received.clear()
        self._reducer.requeue()
        return self._received

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


def test_out_of_memory_sends_nothing_and_frees_nothing_twice(way: tuple[int, bytes]) -> None:
    for room in range(len(parts(way[1], OWN_FRAME))):
        zmq = FakeZmq()
        rank = Rank(zmq, way)
        zmq.room = room
        assert rank.run() == 0
        assert zmq.sent == []
        assert rank.tensor == OWN
        rank.close()


def test_a_signal_does_not_tear_a_message_apart() -> None:
    """The next message would be taken for the second part of this one."""
    for call in (1, 2, 4):  # both parts that are sent; the second one that is received
        zmq = FakeZmq()
        rank = Rank(zmq, (HUB, ROUTE))
        give(zmq, (HUB, ROUTE), OTHER_FRAME)
        zmq.interrupted = {call, call + 1}
        assert rank.run() == DONE
        assert zmq.sent == parts(ROUTE, OWN_FRAME)
        assert rank.tensor == SUM
        rank.close()


def test_signal_ends_a_wait_without_losing_frames(way: tuple[int, bytes]) -> None:
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
"""Routes of rank 1 of four."""
VALUES = [(1e8, 1.0), OWN, (-1e8, 2.0), (3.0, 4.0)]


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
        for route, data in self.rank.received():
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
def test_frames_are_neither_lost_nor_reordered(calls):
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
