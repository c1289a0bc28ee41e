"""An authorised node sends what it must not in the middle of an all-reduce: the request ends in words that name it, it
is left out, and the next request is answered exactly. (What is found out how: tests/contract/test_misconduct.py.)"""

import time
from collections.abc import Callable

import openai
import pytest

from tests.process.imposter.imposter import Imposter, Node
from tests.process.imposter.violations import VIOLATIONS
from tests.process.serving.serving import Serving
from tpiedge.transport.framing import TENSOR

# The faults are found at once, and not by anybody's silence.
NOTICED_S = 5.0


@pytest.mark.parametrize("violation", ["another shape", "not a number", "2 GiB announced"])
@pytest.mark.fault(
    "W2", "the request ends in an error that names the node, which is left out; the next answer is exact"
)
@pytest.mark.fault("W11", "the sender of a wrong shape or of NaN is named and left out")
def test_the_request_ends_in_words_and_the_imposter_is_left_out(
    cluster: Serving, imposter: Imposter, fenced: Callable[[str], None], patience: float, violation: str
) -> None:
    imposter.mischief, words = VIOLATIONS[violation]
    started = time.monotonic()
    with pytest.raises(openai.APIStatusError) as caught:
        cluster.ask("Once upon", 10)
    assert time.monotonic() - started < NOTICED_S * patience
    assert caught.value.status_code == 503
    assert f"node 2 ({imposter.name}) was lost during the work: " in caught.value.message
    assert words in caught.value.message
    fenced(words)


@pytest.mark.fault(
    "W5", "messages of an earlier epoch or step are dropped, and numbers that overflow end the request"
)
def test_what_comes_from_another_time_is_dropped(cluster: Serving, imposter: Imposter) -> None:
    def late(node: Node) -> None:
        node.contribute(float("nan"), epoch=node.epoch - 1)
        node.contribute(float("nan"), step=node.step - 1)
        node.contribute()

    imposter.mischief = late
    assert cluster.ask("Once upon", 10)  # not the right text, of course: its part is missing
    assert cluster.ready().status_code == 200
    # The same node: numbers that are finite are believed. Where they overflow later, every node sees it, and nobody
    # can be blamed.
    imposter.mischief = lambda node: node.contribute(3e38)
    try:
        cluster.ask("Once upon", 10)
    except openai.APIStatusError as error:
        words = error.message
    else:
        words = "every node contributed a value that is not finite"
    assert "every node contributed a value that is not finite" in words or "overflows" in words


@pytest.mark.fault("W3", "the connection breaks, the request ends in words, the others serve")
def test_a_frame_beyond_the_limit_breaks_the_connection(
    cluster: Serving,
    imposter: Imposter,
    exact: Callable[[Serving], None],
) -> None:
    """libzmq tells nobody why; so it is a broken connection, as by a bad cable, and no reason to leave somebody out."""
    imposter.mischief = lambda node: node.raw(bytes(TENSOR.frame_limit + 4096))
    with pytest.raises(openai.APIStatusError, match=r"node 2 \(.*\) was lost .*its connection broke"):
        cluster.ask("Once upon", 10)
    imposter.close()
    cluster.wait_ready(2)
    exact(cluster)
