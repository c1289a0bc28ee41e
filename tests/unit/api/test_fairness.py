"""In which order threads work for clients, and what becomes of work for which nobody waits any more."""

import asyncio
import gc
import threading
import weakref

import pytest

from tpiedge.api.fairness import FairThreads, FairTurns

LIMIT_S = 20.0


@pytest.fixture
def threads():
    threads = FairThreads(4, "fair")
    yield threads
    threads.close(LIMIT_S)


def test_clients_have_their_turns(threads: FairThreads) -> None:
    """Of a flood half of the threads work; who comes behind it waits for nothing, and two floods alternate."""
    begun: list[str] = []
    go_on = threading.Event()

    def work(name: str) -> str:
        begun.append(name)
        assert go_on.wait(LIMIT_S)
        return name

    async def story() -> list[str]:
        flood = [threads.start("a", lambda n=n: work(f"a{n}")) for n in range(6)]
        other = [threads.start("b", lambda n=n: work(f"b{n}")) for n in range(3)]
        deadline = asyncio.get_running_loop().time() + LIMIT_S
        while len(begun) < 3:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)
        assert sorted(begun) == ["a0", "a1", "b0"]
        go_on.set()
        async with asyncio.timeout(LIMIT_S):
            return await asyncio.gather(*flood, *other)

    assert asyncio.run(story()) == [*(f"a{n}" for n in range(6)), *(f"b{n}" for n in range(3))]


def test_what_fails_tells_its_client_and_leaves_the_thread_to_others(threads: FairThreads) -> None:
    async def story() -> list[object]:
        async with asyncio.timeout(LIMIT_S):
            failing = [threads.start("a", lambda: 1 // 0) for _ in range(9)]
            return await asyncio.gather(*failing, threads.start("a", lambda: 7), return_exceptions=True)

    *failed, well = asyncio.run(story())
    assert [type(error) for error in failed] == [ZeroDivisionError] * 9
    assert well == 7


def test_what_nobody_waits_for_any_more_is_not_begun_and_stops_nobody(threads: FairThreads) -> None:
    """What runs when it is given up is undone at its end."""
    begun: list[int] = []
    undone: list[int] = []
    go_on = threading.Event()

    def work(number: int) -> int:
        begun.append(number)
        assert go_on.wait(LIMIT_S)
        return number

    async def story() -> None:
        async with asyncio.timeout(LIMIT_S):
            given_up = [threads.start("a", lambda n=n: work(n), undone.append) for n in range(5)]
            last = threads.start("a", lambda: work(5), undone.append)
            while len(begun) < 2:
                await asyncio.sleep(0.01)
            for one in given_up:
                one.cancel()
            go_on.set()
            assert await last == 5
            while len(undone) < 2:
                await asyncio.sleep(0.01)

    asyncio.run(story())
    assert sorted(begun) == [0, 1, 5]
    assert sorted(undone) == [0, 1]


def test_what_nobody_waits_for_any_more_is_not_kept_until_its_client_has_a_turn(threads: FairThreads) -> None:
    go_on = threading.Event()

    class Body:
        """What a client sent."""

    async def story() -> int:
        async with asyncio.timeout(LIMIT_S):
            running = [threads.start("a", lambda: go_on.wait(LIMIT_S)) for _ in range(2)]
            kept: weakref.WeakSet[Body] = weakref.WeakSet()
            for _ in range(5):
                body = Body()
                kept.add(body)
                waiting = threads.start("a", lambda body=body: body)
                waiting.cancel()
                del body, waiting
            await asyncio.sleep(0)
            gc.collect()
            left = len(kept)
            go_on.set()
            await asyncio.gather(*running)
            return left

    assert asyncio.run(story()) == 0


@pytest.mark.parametrize("error", [StopIteration, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_whatever_work_raises_its_client_hears_and_others_go_on(
    threads: FairThreads, error: type[BaseException]
) -> None:
    def fail() -> None:
        raise error

    async def story() -> None:
        async with asyncio.timeout(LIMIT_S):
            failing = [threads.start("a", fail) for _ in range(9)]
            assert await threads.start("a", lambda: 7) == 7
            for one in failing:
                told = one.exception()
                assert isinstance(told, RuntimeError if error is StopIteration else error)

    asyncio.run(story())


def test_what_waits_at_the_end_of_the_loop_never_runs() -> None:
    threads, begun, go_on = FairThreads(1, "fair"), threading.Semaphore(0), threading.Event()

    def work() -> None:
        begun.release()
        assert go_on.wait(LIMIT_S)

    async def story() -> None:
        for _ in range(3):
            threads.start("a", work)
        assert await asyncio.to_thread(begun.acquire, timeout=LIMIT_S)

    asyncio.run(story())
    go_on.set()
    threads.close(LIMIT_S)
    assert not begun.acquire(blocking=False)


def test_what_does_not_end_delays_the_end_no_longer_than_it_may() -> None:
    threads, begun, go_on, ended = FairThreads(2, "endless"), *(threading.Event() for _ in range(3))

    def work() -> None:
        begun.set()
        if go_on.wait(LIMIT_S):
            ended.set()

    async def story() -> None:
        threads.start("a", work)
        assert await asyncio.to_thread(begun.wait, LIMIT_S)

    asyncio.run(story())
    own = [one for one in threading.enumerate() if one.name.startswith("endless")]
    threads.close(0.1)
    assert any(one.is_alive() for one in own), "close waited for what runs without an end"
    assert all(one.daemon for one in own), "they would keep the process from ending"
    go_on.set()
    threads.close(LIMIT_S)
    assert ended.is_set()
    assert not any(one.is_alive() for one in own)


@pytest.mark.parametrize("able", [0, 1, 3])
def test_where_the_system_has_few_threads_those_work(able: int, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, left = FairThreads(4, "fair"), iter(range(able))
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if thread.name.startswith("fair") and next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    async def story() -> None:
        if not able:
            with pytest.raises(RuntimeError, match="can't start new thread"):
                threads.start("a", lambda: 7)
            monkeypatch.undo()
        async with asyncio.timeout(LIMIT_S):
            assert await asyncio.gather(*(threads.start("a", lambda: 7) for _ in range(9))) == [7] * 9

    monkeypatch.setattr(threading.Thread, "start", started)
    asyncio.run(story())
    threads.close(LIMIT_S)


def test_in_a_turn_of_the_loop_each_client_does_one_thing() -> None:
    """Though one asks for much, and another comes later; what fails stops nobody."""
    turns, done, errors = FairTurns(), list[tuple[int, str]](), list[BaseException]()

    async def story() -> None:
        loop, number = asyncio.get_running_loop(), 0
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))

        def ask(client: str, *, fails: bool = False) -> None:
            def act() -> None:
                done.append((number, client))
                if fails:
                    raise ValueError

            turns.ask(client, act)

        for nth in range(6):
            ask("a", fails=nth == 2)
        ask("b")
        while len(done) < 9:
            assert number < 50
            if number == 3:
                ask("c")
                ask("a")
            await asyncio.sleep(0)
            number += 1

    asyncio.run(story())
    assert done[:2] == [(0, "a"), (0, "b")]
    assert (3, "c") in done
    of_a = [number for number, client in done if client == "a"]
    assert len(set(of_a)) == len(of_a) == 7
    assert [type(error) for error in errors] == [ValueError]
