"""Which offers count, as lists of times."""

import pytest

from tpiedge.master.offer_rate import FIRST_S, FORGIVEN_S, FREE, LONGEST_S, OfferRate


def used_up() -> OfferRate:
    """The worker's first offer and those that count at once came at 0."""
    rate = OfferRate()
    assert all(rate.admits("w-1", 0.0) for _ in range(1 + FREE))
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


def test_the_offer_after_a_loss_counts_however_often_the_worker_is_lost() -> None:
    """And is no change of the offer, nor a pardon for those that were."""
    rate = used_up()
    for second in range(100):
        rate.lost("w-1")
        assert rate.admits("w-1", second / 100)
        assert not rate.admits("w-1", second / 100)
    assert rate.admits("w-1", FIRST_S)
    assert not rate.admits("w-1", FIRST_S + FIRST_S)


def test_a_loss_of_a_worker_that_never_offered_changes_nothing() -> None:
    rate = OfferRate()
    rate.lost("w-1")
    assert all(rate.admits("w-1", 0.0) for _ in range(1 + FREE))
    assert not rate.admits("w-1", 0.0)


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


def test_a_worker_that_offered_again_in_time_owes_nothing() -> None:
    rate = used_up()
    rate.admits("w-1", 1.0)
    rate.admits("w-1", FIRST_S)
    assert not rate.owed("w-1", FORGIVEN_S)


def test_a_revoked_worker_starts_anew() -> None:
    rate = used_up()
    rate.forget("w-1")
    rate.forget("w-9")
    assert all(rate.admits("w-1", 0.0) for _ in range(1 + FREE))
