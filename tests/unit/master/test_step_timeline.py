"""What several nodes say of one step."""

from tpiedge.master.counters import StepTimeline, Timelines
from tpiedge.wire.control import StepSpans


def spans(rank: int, step: int) -> StepSpans:
    return StepSpans(3, rank, step, 1, ((0, 5),), (), ())


def test_it_is_whole_when_all_have_told_of_the_same_step() -> None:
    one = Timelines(2)
    one.take(spans(1, 7), 1.0)
    assert one.latest is None
    one.take(spans(0, 7), 2.0)
    assert one.latest == StepTimeline(3, 2.0, (spans(0, 7), spans(1, 7)))


def test_a_node_that_tells_of_other_steps_spoils_nothing_for_good() -> None:
    one = Timelines(2)
    for rank, step in ((0, 7), (1, 1 << 60), (0, 9)):
        one.take(spans(rank, step), 1.0)
        assert one.latest is None
    one.take(spans(1, 9), 3.0)
    found = one.latest
    assert found is not None
    assert found.spans[0].step == 9
    one.take(spans(1, 11), 4.0)
    assert one.latest is found
