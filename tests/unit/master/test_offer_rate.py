"""Which offers count, as lists of times."""

import pytest

from tpiedge.master.offer_rate import FIRST_S, FORGIVEN_S, FREE, LONGEST_S, OfferRate


def used_up() -> OfferRate:
    """The worker's offers that count at once came at 0."""
    rate = OfferRate()
    assert all(rate.admits("w-1", 0.0) for _ in range(FREE))
    return rate


def test_the_first_offers_count_at_once_and_the_next_must_wait() -> None:
    rate = used_up()
    assert not rate.admits("w-1", 0.0)
    assert not rate.admits("w-1", FIRST_S - 0.1)
    assert rate.admits("w-1", FIRST_S)
    assert rate.admits("w-2", FIRST_S), "no worker waits because of another"


def test_each_wait_is_twice_as_long_as_the_one_before_up_to_a_limit() -> None:
    rate, now, waits = used_up(), 0.0, []
    for _ in range(40):
        waited = 0.0
        while not rate.admits("w-1", now + waited):
            waited += 1.0
        waits.append(waited)
        now += waited
    assert waits[:5] == [FIRST_S * 2**doublings for doublings in range(5)]
    assert set(waits[5:]) == {LONGEST_S}


def test_a_worker_that_offers_nothing_for_a_while_starts_anew() -> None:
    rate = used_up()
    assert all(rate.admits("w-1", FORGIVEN_S) for _ in range(FREE))
    assert not rate.admits("w-1", FORGIVEN_S)


@pytest.mark.parametrize("early", [1, 3])
def test_a_worker_whose_offer_came_too_early_is_asked_once_when_it_is_time(early: int) -> None:
    rate = used_up()
    assert not rate.owed("w-1", FIRST_S), "it owes nothing yet"
    for _ in range(early):
        rate.admits("w-1", 1.0)
    assert not rate.owed("w-1", FIRST_S - 0.1)
    assert rate.owed("w-1", FIRST_S)
    assert not rate.owed("w-1", FIRST_S)


def test_a_worker_that_is_missing_is_asked_when_its_offer_would_count() -> None:
    rate = used_up()
    assert rate.due("w-2", 0.0)
    assert not rate.due("w-1", FIRST_S - 0.1)
    assert rate.due("w-1", FIRST_S)


def test_a_revoked_worker_starts_anew() -> None:
    rate = used_up()
    rate.forget("w-1")
    rate.forget("w-9")
    assert rate.admits("w-1", 0.0)
