"""From threads of the cluster to an event loop: nothing is lost, little waits, and nothing stays."""

import asyncio
import itertools
import threading
import time

import pytest

from tpiedge.api import stream_bridge
from tpiedge.api.further_choices import FurtherChoices
from tpiedge.api.stream_bridge import StreamBridge
from tpiedge.testing.service import FakeGeneration
from tpiedge.wire.control import Token
from tpiedge.wire.requests import GenerationRequest

LIMIT_S = 20.0
REQUEST = GenerationRequest("r", (1,), 10_000)


def none() -> FurtherChoices:
    return FurtherChoices((), lambda *_, **__: FakeGeneration(REQUEST), lambda _: None)


class Counted(FakeGeneration):
    """Says tokens without end, and counts those that were taken from it."""

    def __init__(self) -> None:
        super().__init__(REQUEST)
        self.taken = 0

    def events(self):  # type: ignore[no-untyped-def]
        for index in itertools.count():
            if self.cancelled.is_set() or self.completed.is_set():
                return
            self.taken += 1
            yield Token(1, "r", index, 5, ())


def says(counted: Counted, count: int) -> None:
    """Waits until it has said so many, which is more than is taken of it."""
    deadline = time.monotonic() + LIMIT_S
    while counted.taken != count:
        assert time.monotonic() < deadline, counted.taken
        time.sleep(0.01)


def test_a_reader_that_is_slow_holds_the_thread_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_bridge, "_AHEAD", 8)

    async def read() -> None:
        said = Counted()
        bridge = StreamBridge("slow", [said], none(), asyncio.get_running_loop())
        for index in range(100):
            found = await bridge.next(LIMIT_S)
            assert found is not None
            choice, event = found
            assert choice == 0
            assert isinstance(event, Token)
            assert event.index == index
        await asyncio.to_thread(says, said, 100 + 8 + 1)  # one is held by the thread
        bridge.cancel()
        assert bridge.join(LIMIT_S)

    asyncio.run(read())


@pytest.mark.parametrize("ahead", [1, 2, 64])
def test_whoever_reads_at_the_pace_of_the_thread_misses_nothing(
    monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """The thread waits and goes on thousands of times."""
    monkeypatch.setattr(stream_bridge, "_AHEAD", ahead)

    async def read() -> None:
        bridge = StreamBridge("quick", [Counted(), Counted()], none(), asyncio.get_running_loop())
        told: list[list[int]] = [[], []]
        for _ in range(4000):
            found = await bridge.next(LIMIT_S)
            assert found is not None
            assert isinstance(found[1], Token)
            told[found[0]].append(found[1].index)
        assert all(one == list(range(len(one))) for one in told)
        bridge.cancel()
        assert bridge.join(LIMIT_S)

    asyncio.run(read())


def test_while_choices_have_their_turn_yet_it_has_not_ended() -> None:
    """However idle it is: they wait for a place."""

    async def make() -> None:
        said = FakeGeneration(REQUEST)
        further = FurtherChoices([REQUEST], lambda *_, **__: FakeGeneration(REQUEST), lambda _: None)
        bridge = StreamBridge("r", [said], further, asyncio.get_running_loop())
        said.finish()
        assert await bridge.next(LIMIT_S) is not None
        assert not bridge.join(0.5)
        bridge.cancel()
        assert bridge.join(LIMIT_S)

    asyncio.run(make())


def test_further_choices_are_heard_without_a_thread_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop would wait until it has started."""

    def refuse(_: threading.Thread) -> None:
        raise AssertionError("a thread was started")

    async def make() -> None:
        said = [Counted() for _ in range(5)]
        left = iter(said[2:])
        further = FurtherChoices([REQUEST] * 3, lambda *_, **__: next(left), lambda _: None)
        bridge = StreamBridge("r", said[:2], further, asyncio.get_running_loop())
        monkeypatch.setattr(threading.Thread, "start", refuse)
        for whole in range(5):
            while (await bridge.next(LIMIT_S) or (None,))[0] != whole:
                pass
            bridge.complete(whole)
            bridge.complete(whole)
        monkeypatch.undo()
        assert all(one.completed.is_set() for one in said)
        assert bridge.join(LIMIT_S)

    asyncio.run(make())


def test_where_the_system_has_no_thread_left_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    start, starts = threading.Thread.start, itertools.count()

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("answer ") and next(starts) == 1:
            raise RuntimeError("can't start new thread")
        start(thread)

    async def make() -> None:
        counts: list[int] = []
        further = FurtherChoices([REQUEST] * 3, lambda *_, **__: FakeGeneration(REQUEST), counts.append)
        generations = [Counted(), Counted()]
        with pytest.raises(RuntimeError, match="can't start new thread"):
            StreamBridge("r", generations, further, asyncio.get_running_loop())
        assert all(one.cancelled.is_set() for one in generations)
        assert counts == [3, -3]

    monkeypatch.setattr(threading.Thread, "start", refuse)
    asyncio.run(make())
    deadline = time.monotonic() + LIMIT_S
    while any(thread.name.startswith("answer ") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
