import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.contract.networks import linked
from tests.fakes.inprocess import InProcessHub
from tpiedge.transport.endpoint import (
    CONTROL,
    Endpoint,
    EndpointClosed,
    Envelope,
    MalformedMessage,
    Unreachable,
)
from tpiedge.transport.zeromq import ZmqHub
from tpiedge.wire.codec import encode
from tpiedge.wire.control import Cancel, Lost, Shutdown
from tpiedge.wire.data import Hidden, Partial
from tpiedge.wire.fields import TensorHeader

WAIT_S = 20.0


def receive(endpoint: Endpoint) -> Envelope:
    envelope = endpoint.recv(WAIT_S)
    assert envelope is not None, "nothing arrived"
    return envelope


def wait_for_refusal(hub: InProcessHub | ZmqHub) -> None:
    deadline = time.monotonic() + WAIT_S
    while not hub.counters.refused:
        assert hub.recv(0.02) is None
        assert time.monotonic() < deadline, hub.counters


def meet(hub: Endpoint, *spokes: Endpoint) -> None:
    for spoke in spokes:
        spoke.send(Shutdown(0), timeout_s=WAIT_S)
        receive(hub)


def hidden(array: np.ndarray[Any, Any]) -> Hidden:
    return Hidden(1, 1, 0, TensorHeader("f32", array.shape))


def test_messages_of_a_peer_keep_their_order_and_their_sender(network: Any) -> None:
    hub = network.hub()
    spokes = [network.spoke(rank) for rank in (1, 2)]
    for count in range(50):
        for spoke in spokes:
            spoke.send(Shutdown(count))
    seen: dict[str, list[int]] = {"node-1": [], "node-2": []}
    for _ in range(100):
        envelope = receive(hub)
        seen[envelope.sender].append(envelope.message.epoch)
    assert seen == {"node-1": list(range(50)), "node-2": list(range(50))}


@pytest.mark.parametrize("shape", [(0, 7), (1, 1), (3, 5), (128, 4096)])
def test_tensors_arrive_as_they_were(network: Any, shape: tuple[int, int]) -> None:
    hub, spoke = network.hub(), None
    spoke = network.spoke()
    meet(hub, spoke)
    array = np.random.default_rng(0).standard_normal(shape, np.float32)
    for sender, receiver, to in ((spoke, hub, None), (hub, spoke, "node-1")):
        sender.send(hidden(array), array.data, to)
        envelope = receive(receiver)
        assert envelope.message == hidden(array)
        assert envelope.tensor is not None
        assert envelope.tensor.readonly
        assert bytes(envelope.tensor) == array.tobytes()


def test_recv_does_not_spin(network: Any) -> None:
    hub = network.hub()
    hub.post(Shutdown(1), to="node-9")
    used = time.thread_time()
    assert hub.recv(0.3) is None
    assert time.thread_time() - used < 0.1


def test_post_wakes_a_waiting_recv(network: Any) -> None:
    hub, spoke = network.hub(), network.spoke()
    meet(hub, spoke)
    owner = threading.Thread(target=lambda: spoke.recv(WAIT_S))
    owner.start()
    for count in range(20):
        spoke.post(Cancel(count, "r"))
    assert [receive(hub).message.epoch for _ in range(20)] == list(range(20))
    hub.send(Shutdown(1), to="node-1")
    owner.join(WAIT_S)
    assert not owner.is_alive()


def test_posted_messages_are_sent_before_closing(network: Any) -> None:
    hub, spoke = network.hub(), network.spoke()
    meet(hub, spoke)
    spoke.post(Lost(1, 1, "the end"))
    spoke.close()
    assert receive(hub).message == Lost(1, 1, "the end")


def test_many_posted_messages_arrive_in_order(network: Any) -> None:
    hub, spoke = network.hub(CONTROL), network.spoke(plane=CONTROL)
    meet(hub, spoke)
    spoke.post([Cancel(number, "r") for number in range(20_000)])
    owner = threading.Thread(target=lambda: (spoke.send(Lost(1, 1, "last")), spoke.recv(WAIT_S)))
    owner.start()
    assert [receive(hub).message for _ in range(20_000)] == [Cancel(number, "r") for number in range(20_000)]
    assert receive(hub).message == Lost(1, 1, "last")
    hub.send(Shutdown(1), to="node-1")
    owner.join(WAIT_S)
    assert not owner.is_alive()
    assert spoke.posted == 0


def test_sending_to_a_closed_peer_raises_unreachable(network: Any) -> None:
    hub, spoke = network.hub(), network.spoke()
    meet(hub, spoke)
    spoke.close()
    deadline = time.monotonic() + WAIT_S
    while _takes(hub, "node-1") and time.monotonic() < deadline:
        hub.recv(0.01)
    with pytest.raises(Unreachable, match="node-1"):
        hub.send(Shutdown(1), to="node-1", timeout_s=0.0)


def _takes(end: Endpoint, name: str | None) -> bool:
    try:
        end.send(Shutdown(1), to=name, timeout_s=0.0)
    except Unreachable:
        return False
    return True


