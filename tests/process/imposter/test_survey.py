"""A worker lies when the links are measured, or breaks a link between workers: who can be named is left out, and what
one worker says of another loses no other worker."""

import re
from collections.abc import Callable

import pytest

from tests.process.imposter.imposter import Imposter, Mischief, Node
from tests.process.serving.serving import Serving
from tpiedge.wire.data import Survey

LIES: dict[str, tuple[Mischief, str]] = {
    "links that it cannot have": (
        lambda node: node.tensors.send(node.links(0, 2)),
        "reports links that it cannot have",
    ),
    "a survey of its own": (
        lambda node: node.tensors.send(Survey(node.epoch, 1)),
        "sent Survey instead of its links",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_is_left_out_before_it_serves(
    cluster: Serving, outsider: Imposter, fenced: Callable[[str], None], lie: str
) -> None:
    outsider.on_survey, words = LIES[lie]
    outsider.start()
    cluster.wait_until(
        lambda status: any(
            node["name"] == outsider.peer and node["state"] == "left out" for node in status["nodes"]
        )
    )
    fenced(words)


def test_what_one_worker_says_of_another_convicts_nobody(
    cluster: Serving, imposter: Imposter, exact: Callable[[Serving], None]
) -> None:
    """The one that was wronged ends its node and says why; a new epoch has all three again."""

    def wrong(node: Node) -> None:
        imposter.mischief = None
        node.beside._socket.send(b"\x91" * 100)

    epoch, before = cluster.status()["epoch"], len(cluster.master.log)
    imposter.mischief = wrong
    assert cluster.ask("Once upon", 10)  # not the right text, of course: the imposter's part is missing
    assert re.search(
        r"node 1 \(ann\) was lost .*: it gave up, because.*malformed", cluster.master.log[before:]
    )
    status = cluster.wait_ready(3)
    assert status["epoch"] > epoch
    imposter.close()
    cluster.wait_ready(2)
    exact(cluster)
