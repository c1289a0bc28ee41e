"""What clients get of what is divided among them, and in which order threads work for them."""

import asyncio
import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.api.fairness import FairThreads, Shares

TOTAL = 128
LIMIT_S = 20.0


def taken(shares: Shares, client: str) -> int:
    """How much a client gets that wants more and more."""
    return sum(shares.take(client) for _ in range(2 * TOTAL))


def test_each_further_client_gets_half_of_what_is_left() -> None:
    shares = Shares(TOTAL)
    assert [taken(shares, client) for client in "abcdefg"] == [64, 32, 16, 8, 4, 2, 1]
    assert shares.taken == TOTAL - 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.booleans()), max_size=60))
def test_nobody_has_more_than_half_nor_all_more_than_there_is(
    story: list[tuple[str, int, bool]],
) -> None:
    shares, held = Shares(TOTAL), Counter[str]()
    for client, count, gives in story:
        if gives:
            count = min(count, held[client])
            shares.leave(client, count)
            held[client] -= count
            continue
        left = TOTAL - held.total()
        fits = held[client] + count <= min(TOTAL // 2, left)
        assert shares.take(client, count) is fits
        held[client] += count * fits
        assert (shares.taken, shares.held(client)) == (held.total(), held[client])


@pytest.fixture
def threads():
    threads = FairThreads(4, "fair")
    yield threads
    threads.close()


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
