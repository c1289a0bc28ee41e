"""A rank that adds up a slice must send its sum: a missing one does not count as zeros."""

from typing import Any

import pytest

from tests.contract.ranks import EPOCH, TAG, WAIT_S, Ranks, part
from tpiedge.errors import Misconduct
from tpiedge.wire.data import Slice


@pytest.mark.parametrize("way", ["two-shot", "ring"])
def test_a_slice_without_its_sum_is_its_senders_fault(network: Any, way: str) -> None:
    ranks = Ranks(network, way, 2).begun()
    # No share, as anybody may say; and no sum.
    for hop in (0, 1):
        ranks.bare[1].send(Slice(EPOCH, 1, 0, 0, 0, hop, 1, None), (), "node-0", WAIT_S)
    with pytest.raises(Misconduct, match="node 1 sent no") as caught:
        ranks.groups[0].all_reduce(part(0), TAG)
    assert caught.value.rank == 1
