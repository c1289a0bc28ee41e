from hypothesis import given
from hypothesis import strategies as st

from tpiedge.lab.bench.memory_runs import least
from tpiedge.units import MIB


@given(st.integers(1, 1 << 40), st.integers(0, 1 << 40))
def test_smallest_working_budget_is_found_to_a_mib(needed: int, more: int) -> None:
    tried: list[int] = []

    def works(nbytes: int) -> bool:
        tried.append(nbytes)
        return nbytes >= needed

    found = least(works, needed + more)
    assert found % MIB == 0
    assert needed <= found < needed + MIB
    assert len(tried) <= 22
