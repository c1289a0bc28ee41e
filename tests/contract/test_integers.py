"""All-reduces of integers: exact sums with the same bits by every collective, whoever's part is narrow or wide."""

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.contract.ranks import HUB, TAG, WAIT_S, WAYS, Ranks, each_link, same
from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.collectives.summation import LARGEST, NOT_A_NUMBER
from tpiedge.errors import InternalError, Misconduct, PeerLost, ProtocolError

HIDDEN = 96
# Rows that groups fill and rows that they do not, fewer units than ranks, no rows, more than libzmq sends in one go.
SHAPES = [(0, 96), (1, 1), (1, 192), (3, 96), (7, 33), (700, 96)]
WIDTHS = {
    "narrow": lambda _: False,
    "wide": lambda _: True,
    "first wide": lambda rank: rank == 0,
    "second wide": lambda rank: rank == 1,
    "mixed": lambda rank: rank % 2 == 0,
}
"""Whether a rank's part is wide."""
Width = Callable[[int], bool]


def whole(rank: int, wide: bool, size: int, shape: tuple[int, int] = (3, HIDDEN)) -> torch.Tensor:
    """A part that uses all of its room, both ends included."""
    generator = torch.Generator().manual_seed(rank)
    largest = LARGEST if wide else (2**31 - 1) // size
    made = torch.randint(-largest, largest + 1, shape, generator=generator)
    if made.numel():
        made[0, 0], made[-1, -1] = largest, -largest
    return made if wide else made.to(torch.int32)


def parts(size: int, width: Width, shape: tuple[int, int] = (3, HIDDEN)) -> list[torch.Tensor]:
    return [whole(rank, width(rank), size, shape) for rank in range(size)]


def check_sum(results: Sequence[torch.Tensor], given: Sequence[torch.Tensor | None]) -> None:
    """`given`: None of a rank that does not contribute. In the arithmetic of Python, which has no width."""
    contributed = [one for one in given if one is not None]
    summed = [sum(values) for values in zip(*(one.flatten().tolist() for one in contributed), strict=True)]
    wide = any(one.dtype == torch.int64 for one in contributed)
    for result in results:
        assert result.flatten().tolist() == (summed if contributed else [0] * result.numel())
        assert not result.numel() or result.dtype == (torch.int64 if wide else torch.int32)


def reduce(ranks: Ranks, given: Sequence[torch.Tensor], block: int = 0) -> list[torch.Tensor]:
    """On all ranks, of `given`, whose memory stays as it is."""
    tag = Tag(1, block, 0)
    return ranks.run(lambda one: one.all_reduce(given[one.rank].clone(), tag))


def test_all_reduces_are_exact(ranks: Ranks) -> None:
    for block, (shape, width) in enumerate(itertools.product(SHAPES, WIDTHS.values())):
        given = parts(ranks.size, width, shape)
        results = reduce(ranks, given, block)
        check_sum(results, given)
        assert all(result.shape == shape for result in results)


def test_a_rank_without_a_share_contributes_nothing(ranks: Ranks) -> None:
    silences = [{0}, {1}, {0, 2}, {1, 2}, {0, 1, 2, 3, 4}]
    for block, (silent, width) in enumerate(itertools.product(silences, WIDTHS.values())):
        given = parts(ranks.size, width)
        tag = Tag(1, block, 0)

        def work(one: Communicator, given: Any = given, silent: Any = silent, tag: Tag = tag) -> torch.Tensor:
            if one.rank in silent:
                # Of this one only the kind is used.
                return one.all_reduce(torch.ones(3, HIDDEN, dtype=torch.int32), tag, contributes=False)
            return one.all_reduce(given[one.rank].clone(), tag)

        check_sum(ranks.run(work), [None if rank in silent else part for rank, part in enumerate(given)])


def test_a_wide_tensor_that_does_not_contribute_makes_no_sum_wide(network: Any) -> None:
    ranks = Ranks(network, "mesh", 3).begun()

    def work(one: Communicator) -> torch.Tensor:
        return one.all_reduce(whole(one.rank, one.rank == 1, 3), TAG, contributes=one.rank != 1)

    check_sum(ranks.run(work), [whole(0, False, 3), None, whole(2, False, 3)])


def test_neither_order_nor_collective_changes_a_bit(network: Any) -> None:
    narrow = parts(3, WIDTHS["narrow"])
    mixed = parts(3, WIDTHS["second wide"])
    results: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for way in WAYS:
        ranks = Ranks(network, way, 3).begun()
        for block, order in enumerate(itertools.permutations(range(3))):
            results[0].extend(reduce(ranks, [narrow[rank] for rank in order], 2 * block))
            results[1].extend(reduce(ranks, [mixed[rank] for rank in order], 2 * block + 1))
    assert same(results[0])
    assert same(results[1])
    check_sum(results[0], narrow)
    check_sum(results[1], mixed)


