from collections.abc import Callable, Iterator

import pytest

from tests.cluster.packs import Packs, References, split
from tests.cluster.test_streaming import tight
from tests.fakes.cluster import InProcessCluster, greedy_request
from tpiedge.engine.steps import StepLimits
from tpiedge.wire.control import Token


def true_from(call: int) -> Callable[[], bool]:
    calls: Iterator[bool] = iter([False] * (call - 1))
    return lambda: next(calls, True)


@pytest.mark.parametrize(("shares", "pinned_part"), [("1", 0.0), ("1,1", None), ("2,1,1", 0.5)])
@pytest.mark.parametrize("call", [1, 2, 3, 7, 8])
@pytest.mark.fault("H6", "cancelled at any moment, the next answer is exact")
def test_cluster_answers_exactly_after_cancel_at_any_moment(
    call: int, shares: str, pinned_part: float | None, references: References, packs: Packs
) -> None:
    reference = references("yi")
    with InProcessCluster(
        packs(reference),
        split(reference, shares),
        limits=StepLimits(9, 4),
        placement=None if pinned_part is None else tight(pinned_part),
        grain_pages=1,
    ) as cluster:
        events: list[object] = []
        request = greedy_request(reference.prompt_ids, 24)
        finished = cluster.leader.generate(request, events.append, true_from(call))
        tokens = [event.token for event in events if isinstance(event, Token)]
        assert finished.reason == "cancel"
        assert finished.tokens == len(tokens) < 24
        assert tuple(tokens) == reference.greedy_ids[: len(tokens)]
        assert tuple(cluster.greedy(reference.prompt_ids, 16)) == reference.greedy_ids
