"""All ranks sum integers in one native call; a wide part among narrow ones is Python's."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.fast_link.cluster import SHAPE, WAIT_S, Cluster, every_way, needs_native
from tpiedge.collectives.summation import LARGEST, NOT_A_NUMBER
from tpiedge.errors import ProtocolError
from tpiedge.transport.native_reducer import DONE
from tpiedge.wire.data import Reduced
from tpiedge.wire.tensors import TensorHeader

pytestmark = needs_native


def whole(rank: int, block: int = 0, wide: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * block + rank)
    largest = LARGEST if wide else (2**31 - 1) // 5
    made = torch.randint(-largest, largest + 1, SHAPE, generator=generator)
    return made if wide else made.to(torch.int32)


def total(given: list[torch.Tensor]) -> torch.Tensor:
    wide = any(one.dtype == torch.int64 for one in given)
    summed = torch.stack([one.to(torch.int64) for one in given]).sum(0)
    return summed if wide else summed.to(torch.int32)


def reduce(cluster: Cluster, given: list[torch.Tensor], block: int) -> None:
    expected = total(given)
    futures = [cluster.start(rank, block, own=one.clone()) for rank, one in enumerate(given)]
    for future in futures:
        result = future.result(WAIT_S)
        assert result.dtype == expected.dtype
        assert torch.equal(result, expected)


@every_way
def test_the_steady_state_is_one_call(make: Any, way: str, size: int) -> None:
    cluster = make(way, size)
    for block in range(30):
        reduce(cluster, [whole(rank, block) for rank in range(size)], block)
    for rank in range(size):
        assert cluster.outcomes(rank).count(DONE) > 10


@every_way
@pytest.mark.parametrize("widest", [0, 1, "last", "all"])
def test_a_wide_part_now_and_then(make: Any, way: str, size: int, widest: Any) -> None:
    cluster = make(way, size)
    ranks = range(size) if widest == "all" else [size - 1 if widest == "last" else widest]
    for block in range(24):
        wide = ranks if block % 4 == 3 else ()
        reduce(cluster, [whole(rank, block, rank in wide) for rank in range(size)], block)
    # Neither a call that left off nor one that was not tried spoils those after it.
    for rank in range(size):
        assert cluster.outcomes(rank).count(DONE) > 3


@every_way
def test_integers_and_f32_of_one_shape_in_turn(make: Any, way: str, size: int) -> None:
    cluster = make(way, size)
    for block in range(12):
        given = [whole(rank, block) for rank in range(size)]
        if block % 2:
            given = [(one % 1000).to(torch.float32) for one in given]
            expected = torch.stack(given).sum(0)  # exact
            futures = [cluster.start(rank, block, own=one.clone()) for rank, one in enumerate(given)]
            assert all(torch.equal(future.result(WAIT_S), expected) for future in futures)
        else:
            reduce(cluster, given, block)


@pytest.mark.parametrize(("way", "left_off"), [("star", 0), ("mesh", 3)])
def test_a_wide_part_in_the_middle_of_a_call(make: Any, way: str, left_off: int) -> None:
    """Rank 1's narrow part is in the sum already, and rank 3's comes once rank 0 goes on in Python."""
    cluster = make(way, 4).meet()
    cluster.patient(0)
    given = [whole(rank, 5, rank == 2) for rank in range(4)]
    for rank in (1, 2):
        cluster.send(rank, 0, 5, given=given[rank])
    waiting = cluster.start(0, 5, own=given[0].clone())
    assert cluster.outcome(0) == left_off
    cluster.send(3, 0, 5, given=given[3])
    assert torch.equal(waiting.result(WAIT_S), total(given))


def test_a_leaf_that_gets_a_wide_sum_for_its_narrow_part(make: Any) -> None:
    cluster = make("star", 2).meet()
    cluster.patient(1)
    cluster.send(0, 1, 5, given=whole(9, 5, wide=True))
    own = whole(1, 5)
    result = cluster.start(1, 5, own=own).result(WAIT_S)
    assert cluster.outcome(1) == 1
    assert torch.equal(result, whole(9, 5, wide=True))


def test_a_wide_part_that_comes_ahead_is_heard_in_its_turn(make: Any, ear: Any) -> None:
    cluster = make("mesh", 3).meet()
    ear.forget()
    cluster.patient(0)
    given = [[whole(rank, block, rank == 1 and block == 6) for rank in range(3)] for block in (5, 6)]
    cluster.send(1, 0, 5, given=given[0][1])
    cluster.send(1, 0, 6, given=given[1][1])
    waiting = cluster.start(0, 5, own=given[0][0].clone())
    ear.wait(2)
    cluster.send(2, 0, 5, given=given[0][2])
    assert torch.equal(waiting.result(WAIT_S), total(given[0]))
    assert cluster.calls[0].get(timeout=WAIT_S) == (DONE, True)
    cluster.send(2, 0, 6, given=given[1][2])
    assert torch.equal(cluster.start(0, 6, own=given[1][0].clone()).result(WAIT_S), total(given[1]))
    assert cluster.outcome(0) == 2


@every_way
def test_what_is_no_number_is_blamed_as_in_python(make: Any, way: str, size: int) -> None:
    cluster = make(way, size)
    for rank in range(1, size):
        given = whole(rank, wide=rank == size - 1)
        if rank == size - 1:
            given[1, 2] = NOT_A_NUMBER
        cluster.send(rank, 0, 0, given=given)
    with pytest.raises(ProtocolError, match=f"node {size - 1} contributed a value that is not finite"):
        cluster.start(0, own=whole(0)).result(WAIT_S)


def test_the_rest_of_a_star_is_served_in_python(make: Any) -> None:
    """The root's call has sent the sum to some, and could not to the rest."""
    cluster = make("star", 3).meet()
    reduce(cluster, [whole(rank) for rank in range(3)], 0)
    fast = cluster.ranks[0]._fast
    kind, prepared = next(item for item in fast._prepared.items() if item[0][1] == "i32")
    sevens = whole(7).numpy()

    def serve_one(_place: bytes, _tensor: int) -> int:
        prepared.scratch[:] = sevens.tobytes()
        return 1

    fast._prepared[kind] = dataclasses.replace(prepared, reduce=serve_one)
    result = cluster.start(0, 4, own=whole(0, 4)).result(WAIT_S)
    answer = cluster.endpoints[2].recv(WAIT_S)
    assert answer is not None
    assert answer.message == Reduced(1, 1, 4, 0, 0, TensorHeader("i32", SHAPE))
    assert bytes(answer.tensors[0]) == sevens.tobytes()
    assert np.array_equal(result.numpy(), sevens)
    assert cluster.endpoints[1].recv(0.05) is None


@every_way
def test_a_part_of_f32_where_integers_belong_is_its_senders_fault(make: Any, way: str, size: int) -> None:
    cluster = make(way, size)
    cluster.send(1, 0, 0, given=torch.ones(SHAPE))
    with pytest.raises(ProtocolError, match=r"node 1 sent .*f32.* where an i32 or i64 tensor"):
        cluster.start(0, own=whole(0)).result(WAIT_S)
