"""A step that is recorded: by all ranks the same one, and only where it was asked for; and how far prompts are read."""

import pytest

from tests.cluster.packs import Packs, References, split
from tests.cluster.test_streaming import tight
from tests.fakes.cluster import InProcessCluster, greedy_request
from tpiedge.engine.steps import StepLimits
from tpiedge.wire.control import StepSpans


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("shares", ["1", "2,1,1"])
def test_all_ranks_record_the_step_that_rank_0_picks(
    shares: str, streamed: bool, references: References, packs: Packs
) -> None:
    reference = references("yi")
    told: list[StepSpans] = []
    placement = tight(0.0) if streamed else None
    with InProcessCluster(
        packs(reference), split(reference, shares), placement=placement, told=told.append
    ) as cluster:
        assert tuple(cluster.greedy(reference.prompt_ids, 6)) == reference.greedy_ids[:6]
        assert told == []
        cluster.leader.record_next()
        assert tuple(cluster.greedy(reference.prompt_ids, 6)) == reference.greedy_ids[:6]
    found = sorted(told, key=lambda spans: spans.rank)
    assert [spans.rank for spans in found] == list(range(len(split(reference, shares))))
    assert {(spans.step, spans.tokens) for spans in found} == {(found[0].step, 1)}
    for spans in found:
        assert spans.compute
        assert all(start <= end for part in (spans.compute, spans.reduce, spans.disk) for start, end in part)
        assert min(start for part in (spans.compute, spans.reduce, spans.disk) for start, _ in part) == 0
    assert any(spans.disk for spans in found) == streamed
    counts = {len(spans.reduce) - (spans.rank == 0) for spans in found}
    assert len(counts) == 1  # rank 0 also announces the step


def test_prompt_progress_is_reported_during_prefill(references: References, packs: Packs) -> None:
    reference = references("yi")
    ids = [*reference.prompt_ids] * 3
    seen: list[tuple[tuple[str, int], ...]] = []
    with InProcessCluster(packs(reference), split(reference, "1"), limits=StepLimits(9, 4)) as cluster:
        leader = cluster.leader

        def look() -> bool:
            seen.append(leader.reading)
            return False

        leader.generate(greedy_request(ids, 3), lambda _part: seen.append(leader.reading), look)
        assert leader.reading == ()
    done = [count for reading in seen for _, count in reading]
    assert done == sorted(done)
    assert set(done) >= set(range(0, len(ids), 9))
    assert all(count <= len(ids) for count in done)
