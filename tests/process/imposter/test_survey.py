"""A worker lies when the links are measured, or breaks a link between workers: who can be named is left out, and what
one worker says of another loses no other worker."""

import re
from collections.abc import Callable

import pytest

from tests.process.imposter.imposter_process import ImposterProcess
from tests.process.imposter.violations import LIES
from tests.process.serving.serving import Serving


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_is_left_out_before_it_serves(
    cluster: Serving, outsider: ImposterProcess, fenced: Callable[[str], None], lie: str
) -> None:
    _act, words = LIES[lie]
    outsider.will("on_survey", lie)
    outsider.start()
    cluster.wait_until(
        lambda status: any(
            node["name"] == outsider.peer and node["state"] == "left out" for node in status["nodes"]
        )
    )
    fenced(words)


def test_what_one_worker_says_of_another_convicts_nobody(
    cluster: Serving, imposter: ImposterProcess, exact: Callable[[Serving], None]
) -> None:
    """The one that was wronged ends its node and says why; a new epoch has all three again."""

    epoch, before = cluster.status()["epoch"], len(cluster.master.log)
    imposter.will("mischief", "malformed to rank 1")
    assert cluster.ask("Once upon", 10)  # not the right text, of course: the imposter's part is missing
    assert re.search(
        r"node 1 \(ann\) was lost .*: it gave up, because.*malformed", cluster.master.log[before:]
    )
    status = cluster.wait_ready(3)
    assert status["epoch"] > epoch
    imposter.close()
    cluster.wait_ready(2)
    exact(cluster)
