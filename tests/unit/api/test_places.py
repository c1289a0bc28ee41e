"""Who finds a place among the connections of the HTTP port."""

import pytest

from tpiedge.api.limits import Limits
from tpiedge.api.listener import Places

LIMIT = 64
OWN = ["127.0.0.1", "127.0.0.9", "::1", "::ffff:127.0.0.1"]


def taken(places: Places, *hosts: str) -> int:
    """How many places these hosts get who try again and again."""
    return sum(places.take(host) for _ in range(LIMIT) for host in hosts)


def test_a_host_gets_half_of_all_places() -> None:
    places = Places(LIMIT)
    assert taken(places, "10.0.0.1") == LIMIT // 2
    assert places.take("10.0.0.2")


@pytest.mark.parametrize("own", OWN)
def test_others_leave_some_places_to_this_computer(own: str) -> None:
    places = Places(LIMIT)
    assert taken(places, *(f"10.0.0.{number}" for number in range(9)), "fd00::1") == LIMIT - 4
    assert taken(places, own) == 4


def test_there_are_no_more_than_all_places() -> None:
    assert taken(Places(LIMIT), *OWN, "10.0.0.1") == LIMIT


def test_whoever_leaves_makes_a_place() -> None:
    places = Places(LIMIT)
    for _ in range(3):
        assert taken(places, "10.0.0.1") == LIMIT // 2
        for _ in range(LIMIT // 2):
            places.leave("10.0.0.1")
    assert places._by_host == {}


@pytest.mark.parametrize(
    ("descriptors", "connections"), [(256, 128), (1024, 512), (10_240, 4096), (1 << 62, 4096)]
)
def test_half_of_the_descriptors_are_for_workers(descriptors: int, connections: int) -> None:
    assert Limits().of_descriptors(descriptors).connections == connections
