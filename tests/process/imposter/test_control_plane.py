"""An authorised worker sends the master what it must not, or far too much: it is left out, and nobody else notices."""

from collections.abc import Callable

import psutil
import pytest

from tests.process.imposter.imposter_process import ImposterProcess
from tests.process.serving.serving import Serving
from tpiedge import __version__
from tpiedge.joining.connecting import open_link
from tpiedge.joining.identity import peer_name
from tpiedge.joining.tokens import parse_token
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.join import Enrol, Refused
from tpiedge.wire.messages import PROTOCOL

MB = 1_000_000


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("listening", "it says that it listens, where nobody is to connect"),
        ("as large as allowed", "malformed"),
    ],
)
@pytest.mark.fault("W2", "a node that breaks the protocol is left out")
def test_a_node(
    cluster: Serving,
    imposter: ImposterProcess,
    fenced: Callable[[str], None],
    act: str,
    words: str,
) -> None:
    imposter.will("on_control", act)
    cluster.wait_until(lambda status: not status["ready"])
    fenced(words)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("master's", "it sent Launch, which is not a worker's to send"),
        ("two frames", "more than one frame"),
    ],
)
@pytest.mark.fault("W2", "an agent that breaks the protocol is left out")
def test_an_agent(
    cluster: Serving,
    imposter: ImposterProcess,
    fenced: Callable[[str], None],
    act: str,
    words: str,
) -> None:
    imposter.will("on_agent", act)
    cluster.wait_until(lambda status: not status["ready"])
    fenced(words)


@pytest.mark.fault("W2", "who floods the master is left out; its memory does not grow")
def test_a_flood(cluster: Serving, imposter: ImposterProcess, fenced: Callable[[str], None]) -> None:
    master = psutil.Process(cluster.master.pid)
    before = master.memory_info().rss

    imposter.will("on_agent", "a flood")
    cluster.wait_until(lambda status: not status["ready"])
    fenced("it floods the master with messages")
    assert master.memory_info().rss - before < 20 * MB


@pytest.mark.fault("W9", "refused before it joins, with both versions and what to do")
def test_another_protocol(cluster: Serving) -> None:
    """Refused before it is let in, with both versions and what to do."""
    token, keys = parse_token(cluster.token()), CurveKeys.generate()
    with open_link(token.address, token.master_key, keys, peer_name(keys.public)) as link:
        link.send(Enrol(PROTOCOL + 1, "9.9", "newer", token.secret, "n", "", ""), timeout_s=3.0)
        refused = link.recv(5.0).message
    assert isinstance(refused, Refused)
    assert refused.kind == "protocol"
    assert f"tpiedge 9.9 (protocol {PROTOCOL + 1})" in refused.message
    assert f"the master {__version__} (protocol {PROTOCOL})" in refused.message
    assert "update tpiedge on the master's computer" in refused.message
    assert cluster.ready().status_code == 200
