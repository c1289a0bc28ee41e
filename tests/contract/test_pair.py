"""The exchange of two ranks: the star's results, bit for bit, and its complaints."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tpiedge.clock import MonotonicClock
from tpiedge.collectives import pair
from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.collectives.liveness import DeadlineLiveness
from tpiedge.collectives.star import StarLeaf, StarRoot, node_name
from tpiedge.errors import ProtocolError
from tpiedge.transport.inprocess import InProcessHub
from tpiedge.wire.data import StepPlan

PLAN = StepPlan(epoch=1, step=1, segments=(), chunk_tokens=1, tokens=1)
TAG = Tag(1, 0, 0)


def reduce_both(
    network: Any,
    make_root: Callable[..., Communicator],
    make_leaf: Callable[..., Communicator],
    parts: tuple[torch.Tensor | None, torch.Tensor | None],
    *,
    cancel: bool = False,
) -> tuple[list[torch.Tensor], list[bool], list[Exception]]:
    """Results, cancel flags and errors of both ranks; a part of None contributes nothing."""
    hub = network.hub()
    spoke = network.spoke()
    liveness = [DeadlineLiveness(MonotonicClock(), 2.0) for _ in range(2)]
    root = make_root(hub, liveness[0], epoch=1, size=2)
    leaf = make_leaf(spoke, liveness[1], epoch=1, rank=1, size=2)
    results: dict[int, torch.Tensor] = {}
    flags: dict[int, bool] = {}
    errors: dict[int, Exception] = {}

    def take_part(rank: int, communicator: Communicator) -> None:
        shape = next(part for part in parts if part is not None).shape
        part = parts[rank]
        try:
            if rank:
                communicator.next_plan()
            else:
                communicator.announce(PLAN)
                if cancel:
                    communicator.request_cancel()
            own = torch.zeros(shape) if part is None else part.clone()
            results[rank] = communicator.all_reduce(own, TAG, contributes=part is not None)
            flags[rank] = communicator.cancelled
        except Exception as error:
            errors[rank] = error

    thread = threading.Thread(target=take_part, args=(1, leaf))
    thread.start()
    take_part(0, root)
    thread.join(10.0)
    network.close()
    return (
        [results[r] for r in sorted(results)],
        [flags[r] for r in sorted(flags)],
        [errors[r] for r in sorted(errors)],
    )


@pytest.mark.parametrize("missing", [None, 0, 1])
def test_both_ranks_have_the_bits_of_the_star(network: Any, missing: int | None) -> None:
    torch.manual_seed(0)
    parts = [torch.randn(3, 50) * 1e3, torch.randn(3, 50)]
    given = tuple(None if rank == missing else part for rank, part in enumerate(parts))
    exchanged, _, errors = reduce_both(network, pair.root, pair.leaf, given)  # type: ignore[arg-type]
    summed, _, _ = reduce_both(network, StarRoot, StarLeaf, given)  # type: ignore[arg-type]
    assert errors == []
    assert torch.equal(exchanged[0], exchanged[1])
    assert torch.equal(exchanged[0], summed[0])


def test_two_ranks_exchange_and_three_do_not() -> None:
    hub = InProcessHub(node_name(0))
    liveness = DeadlineLiveness(MonotonicClock(), 1.0)
    assert type(pair.root(hub, liveness, epoch=1, size=2)) is pair.PairRoot
    assert type(pair.root(hub, liveness, epoch=1, size=3)) is StarRoot
    hub.close()


def test_a_cancel_reaches_both_after_the_same_block(network: Any) -> None:
    parts = (torch.ones(1, 4), torch.ones(1, 4))
    results, flags, errors = reduce_both(network, pair.root, pair.leaf, parts, cancel=True)
    assert errors == []
    assert flags == [True, True]
    assert torch.equal(results[1], torch.full((1, 4), 2.0))


@pytest.mark.parametrize("guilty", [0, 1])
def test_a_value_that_is_not_finite_names_its_sender(network: Any, guilty: int) -> None:
    parts = [torch.ones(1, 4), torch.ones(1, 4)]
    parts[guilty][0, 2] = float("nan")
    _, _, errors = reduce_both(network, pair.root, pair.leaf, (parts[0], parts[1]))
    assert isinstance(errors[0], ProtocolError)
    assert f"node {guilty} contributed a value that is not finite" in str(errors[0])


def test_a_root_of_the_other_kind_is_noticed(network: Any) -> None:
    parts = (torch.ones(1, 4), torch.ones(1, 4))
    for make_root, make_leaf, due in (
        (StarRoot, pair.PairLeaf, "own part was due"),
        (pair.PairRoot, StarLeaf, "the sum was due"),
    ):
        _, _, errors = reduce_both(network, make_root, make_leaf, parts)
        assert [type(error) for error in errors] == [ProtocolError]
        assert due in str(errors[0])