def test_hub_sends_one_message_to_several_peers(network: Any) -> None:
    hub = network.hub()
    spokes = {f"node-{rank}": network.spoke(rank) for rank in (1, 2, 3)}
    for spoke in spokes.values():
        meet(hub, spoke)
    array = np.arange(8, dtype=np.float32).reshape(1, 8)
    before = hub.counters.bytes_sent
    hub.send(hidden(array), array.data, to=("node-3", "node-1"))
    array += 1
    for name in ("node-1", "node-3"):
        envelope = receive(spokes[name])
        assert bytes(envelope.tensor or b"") == (array - 1).tobytes()
    assert spokes["node-2"].recv(0.05) is None
    assert hub.counters.bytes_sent - before == 2 * (len(encode(hidden(array))) + array.nbytes)


def test_messages_received_while_hub_waits_to_send_are_kept(network: Any) -> None:
    hub, spoke = network.hub(), network.spoke(2)
    meet(hub, spoke)
    for count in range(3):
        spoke.send(Shutdown(count))
    with pytest.raises(Unreachable):
        hub.send(Shutdown(9), to="node-1", timeout_s=0.2)
    assert [receive(hub).message.epoch for _ in range(3)] == [0, 1, 2]


def send_raw(endpoint: Any, hub: Any, frames: list[bytes]) -> None:
    if isinstance(hub, InProcessHub):
        hub.deliver(endpoint.name, b"".join(frames))
    else:
        endpoint.socket.send_multipart(frames)


@pytest.mark.parametrize(
    "frames",
    [
        [b"\xc1"],
        [b"GET / HTTP/1.1\r\n\r\n"],
        [b"\x93\x01\x2f\x01", b"more"],
        [encode(Partial(1, 1, 0, 0, 0, 0, 1, None)) + b"more"],
        [encode(Partial(1, 1, 0, 0, 0, 0, 1, TensorHeader("f32", (1, 1))))],
        [encode(Partial(1, 1, 0, 0, 0, 0, 1, TensorHeader("f32", (1, 1)))), bytes(4) + b"more"],
        [encode(Partial(1, 1, 0, 0, 0, 0, 1, None))[:-1]],
        [b"\x93\x01\x2f\x01", *[b""] * 19, b"x"],
        [b"duplicate"],
    ],
)
def test_malformed_message_error_names_its_sender(network: Any, frames: list[bytes]) -> None:
    hub, spoke = network.hub(), network.spoke()
    meet(hub, spoke)
    send_raw(spoke, hub, frames)
    with pytest.raises(MalformedMessage, match="node-1") as caught:
        receive(hub)
    assert caught.value.peer == "node-1"
    assert hub.counters.refused == 1
    meet(hub, spoke)


def test_closing_endpoint_ends_recv_in_another_thread(network: Any) -> None:
    for endpoint in (network.hub(), network.spoke(), *network.mesh(3)):
        ended = threading.Event()

        def wait(endpoint: Endpoint = endpoint, ended: threading.Event = ended) -> None:
            with pytest.raises(EndpointClosed):
                endpoint.recv(WAIT_S)
            ended.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert not ended.wait(0.02)
        endpoint.close()
        assert ended.wait(WAIT_S)
        thread.join()


SIZE = 3
NAMES = [f"node-{rank}" for rank in range(SIZE)]


@pytest.fixture
def mesh(network: Any) -> list[Any]:
    ends = list(network.mesh(SIZE))
    for rank, end in enumerate(ends):
        for lower in range(rank):
            end.send(Shutdown(0), None, NAMES[lower], WAIT_S)
            assert receive(ends[lower]).sender == NAMES[rank]
    return ends


def test_mesh_peers_receive_all_messages_in_order(mesh: list[Any]) -> None:
    for number in range(50):
        for end in mesh:
            end.send(Shutdown(number), None, [name for name in NAMES if name != end.name], WAIT_S)
    for end in mesh:
        heard = [receive(end) for _ in range(50 * (SIZE - 1))]
        for name in NAMES:
            numbers = [one.message.epoch for one in heard if one.sender == name]  # type: ignore[union-attr]
            assert numbers == ([] if name == end.name else list(range(50)))


def test_flooding_peer_does_not_starve_other_peers(mesh: list[Any]) -> None:
    count, sent = 3000, threading.Event()

    def flood() -> None:
        for number in range(count):
            if number == count // 2:  # however the threads are scheduled
                sent.wait(WAIT_S)
            mesh[1].send(Shutdown(1), None, NAMES[0], WAIT_S)

    flooder = threading.Thread(target=flood)
    flooder.start()
    heard = Counter([receive(mesh[0]).sender])
    mesh[2].send(Shutdown(2), None, NAMES[0], WAIT_S)
    sent.set()
    while not heard[NAMES[2]]:
        heard[receive(mesh[0]).sender] += 1
    assert heard[NAMES[1]] < count
    for _ in range(count - heard[NAMES[1]]):
        receive(mesh[0])
    flooder.join()


def test_closing_endpoint_ends_a_blocked_send(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, wait = threading.Event(), ZmqHub._wait_to_send
    monkeypatch.setattr(ZmqHub, "_wait_to_send", lambda *given: waits.set() or wait(*given))
    with linked("zeromq", monkeypatch) as network, ThreadPoolExecutor(1) as threads:
        end = network.mesh(SIZE)[0]
        sending = threads.submit(end.send, Shutdown(1), None, "nobody", WAIT_S)
        assert waits.wait(WAIT_S)
        end.close()
        with pytest.raises(EndpointClosed):
            sending.result(WAIT_S / 2)
