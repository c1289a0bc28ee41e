"""An authorised worker sends the master what it must not, or far too much: it is left out, and nobody else notices."""

import contextlib
from collections.abc import Callable

import psutil
import pytest
import zmq

from tests.process.imposter.imposter import Imposter
from tests.process.serving.serving import Serving
from tpiedge import __version__
from tpiedge.joining.connecting import open_link
from tpiedge.joining.identity import peer_name
from tpiedge.joining.tokens import parse_token
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqSpoke
from tpiedge.wire.codec import encode
from tpiedge.wire.control import Listening
from tpiedge.wire.epochs import AgentPulse, Launch
from tpiedge.wire.join import Enrol, Refused
from tpiedge.wire.limits import MAX_CONTROL_HEADER
from tpiedge.wire.messages import PROTOCOL

MB = 1_000_000
FLOOD_MESSAGES = 30_000


def raw(*frames: bytes) -> Callable[[ZmqSpoke], None]:
    return lambda link: link._socket.send_multipart(frames)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (
            raw(encode(Listening(1, 2, "tcp://203.0.113.1:80"))),
            "it says that it listens, where nobody is to connect",
        ),
        (raw(bytes(MAX_CONTROL_HEADER)), "malformed"),
    ],
    ids=["listening", "as large as allowed"],
)
@pytest.mark.fault("W2", "a node that breaks the protocol is left out")
def test_a_node(
    cluster: Serving,
    imposter: Imposter,
    fenced: Callable[[str], None],
    act: Callable[[ZmqSpoke], None],
    words: str,
) -> None:
    imposter.on_control = act
    cluster.wait_until(lambda status: not status["ready"])
    fenced(words)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (raw(encode(Launch(1))), "it sent Launch, which is not a worker's to send"),
        (raw(encode(AgentPulse(0)), b"more"), "more than one frame"),
    ],
    ids=["master's", "two frames"],
)
@pytest.mark.fault("W2", "an agent that breaks the protocol is left out")
def test_an_agent(
    cluster: Serving,
    imposter: Imposter,
    fenced: Callable[[str], None],
    act: Callable[[ZmqSpoke], None],
    words: str,
) -> None:
    imposter.on_agent = act
    cluster.wait_until(lambda status: not status["ready"])
    fenced(words)


@pytest.mark.fault("W2", "who floods the master is left out; its memory does not grow")
def test_a_flood(cluster: Serving, imposter: Imposter, fenced: Callable[[str], None]) -> None:
    master = psutil.Process(cluster.master.pid)
    before = master.memory_info().rss

    def flood(link: ZmqSpoke) -> None:
        frame = encode(AgentPulse(0))
        for _ in range(FLOOD_MESSAGES):
            with contextlib.suppress(zmq.Again):
                link._socket.send(frame, zmq.NOBLOCK)

    imposter.on_agent = flood
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
