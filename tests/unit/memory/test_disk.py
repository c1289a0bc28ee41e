import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.errors import InternalError, ResourceError
from tpiedge.memory.disk import DiskQueue
from tpiedge.memory.disk_order import DiskOrder, DiskUse, Purpose
from tpiedge.tracing.tracer import Tracer, read_part

DEADLINE_S = 10.0


def begun(jobs: Sequence[tuple[Purpose, int]]) -> list[int]:
    """Submits the jobs at once, then begins and ends each. Returns their indices in the order of their beginnings."""
    order = DiskOrder()
    tickets = [order.submit(purpose, nbytes) for purpose, nbytes in jobs]
    found = []
    while (ticket := order.begin(0.0)) is not None:
        order.end(ticket, 1, 0.0)
        found.append(tickets.index(ticket))
    return found


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        pytest.param([("weights", 8), ("weights", 2), ("weights", 4)], [0, 1, 2], id="as submitted"),
        pytest.param([("leave", 1), ("bring", 9), ("weights", 8)], [2, 1, 0], id="weights, pages, writes"),
        pytest.param([("bring", 2), ("bring", 1), ("bring", 2)], [0, 1, 2], id="pages as submitted"),
        pytest.param([("leave", 1), *[("bring", 16)] * 3], [1, 0, 2, 3], id="no write waits for ever"),
    ],
)
def test_jobs_begin_in_the_order_of_their_due_times(
    jobs: Sequence[tuple[Purpose, int]], expected: Sequence[int]
) -> None:
    assert begun(jobs) == expected


def test_page_begins_before_weights_submitted_after_twice_its_bytes_began() -> None:
    order = DiskOrder()
    first, page, second = order.submit("weights", 8), order.submit("bring", 4), order.submit("weights", 1)
    assert order.begin(0.0) == first
    late = order.submit("weights", 1)
    assert [order.begin(0.0) for _ in range(4)] == [second, page, late, None]


def test_second_write_begins_only_after_the_first_ended() -> None:
    order = DiskOrder()
    first, second = order.submit("leave", 1), order.submit("leave", 1)
    assert [order.begin(0.0), order.begin(0.0)] == [first, None]
    read = order.submit("bring", 1000)
    assert [order.begin(0.0), order.begin(0.0)] == [read, None]
    order.end(first, 1, 0.0)
    assert order.begin(0.0) == second


def test_pages_that_had_the_disk_alone_still_get_half_of_it_later() -> None:
    order = DiskOrder()
    for _ in range(100):
        order.submit("bring", 8)
        assert order.begin(0.0)
    page = order.submit("bring", 8)
    weights = [order.submit("weights", 8) for _ in range(2)]
    assert [order.begin(0.0), order.begin(0.0)] == weights
    weights = [order.submit("weights", 8)]
    assert [order.begin(0.0), order.begin(0.0)] == [page, *weights]


@given(st.data())
def test_waiting_purposes_share_the_disk(data: st.DataObject) -> None:
    """A sweep asks for its next weights whenever some have come; pages to bring and to leave wait all the time."""
    order, sizes = DiskOrder(), st.integers(1, 64)
    ahead = data.draw(st.lists(sizes, min_size=1, max_size=8))
    pages = data.draw(st.lists(sizes, min_size=1, max_size=8))
    purposes: dict[int, tuple[Purpose, int]] = {}

    def submit(purpose: Purpose, nbytes: int) -> None:
        purposes[order.submit(purpose, nbytes)] = purpose, nbytes

    leaves = data.draw(st.booleans())
    for nbytes in ahead:
        submit("weights", nbytes)
    for number in range(400):
        submit("bring", pages[number % len(pages)])
        if leaves:
            submit("leave", pages[number % len(pages)])
    moved = {"weights": 0, "bring": 0, "leave": 0}
    most = 3 * (sum(ahead) + max(pages))
    for _ in range(300):
        found = order.begin(0.0)
        assert found is not None
        order.end(found, 1, 0.0)
        purpose, nbytes = purposes[found]
        moved[purpose] += nbytes
        if purpose == "weights":
            submit("weights", nbytes)
        assert abs(moved["weights"] - moved["bring"]) <= most + moved["leave"]
        assert moved["leave"] <= sum(moved.values()) / 64 + max(pages)


def test_use_is_counted_by_purpose() -> None:
    order = DiskOrder()
    tickets = [order.submit("weights", 8), order.submit("weights", 8), order.submit("bring", 2)]
    assert [order.begin(at) for at in (1.0, 2.0, 3.0)] == tickets
    for ticket, moved, at in zip(tickets, (8, 0, 2), (4.0, 6.0, 5.0), strict=True):
        order.end(ticket, moved, at)
    order.submit("weights", 1)
    later = order.begin(10.0)
    assert later is not None
    order.end(later, 1, 11.0)
    assert order.used("weights") == DiskUse(9, 2, 6.0)
    assert order.used("bring") == DiskUse(2, 1, 2.0)
    assert order.used("leave") == DiskUse()
    assert order.moved_bytes == 11


