import contextlib
import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import zmq

from tests.contract.relay import Relay
from tests.contract.test_endpoint import receive, wait_for_refusal
from tpiedge.errors import UserError
from tpiedge.transport.endpoint import TENSOR, DuplicateName, Endpoint, Envelope, LinkReset, Unreachable
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke
from tpiedge.wire.codec import encode
from tpiedge.wire.control import Shutdown

WAIT_S = 20.0
# ZMTP 3.1, CURVE, a client; a command follows, of the length that is said.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
HUB_KEYS, NODE_KEYS, OTHER_KEYS, UNKNOWN_KEYS = (CurveKeys.generate() for _ in range(4))


@pytest.fixture
def hub() -> Iterator[ZmqHub]:
    allowed = {NODE_KEYS.public: "node-1", OTHER_KEYS.public: "node-2"}
    with ZmqHub("tcp://127.0.0.1:*", HUB_KEYS, "node-0", allowed, plane=TENSOR) as made:
        yield made


def connect(hub, keys=NODE_KEYS, name="node-1", server_key=HUB_KEYS.public) -> ZmqSpoke:
    return ZmqSpoke(hub.address, server_key, keys, name, hub_name="node-0", plane=TENSOR)


def assert_serves(hub: ZmqHub, spoke: Endpoint) -> None:
    spoke.send(Shutdown(3), timeout_s=WAIT_S)
    assert receive(hub) == Envelope("node-1", Shutdown(3))
    hub.send(Shutdown(4), to="node-1")
    assert receive(spoke).message == Shutdown(4)


def listen(*endpoints: Endpoint) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        assert [endpoint.recv(0.05) for endpoint in endpoints] == [None] * len(endpoints)


@pytest.mark.fault("W4", "nothing of it is heard")
def test_peer_with_unadmitted_key_is_refused(hub: ZmqHub) -> None:
    with connect(hub, UNKNOWN_KEYS) as unknown, connect(hub) as spoke:
        with pytest.raises(Unreachable):
            unknown.send(Shutdown(1), timeout_s=0.3)
        wait_for_refusal(hub)
        assert_serves(hub, spoke)


@pytest.mark.fault("W4", "no connection")
def test_peer_with_wrong_server_key_cannot_connect(hub: ZmqHub) -> None:
    with connect(hub, server_key=UNKNOWN_KEYS.public) as misled, connect(hub) as spoke:
        with pytest.raises(Unreachable):
            misled.send(Shutdown(1), timeout_s=0.3)
        assert_serves(hub, spoke)


@pytest.mark.fault("W4", "nothing of it is heard")
def test_peer_without_curve_is_ignored(hub: ZmqHub) -> None:
    with zmq.Context() as context, closing(context.socket(zmq.DEALER)) as plain, connect(hub) as spoke:
        plain.linger = 0
        plain.routing_id = b"node-1/x"
        plain.connect(hub.address)
        # Where the handshake has failed already, there is nothing left to send over.
        with contextlib.suppress(zmq.Again):
            plain.send(encode(Shutdown(9)), zmq.NOBLOCK)
        assert_serves(hub, spoke)
        assert hub.recv(0.2) is None


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        bytes.fromhex("ff00000000000000017f0300") + b"CURVE" + bytes(1000),
        b"\xff" * 5000,
        GREETING + b"\x06" + (1 << 31).to_bytes(8, "big"),
        GREETING + b"\x06" + b"\xff" * 8,
    ],
)
@pytest.mark.fault("W1", "cut off; members are heard as before")
@pytest.mark.fault("W3", "gigabytes that an unknown peer announces: cut off; members are heard as before")
def test_connection_sending_junk_is_closed_and_others_are_served(hub: ZmqHub, junk: bytes) -> None:
    host, port = hub.address.removeprefix("tcp://").split(":")
    with connect(hub) as spoke, socket.create_connection((host, int(port))) as raw:
        raw.sendall(junk)
        raw.settimeout(WAIT_S)
        try:
            while raw.recv(4096):
                pass
        except ConnectionResetError:
            pass
        assert_serves(hub, spoke)
        assert hub.recv(0.0) is None


def test_peer_using_another_peers_name_is_refused(hub: ZmqHub) -> None:
    with connect(hub, OTHER_KEYS, name="node-1") as impostor, connect(hub) as spoke:
        impostor.send(Shutdown(1), timeout_s=WAIT_S)
        wait_for_refusal(hub)
        assert_serves(hub, spoke)


def test_second_process_with_the_same_name_is_refused(hub: ZmqHub) -> None:
    with connect(hub) as first:
        assert_serves(hub, first)
        with connect(hub) as second:
            second.send(Shutdown(1), timeout_s=WAIT_S)
            wait_for_refusal(hub)
            with pytest.raises(DuplicateName, match="node-0 already has a living node-1"):
                second.recv(WAIT_S)
            assert_serves(hub, first)
        assert_serves(hub, first)


@pytest.mark.fault("W10", "a process that was started anew is no second one")
def test_hub_gets_link_reset_when_a_process_restarts(hub: ZmqHub) -> None:
    with connect(hub) as first:
        assert_serves(hub, first)
    with connect(hub) as second:
        second.send(Shutdown(3), timeout_s=WAIT_S)
        with pytest.raises(LinkReset) as caught:
            hub.recv(WAIT_S)
        assert caught.value.peer == "node-1"
        assert hub.recv(WAIT_S) is not None
        assert_serves(hub, second)


def test_tampered_message_resets_the_link(hub: ZmqHub) -> None:
    with Relay(int(hub.address.rpartition(":")[2])) as relay, connect(relay) as spoke:
        assert_serves(hub, spoke)
        relay.flip()
        hub.send(Shutdown(5), to="node-1")
        with pytest.raises(LinkReset):
            listen(hub, spoke)
        assert relay.flipped
        assert_serves(hub, spoke)


@pytest.mark.parametrize("address", ["tcp://*:*", "tcp://*:5555", "ipc:///tmp/x", "tcp://192.0.2.1:1"])
def test_invalid_listen_addresses_are_refused(address: str) -> None:
    with pytest.raises(UserError, match="cannot listen"):
        ZmqHub(address, HUB_KEYS, "node-0", {}, plane=TENSOR)


def test_port_in_use_gives_one_error_with_advice(hub: ZmqHub) -> None:
    with pytest.raises(UserError) as caught:
        ZmqHub(hub.address, HUB_KEYS, "node-0", {}, plane=TENSOR)
    assert str(caught.value) == (
        f"cannot listen on {hub.address.removeprefix('tcp://')}: Address already in use; "
        "another program has this port: stop it, or give another port"
    )


def test_the_secret_key_is_not_shown() -> None:
    assert HUB_KEYS.secret not in repr(HUB_KEYS)
    assert HUB_KEYS.public in repr(HUB_KEYS)
