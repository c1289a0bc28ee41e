from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tpiedge.quotas import ClientQuotas, over_quota, quota_of, within_quota

TOTAL = 128


def taken(quotas: ClientQuotas, client: str) -> int:
    return sum(quotas.acquire(client) for _ in range(2 * TOTAL))


def test_each_further_client_gets_half_of_what_is_left() -> None:
    quotas = ClientQuotas(TOTAL)
    assert [taken(quotas, client) for client in "abcdefg"] == [64, 32, 16, 8, 4, 2, 1]
    assert quotas.used == TOTAL - 1


@pytest.mark.parametrize(("total", "parts"), [(1, [1, 0]), (2, [1, 1, 0]), (3, [2, 1, 0]), (5, [3, 1, 1, 0])])
def test_quota_of_small_total_is_rounded_up(total: int, parts: list[int]) -> None:
    quotas = ClientQuotas(total)
    assert [taken(quotas, client) for client in "abcd"[: len(parts)]] == parts


def test_acquiring_zero_is_never_refused() -> None:
    quotas = ClientQuotas(TOTAL)
    assert quotas.acquire("a", TOTAL // 2)
    assert quotas.acquire("b", TOTAL // 4)
    assert quotas.acquire("a", 0)
    assert not quotas.acquire("a", 1)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.booleans()), max_size=60))
def test_quotas_never_exceed_half_per_client_or_total(story: list[tuple[str, int, bool]]) -> None:
    quotas, held = ClientQuotas(TOTAL), Counter[str]()
    for client, count, gives in story:
        if gives:
            count = min(count, held[client])
            quotas.release(client, count)
            held[client] -= count
            continue
        left = TOTAL - held.total()
        fits = count == 0 or held[client] + count <= min(TOTAL // 2, left)
        assert quotas.acquire(client, count) is fits
        held[client] += count * fits
        assert (quotas.used, quotas.used_by(client)) == (held.total(), held[client])


@given(asked=st.lists(st.sampled_from("abcd"), max_size=100))
@example(asked=list("a" * 9 + "b" * 5 + "c" * 3 + "d" * 2))
def test_new_client_always_gets_a_place_beside_few_others(asked: list[str]) -> None:
    places, has = 16, Counter[str]()
    for client in asked:
        has[client] += within_quota(has[client], has.total(), places)
    assert max(has.values(), default=0) <= places // 2
    assert within_quota(0, has.total(), places)


held = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 40)), max_size=30)


@given(held, st.integers(0, 200))
@example([("a", 9), ("b", 9), ("a", 9)], 10)
def test_over_quota_evicts_only_the_excess(held: list[tuple[str, int]], total: int) -> None:
    left = dict(enumerate(held))

    def amounts() -> Counter[str]:
        found = Counter[str]()
        for client, amount in left.values():
            found[client] += amount
        return found

    for number in over_quota(held, total):
        found = amounts()
        client = held[number][0]
        assert found[client] == max(found.values())
        assert number == min(one for one, (own, _) in left.items() if own == client)
        assert found.total() > total or found[client] > quota_of(total)
        del left[number]
    assert amounts().total() <= total
    assert max(amounts().values(), default=0) <= quota_of(total)


def test_over_quota_evicts_oldest_on_a_tie() -> None:
    assert list(over_quota([("b", 1), ("a", 1), ("c", 1)], 2)) == [0]
