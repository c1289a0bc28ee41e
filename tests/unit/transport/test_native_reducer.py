"""The native all-reduce when libzmq does what it seldom does: a libzmq made of Python stands in for it."""

import ctypes
import errno
import struct
from collections import deque

import pytest

from tpiedge.transport.native_library import Library, native_library
from tpiedge.transport.native_reducer import NativeReducer
from tpiedge.transport.reduction import DONE, Combine, Exchange
from tpiedge.wire.flat import FLAT_BYTES

pytestmark = pytest.mark.skipif(native_library() is None, reason="not built")

_int, _size, _pointer = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
PLACE = bytes(range(16))
PLACE_AT = 7
ROUTE = b"node-1/nonce"
OWN, OTHER = (1.0, 2.0), (10.0, 20.0)


def header(first: int) -> bytes:
    data = bytearray([first] * FLAT_BYTES)
    data[PLACE_AT : PLACE_AT + len(PLACE)] = PLACE
    return bytes(data)


class FakeZmq:
    """Keeps what is sent in `sent`, and gives what is in `incoming`. Messages are known by their addresses."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.incoming: deque[bytes] = deque()
        #: The calls of send and recv that a signal interrupts, by number.
        self.interrupted: set[int] = set()
        #: How many messages there is memory for.
        self.room = 100
        self.calls = 0
        self._messages: dict[int, ctypes.Array[ctypes.c_char] | None] = {}
        kinds = [
            (self.init, _int, _pointer),
            (self.init_size, _int, _pointer, _size),
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

    def init(self, message: int) -> int:
        self._messages[message] = (ctypes.c_char * 0)()
        return 0

    def init_size(self, message: int, count: int) -> int:
        self.room -= 1
        self._messages[message] = (ctypes.c_char * count)() if self.room >= 0 else None
        return 0 if self.room >= 0 else -1

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

    def recv(self, message: int, _socket: int, _flags: int) -> int:
        if self._is_interrupted() or not self.incoming:
            return -1
        data = self.incoming.popleft()
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

    def _buffer(self, message: int) -> "ctypes.Array[ctypes.c_char]":
        buffer = self._messages[message]
        # libzmq would follow a null pointer.
        assert buffer is not None, "a message is used for which there was no memory"
        return buffer


class Rank:
    """One of a pair: `run` does its all-reduce."""

    def __init__(self, zmq: FakeZmq, route: bytes) -> None:
        library = native_library()
        assert library is not None
        payload = 4 * len(OWN)
        answers = {"node-1": header(2)}
        exchange = Exchange(
            Combine.ADD, header(1), answers, PLACE_AT, len(PLACE), bytearray(FLAT_BYTES + payload)
        )
        self._reducer = NativeReducer(Library(library.dll, zmq.addresses), exchange)
        self._tensor = (ctypes.c_float * len(OWN))(*OWN)
        assert self._reducer.open(0, [route], ctypes.c_uint32(), 0)

    def run(self) -> int:
        return self._reducer.run(PLACE, ctypes.addressof(self._tensor))

    @property
    def tensor(self) -> tuple[float, ...]:
        return tuple(self._tensor)

    def close(self) -> None:
        self._reducer.close()


OWN_FRAME = header(1) + struct.pack("<2f", *OWN)
OTHER_FRAME = header(2) + struct.pack("<2f", *OTHER)
SUM = tuple(a + b for a, b in zip(OWN, OTHER, strict=True))


@pytest.fixture(params=[ROUTE, b""], ids=["router", "dealer"])
def route(request: pytest.FixtureRequest) -> bytes:
    route: bytes = request.param
    return route


def parts(route: bytes, frame: bytes) -> list[bytes]:
    return [route, frame] if route else [frame]


def test_it_is_done_in_one_call(route: bytes) -> None:
    zmq = FakeZmq()
    rank = Rank(zmq, route)
    zmq.incoming.extend(parts(route, OTHER_FRAME))
    assert rank.run() == DONE
    assert rank.tensor == SUM
    assert zmq.sent == parts(route, OWN_FRAME)
    rank.close()


def test_without_memory_nothing_is_sent_and_nothing_is_freed_twice(route: bytes) -> None:
    for room in range(len(parts(route, OWN_FRAME))):
        zmq = FakeZmq()
        rank = Rank(zmq, route)
        zmq.room = room
        assert rank.run() == 0
        assert zmq.sent == []
        assert rank.tensor == OWN
        rank.close()


def test_a_signal_does_not_tear_a_message_apart() -> None:
    """Otherwise the next message would be taken for the second part of this one, of either direction."""
    for call in (1, 2, 4):  # both parts that are sent; the second one that is received
        zmq = FakeZmq()
        rank = Rank(zmq, ROUTE)
        zmq.incoming.extend(parts(ROUTE, OTHER_FRAME))
        zmq.interrupted = {call, call + 1}
        assert rank.run() == DONE
        assert zmq.sent == parts(ROUTE, OWN_FRAME)
        assert rank.tensor == SUM
        rank.close()


def test_a_signal_ends_a_wait_and_nothing_is_lost(route: bytes) -> None:
    zmq = FakeZmq()
    rank = Rank(zmq, route)
    zmq.incoming.extend(parts(route, OTHER_FRAME))
    zmq.interrupted = {len(parts(route, OWN_FRAME)) + 1}
    assert rank.run() == 1
    assert list(zmq.incoming) == parts(route, OTHER_FRAME)
    assert rank.tensor == OWN
    rank.close()
