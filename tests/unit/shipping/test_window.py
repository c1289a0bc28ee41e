from collections import deque
from collections.abc import Callable, Iterator

import pytest

from tests.fakes.clock import ManualClock
from tpiedge.errors import Cancelled, PeerError, ProtocolError
from tpiedge.shipping.window import FileBytes, RequestWindow
from tpiedge.transport.endpoint import DuplicateName, Envelope, Unreachable
from tpiedge.wire.data import Fetch, FetchFailed, FileChunk
from tpiedge.wire.fields import TensorHeader

KIB = 1024


class Master:
    """The spoke's end as a script: `answer` turns a request into what arrives, after `delay_s` each."""

    address = "tcp://master:1"

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.delay_s = 0.0
        self.connected = True
        self.fetched: list[Fetch] = []
        self.open: deque[Fetch] = deque()
        self.most_open = 0
        self.answer: Callable[[Fetch], Envelope | Exception | None] = good

    def send(self, message: Fetch, timeout_s: float) -> None:
        if not self.connected:
            raise Unreachable("master", timeout_s)
        self.fetched.append(message)
        self.open.append(message)
        self.most_open = max(self.most_open, len(self.open))

    def recv(self, timeout_s: float) -> Envelope | None:
        if not self.open:
            self.clock.advance(timeout_s)
            return None
        self.clock.advance(self.delay_s)
        answer = self.answer(self.open.popleft())
        if isinstance(answer, Exception):
            raise answer
        return answer


def good(request: Fetch) -> Envelope:
    data = bytes([request.number % 256]) * request.length
    chunk = FileChunk(request.epoch, request.number, 1 << 40, TensorHeader("u8", (len(data),)))
    return Envelope("master", chunk, memoryview(data))


@pytest.fixture
def master() -> Master:
    return Master(ManualClock())


def stream(master: Master, total: int, stopped: Callable[[], bool] = lambda: False) -> Iterator[FileBytes]:
    window = RequestWindow(master, "p", master.clock, stopped)  # type: ignore[arg-type]
    return window.stream(iter([FileBytes("blob", 3, "b", 0, total)]))


def test_requested_bytes_arrive_in_order(master: Master) -> None:
    total = 20_000 * KIB
    at = 0
    for arrived in stream(master, total):
        assert (arrived.offset, len(arrived.data)) == (at, arrived.length)
        at += arrived.length
    assert at == total
    assert master.most_open == 8


def test_chunk_size_adapts_to_link_speed(master: Master) -> None:
    list(stream(master, 20_000 * KIB))
    assert max(request.length for request in master.fetched) == 1024 * KIB
    master.fetched.clear()
    master.delay_s = 0.7
    list(stream(master, 20_000 * KIB))
    assert [one.length for one in master.fetched][:12] == [256 * KIB] * 8 + [128 * KIB] + [64 * KIB] * 3


def test_lost_chunks_are_requested_again(master: Master) -> None:
    lost = iter([True, False, True] + [True] * 7)
    master.answer = lambda request: None if next(lost, False) else good(request)
    assert sum(len(arrived.data) for arrived in stream(master, 4_000 * KIB)) == 4_000 * KIB
    assert len(master.fetched) > len({request.number for request in master.fetched})


def test_answers_of_another_transfer_are_dropped(master: Master) -> None:
    strange = iter([True, False] * 100)

    def answer(request: Fetch) -> Envelope:
        if next(strange):
            master.open.appendleft(request)
            return good(Fetch((request.epoch + 1) % 2**32, request.number, "p", "blob", "b", 0, 5))
        return good(request)

    master.answer = answer
    assert sum(len(arrived.data) for arrived in stream(master, 2_000 * KIB)) == 2_000 * KIB


def test_transfer_waits_for_late_connection(master: Master) -> None:
    master.connected = False

    def stopped() -> bool:
        master.connected = master.clock.now() > 5.0
        return False

    assert len(list(stream(master, 10, stopped))) == 1


def test_silent_master_ends_the_transfer(master: Master) -> None:
    master.answer = lambda _request: None
    with pytest.raises(PeerError, match=r"no byte has come from the master for 10 s \(tcp://master:1\)"):
        list(stream(master, 10))


@pytest.mark.fault("P16", "a worker's slow disk ends no shipment")
def test_slow_local_disk_is_not_counted_as_master_silence(master: Master) -> None:
    for _ in stream(master, 4_000 * KIB):
        master.clock.advance(60.0)


def test_duplicate_name_ends_transfer_unless_it_is_brief(master: Master) -> None:
    master.answer = lambda _request: DuplicateName("master", "w")
    with pytest.raises(DuplicateName, match="already has a living w"):
        list(stream(master, 10))
    # One that is only slow to be seen as gone is outlasted.
    master.open.clear()
    seen = iter([True] * 3)
    master.answer = lambda request: DuplicateName("master", "w") if next(seen, False) else good(request)
    assert len(list(stream(master, 10))) == 1


def test_refused_or_wrong_sized_chunk_ends_the_transfer(master: Master) -> None:
    master.answer = lambda request: Envelope(
        "master", FetchFailed(request.epoch, request.number, "no such blob")
    )
    with pytest.raises(PeerError, match="does not give bytes 0 to 10 of layer 3: no such blob"):
        list(stream(master, 10))

    def short(request: Fetch) -> Envelope:
        chunk = FileChunk(request.epoch, request.number, 9, TensorHeader("u8", (9,)))
        return Envelope("master", chunk, memoryview(bytes(9)))

    master.answer = short
    with pytest.raises(ProtocolError, match="sent 9 bytes as bytes 0 to 10 of layer 3, not 10"):
        list(stream(master, 10))


def test_transfer_can_be_cancelled(master: Master) -> None:
    with pytest.raises(Cancelled):
        list(stream(master, 10, lambda: True))
