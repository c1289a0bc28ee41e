import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.transport import backlog
from tpiedge.transport.backlog import crowded

LIMIT, EACH = 5, 3


@pytest.fixture(autouse=True, scope="module")
def few():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backlog, "MAX_STRANGERS", LIMIT)
        patch.setattr(backlog, "STRANGERS_EACH", EACH)
        yield


@pytest.mark.parametrize(
    ("addresses", "full"),
    [("a", None), ("aaa", None), ("aaaa", "a"), ("bacac", None), ("bacaca", "a"), ("ccaaab", "a")],
)
def test_the_newcomer_s_address_or_the_fullest_one_loses_its_oldest(addresses, full):
    assert crowded(addresses) == full


@given(st.lists(st.sampled_from("abcd")))
def test_no_more_than_may_be_and_the_newcomer_stays(arrivals):
    here = []
    for number, address in enumerate(arrivals):
        here.append((address, number))
        addresses = [one for one, _ in here]
        full = crowded(addresses)
        assert (full is not None) == (len(here) > LIMIT or addresses.count(address) > EACH)
        if full is not None:
            here.remove(next(one for one in here if one[0] == full))
        assert here[-1] == (address, number)