def test_the_caller_owns_the_result(ranks: Ranks) -> None:
    for at, width in enumerate(WIDTHS.values()):
        given = parts(ranks.size, width)

        def work(one: Communicator, given: Any = given, at: int = at) -> None:
            begun = Tag(1, at, 0)
            one.begin_all_reduce(given[one.rank].clone(), begun)
            first = one.finish_all_reduce(begun)
            kept = first.clone()
            second = one.all_reduce(given[one.rank].clone(), Tag(1, at, 1))
            second += 1
            assert torch.equal(first, kept)
            first += 1
            assert torch.equal(one.all_reduce(given[one.rank].clone(), Tag(1, at, 2)) + 1, second)

        ranks.run(work)


def test_integers_and_f32_in_turn(ranks: Ranks) -> None:
    """With now and then a wide part among narrow ones, and several under way."""
    narrow, given = parts(ranks.size, WIDTHS["narrow"]), parts(ranks.size, WIDTHS["mixed"])

    def work(one: Communicator) -> list[torch.Tensor]:
        results = []
        for block in range(8):
            for chunk, part in enumerate((narrow[one.rank], torch.full((3, HIDDEN), 0.5), given[one.rank])):
                one.begin_all_reduce(part.clone(), Tag(1, block, chunk))
            results += [one.finish_all_reduce(Tag(1, block, chunk)) for chunk in range(3)]
            results.append(one.all_reduce(narrow[one.rank].clone(), Tag(1, block, 3)))
            results.append(one.all_reduce(given[one.rank].clone(), Tag(1, block, 4)))
        return results

    for at, results in enumerate(zip(*ranks.run(work), strict=True)):
        if at % 5 == 1:
            assert all(torch.equal(one, torch.full((3, HIDDEN), 0.5 * ranks.size)) for one in results)
        else:
            check_sum(results, given if at % 5 in (2, 4) else narrow)


@each_link
def test_wide_chunks_under_way_are_held_for_a_late_rank(network: Any, way: str) -> None:
    """Three, as many as there may be, whose parts would be of 1 MiB if they were narrow."""
    ranks = Ranks(network, way, 3).begun()
    begun = [threading.Event() for _ in range(3)]
    begun[0].set()
    given = parts(3, WIDTHS["wide"], (64, 4096))

    def work(one: Communicator) -> list[torch.Tensor]:
        assert one.rank or all(event.wait(WAIT_S) for event in begun)
        for chunk in range(3):
            one.begin_all_reduce(given[one.rank], Tag(1, 0, chunk))
            begun[one.rank].set()
        return [one.finish_all_reduce(Tag(1, 0, chunk)) for chunk in range(3)]

    for results in zip(*ranks.run(work), strict=True):
        assert same(results)
        assert torch.equal(results[0], given[0] + given[1] + given[2])


def test_the_way_does_not_depend_on_the_width(network: Any) -> None:
    ranks = Ranks(network, "two-shot", 3).begun(collective="mesh", small_bytes=4 * HIDDEN)
    for block, (tokens, width) in enumerate(itertools.product((1, 2), WIDTHS.values())):
        given = parts(3, width, (tokens, HIDDEN))
        check_sum(reduce(ranks, given, block), given)
    assert [group.counts for group in ranks.groups] == [{"mesh": 5, "two-shot": 5}] * 3


@pytest.mark.parametrize("wire", ["bf16", "int8"])
def test_integers_are_never_rounded(network: Any, wire: str) -> None:
    ranks = Ranks(network, "mesh", 2, wire=wire).begun()
    for take in (ranks.groups[0].all_reduce, ranks.groups[1].begin_all_reduce):
        with pytest.raises(InternalError, match=f"not rounded to {wire}"):
            take(whole(0, False, 2), TAG)


def test_other_integers_are_not_taken(network: Any) -> None:
    one = Ranks(network, "mesh", 2).begun().groups[0]
    for wrong in (
        torch.zeros(2, 2, dtype=torch.int16),
        torch.zeros(2, 3, dtype=torch.int32).T,
        torch.zeros(2, dtype=torch.int64),
    ):
        with pytest.raises(InternalError, match="contiguous f32, int32 or int64 matrices"):
            one.all_reduce(wrong, TAG)