class Gate:
    """Work that a test lets through."""

    def __init__(self, moved_bytes: int = 1) -> None:
        self.begun, self._open = threading.Event(), threading.Event()
        self._moved_bytes = moved_bytes

    def __call__(self) -> int:
        self.begun.set()
        assert self._open.wait(DEADLINE_S)
        return self._moved_bytes

    def open(self) -> None:
        assert self.begun.wait(DEADLINE_S)
        self._open.set()


@pytest.fixture
def disk() -> Iterator[DiskQueue]:
    with DiskQueue(2) as disk:
        yield disk
    assert not [one for one in threading.enumerate() if one.name.startswith("tpiedge-disk")]


def test_waiting_jobs_begin_in_their_order_when_a_thread_is_free(disk: DiskQueue) -> None:
    write, read, ended = Gate(), Gate(), list[Purpose]()
    gates = [disk.submit("leave", 1, write), disk.submit("weights", 1, read)]
    assert write.begun.wait(DEADLINE_S)
    purposes: list[Purpose] = ["leave", "bring", "weights"]
    jobs = []
    for purpose in purposes:
        jobs.append(disk.submit(purpose, 1, lambda: 1))
        jobs[-1].add_done_callback(lambda _, purpose=purpose: ended.append(purpose))  # type: ignore[misc]
    read.open()
    assert [job.result(DEADLINE_S) for job in jobs[1:]] == [1, 1]
    assert not jobs[0].done()
    write.open()
    assert [job.result(DEADLINE_S) for job in (*jobs, *gates)] == [1] * 5
    assert ended == ["weights", "bring", "leave"]
    assert [disk.used(purpose).jobs for purpose in purposes] == [2, 1, 2]
    assert disk.moved_bytes == 5


def test_failing_job_fails_its_own_future_only(disk: DiskQueue) -> None:
    jobs = [disk.submit("bring", 1, work) for work in (lambda: int("broken"), lambda: 0, lambda: 7)]
    with pytest.raises(ValueError, match="broken"):
        jobs[0].result(DEADLINE_S)
    assert [job.result(DEADLINE_S) for job in jobs[1:]] == [0, 7]
    found = disk.used("bring")
    assert (found.nbytes, found.jobs) == (7, 1)


def test_callback_of_a_job_may_submit_jobs(disk: DiskQueue) -> None:
    following, lock = Future[int](), threading.Lock()

    def submit(_ended: Future[int]) -> None:
        with lock:  # another thread may hold it while it submits
            disk.submit("weights", 1, lambda: 3).add_done_callback(
                lambda job: following.set_result(job.result())
            )

    first = Gate()
    disk.submit("weights", 1, first).add_done_callback(submit)
    first.open()
    assert following.result(DEADLINE_S) == 3


def test_close_ends_waiting_jobs_with_an_error_and_waits_for_running_ones(disk: DiskQueue) -> None:
    running = [Gate(), Gate()]
    ended = [disk.submit("weights", 1, gate) for gate in running]
    for gate in running:
        assert gate.begun.wait(DEADLINE_S)
    waiting = disk.submit("bring", 1, lambda: 1)
    closing = threading.Thread(target=disk.close)
    closing.start()
    with pytest.raises(InternalError, match="closed before the job began"):
        waiting.result(DEADLINE_S)
    assert closing.is_alive()
    for gate in running:
        gate.open()
    closing.join(DEADLINE_S)
    assert not closing.is_alive()
    assert [job.result(0) for job in ended] == [1, 1]
    with pytest.raises(InternalError, match="closed before the job began"):
        disk.submit("weights", 1, lambda: 1).result(0)


def test_waiting_job_cannot_be_cancelled(disk: DiskQueue) -> None:
    gate = Gate()
    job = disk.submit("weights", 1, gate)
    assert not job.cancel()
    gate.open()
    assert job.result(DEADLINE_S) == 1


def test_idle_threads_keep_no_memory_of_their_last_jobs(disk: DiskQueue) -> None:
    class Buffer:
        def fill(self) -> int:
            return 1

    buffer = Buffer()
    gone = weakref.ref(buffer)
    assert [disk.submit("weights", 1, buffer.fill).result(DEADLINE_S) for _ in range(8)] == [1] * 8
    del buffer
    disk.close()
    assert gone() is None


def test_thread_that_cannot_start_is_a_resource_error(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def refuse_second(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_second)
    with pytest.raises(ResourceError, match=r"cannot start a thread for the disk .*: allow more threads"):
        DiskQueue()
    assert not started[0].is_alive()


def test_jobs_of_pages_are_traced(disk: DiskQueue, tmp_path: Path) -> None:
    tracer = Tracer()
    disk.trace(tracer)
    purposes: list[Purpose] = ["weights", "leave", "bring"]
    for number, purpose in enumerate(purposes):
        disk.submit(purpose, 9, lambda number=number: number).result(DEADLINE_S)  # type: ignore[misc]
    disk.close()
    tracer.write(tmp_path / "part", 0)
    events = read_part(tmp_path / "part").events
    assert [(event.lane, event.name, event.nbytes) for event in events] == [
        ("leave", "page", 1),
        ("bring", "page", 2),
    ]
