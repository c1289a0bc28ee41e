"""An authorised node sends what it must not in the middle of an all-reduce: it is named and left out, and the answer
comes without it, exactly. (What is found out how: tests/contract/test_misconduct.py.)"""

import re
from collections.abc import Callable

import pytest

from tests.process.imposter.imposter_process import ImposterProcess
from tests.process.imposter.violations import VIOLATIONS
from tests.process.serving.serving import Serving


@pytest.mark.parametrize("violation", ["another shape", "not a number", "2 GiB announced"])
@pytest.mark.fault("W2", "the node is named and left out; the answer comes without it, and is exact")
@pytest.mark.fault("W11", "the sender of a wrong shape or of NaN is named and left out")
def test_the_imposter_is_left_out_and_the_answer_is_exact(
    cluster: Serving,
    imposter: ImposterProcess,
    exact: Callable[[Serving], None],
    fenced: Callable[[str], None],
    violation: str,
) -> None:
    _act, words = VIOLATIONS[violation]
    imposter.will("mischief", violation)
    before = len(cluster.master.log)
    exact(cluster)
    said = cluster.master.log[before:]
    assert f"node 2 ({imposter.name}) was lost during the work: " in said
    assert words in said
    fenced(words)


@pytest.mark.fault(
    "W5",
    "messages of an earlier epoch or step are dropped; numbers of this step are believed if they are finite",
)
def test_what_comes_from_another_time_is_dropped(cluster: Serving, imposter: ImposterProcess) -> None:
    imposter.will("mischief", "of another time")
    assert cluster.ask("Once upon", 10)  # not the right text, of course: its part is missing
    assert cluster.ready().status_code == 200
    # The same node: numbers that are finite are believed, however large. Nobody could say whose fault the answer is.
    epoch, before = cluster.wait_ready(3)["epoch"], len(cluster.master.log)
    imposter.will("mischief", "far too large")
    assert cluster.ask("Once upon", 10)
    assert cluster.wait_ready(3)["epoch"] == epoch or cluster.silences(before)


@pytest.mark.fault("W3", "the connection breaks, and is made anew: the answer goes on")
def test_a_frame_beyond_the_limit_breaks_the_connection(
    cluster: Serving,
    imposter: ImposterProcess,
    exact: Callable[[Serving], None],
) -> None:
    """libzmq tells nobody why; so it is a broken connection, as by a bad cable, and no reason to leave somebody out."""
    imposter.will("mischief", "a frame beyond the limit")
    before = len(cluster.master.log)
    assert cluster.ask(
        "Once upon", 10
    )  # not the right text, of course: in the next epoch its part is missing
    assert re.search(r"node 2 \(.*\) was lost .*its connection broke", cluster.master.log[before:])
    imposter.close()
    cluster.wait_ready(2)
    exact(cluster)