@each_link
def test_sums_of_who_breaks_the_law_wrap_around(network: Any, way: str) -> None:
    ranks = Ranks(network, way, 3).begun()
    largest = torch.full((3, HIDDEN), 2**31 - 1, dtype=torch.int32)
    for block in range(5):
        for total in reduce(ranks, [largest] * 3, block):
            assert torch.equal(total, torch.full((3, HIDDEN), 2**31 - 3, dtype=torch.int32))


# --- what is not finite


def outcomes(ranks: Ranks, values: Sequence[int | None]) -> list[Any]:
    """Every rank's part is ones, but `values` in its last element; None: no share. Narrow where its values are."""

    def given(rank: int) -> tuple[torch.Tensor, bool]:
        value = values[rank]
        ones = torch.ones(4, 64, dtype=torch.int32 if value is None or abs(value) < 2**20 else torch.int64)
        ones[3, 63] = 0 if value is None else value
        return ones, value is not None

    return ranks.refusals(given)


def complaint(results: list[Any]) -> ProtocolError:
    """Rank 0's; the others name no node."""
    assert isinstance(results[0], ProtocolError), results[0]
    for other in results[1:]:
        assert not isinstance(other, Misconduct)
        assert isinstance(other, torch.Tensor | PeerLost | ProtocolError), other
    return results[0]


@pytest.mark.parametrize(
    ("way", "size", "faulty"),
    [
        *((way, 3, faulty) for way in (HUB, "star") for faulty in range(3)),
        *((way, 2, 1) for way in ("mesh", "two-shot")),
    ],
)
def test_a_value_that_is_none_is_blamed_on_its_sender(network: Any, way: str, size: int, faulty: int) -> None:
    """In a two-shot of two it is in the slice of rank 1, which names nobody."""
    ranks = Ranks(network, way, size).begun()
    error = complaint(outcomes(ranks, [NOT_A_NUMBER if rank == faulty else 1 for rank in range(size)]))
    if way == "two-shot":
        assert "not finite in the slice that node 1 added up" in str(error)
    else:
        assert f"node {faulty} contributed a value that is not finite to the all-reduce" in str(error)
        assert isinstance(error, Misconduct)
        assert error.rank == faulty


@pytest.mark.parametrize("faulty", [0, 3])
@each_link
def test_it_is_found_by_every_collective(network: Any, way: str, faulty: int) -> None:
    values: list[int | None] = [1, LARGEST, None, LARGEST]
    values[faulty] = NOT_A_NUMBER
    assert "not finite" in str(complaint(outcomes(Ranks(network, way, 4).begun(), values)))


@each_link
def test_two_of_them_do_not_cancel_out(network: Any, way: str) -> None:
    """Their sum would be 0."""
    ranks = Ranks(network, way, 4).begun()
    assert "not finite" in str(complaint(outcomes(ranks, [1, NOT_A_NUMBER, NOT_A_NUMBER, None])))


@pytest.mark.parametrize("way", [HUB, "star"])
def test_where_all_have_one_no_node_is_blamed(network: Any, way: str) -> None:
    ranks = Ranks(network, way, 3).begun()
    error = complaint(outcomes(ranks, [NOT_A_NUMBER] * 3))
    assert "every node contributed a value that is not finite" in str(error)
    assert not isinstance(error, Misconduct)


@each_link
def test_the_largest_values_are_fine(network: Any, way: str) -> None:
    ranks = Ranks(network, way, 4).begun()
    results = outcomes(ranks, [LARGEST, LARGEST, 5, LARGEST])
    assert all(result[3, 63] == 3 * LARGEST + 5 and result[0, 0] == 4 for result in results)


# --- parts of another kind


@pytest.mark.parametrize("integral", [False, True])
@each_link
def test_a_part_of_the_other_kind_is_its_senders_fault(network: Any, way: str, integral: bool) -> None:
    """`integral`: what rank 0 expects."""
    ranks = Ranks(network, way, 2).begun()

    def work(one: Communicator) -> torch.Tensor:
        kind = torch.int32 if (one.rank == 0) == integral else torch.float32
        return one.all_reduce(torch.ones(3, HIDDEN, dtype=kind), TAG)

    error = ranks.outcomes(work)[0]
    assert isinstance(error, Misconduct)
    assert error.rank == 1
    belongs = "an i32 or i64 tensor" if integral else "an f32 tensor"
    assert f"node 1 sent TensorHeader(dtype='{'f32' if integral else 'i32'}'" in str(error)
    assert f"where {belongs} of shape (" in str(error)
