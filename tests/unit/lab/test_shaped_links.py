"""In-process endpoints behind links of a model: late, in order, never lost; and nothing stays behind."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

import pytest

from tpiedge.lab.link_model import LinkModel, LinkSettings, PathModel
from tpiedge.lab.shaped_links import ShapedNetwork
from tpiedge.transport.endpoint import EndpointClosed
from tpiedge.transport.inprocess import InProcessHub, InProcessPeer

pytestmark = pytest.mark.alone

_WAIT_S = 10.0
_SLACK_S = 0.1
_TRIES = 20


def _least(measure: Callable[[], Sequence[float]], wanted: Sequence[float]) -> None:
    """What `measure` returns are seconds of at least what is wanted, and no more at the best of some tries: what else
    the machine does only adds to them."""
    best = [_WAIT_S] * len(wanted)
    for _ in range(_TRIES):
        found = measure()
        assert all(one >= least for one, least in zip(found, wanted, strict=True)), found
        best = list(map(min, best, found))
        if all(one < least + _SLACK_S for one, least in zip(best, wanted, strict=True)):
            return
    pytest.fail(f"{best}, not {wanted}")


def _links(settings: LinkSettings, seed: int = 1) -> Callable[[str, str], LinkModel]:
    """A link of its own for each pair."""
    seeds = itertools.count(seed)
    return lambda sender, receiver: LinkModel(settings, next(seeds))


@contextmanager
def _mesh(size: int, path: Callable[[str, str], LinkModel | PathModel]) -> Iterator[list[InProcessPeer]]:
    with closing(ShapedNetwork(path)) as network:
        peers = InProcessPeer.group([f"node-{rank}" for rank in range(size)])
        network.join(*peers)
        yield peers
        for peer in peers:
            peer.close()


def test_a_frame_takes_the_latency_there_and_back() -> None:
    with (
        closing(ShapedNetwork(_links(LinkSettings(latency_s=0.03)))) as network,
        closing(InProcessHub("hub")) as hub,
    ):
        spoke = hub.spoke("spoke")
        network.join(hub, spoke)

        def there_and_back() -> Sequence[float]:
            started_s = time.monotonic()
            spoke.send_frame(b"ping")
            assert hub.recv_frame(_WAIT_S) == ("spoke", b"ping")
            there_s = time.monotonic() - started_s
            hub.send_frame(b"pong", "spoke")
            assert spoke.recv_frame(_WAIT_S) == ("hub", b"pong")
            return there_s, time.monotonic() - started_s

        _least(there_and_back, (0.03, 0.06))
        spoke.close()


def test_the_sender_does_not_wait_and_the_frame_is_a_copy() -> None:
    with _mesh(2, _links(LinkSettings(latency_s=2.0))) as (one, other):
        frame = bytearray(b"as sent")
        started_s = time.monotonic()
        one.send_frame(frame, "node-1")
        assert time.monotonic() - started_s < 1.0
        frame[:] = b"changed"
        assert other.recv_frame(0.0) is None
        assert other.recv_frame(_WAIT_S) == ("node-0", b"as sent")


def test_large_frames_take_their_time() -> None:
    with _mesh(2, _links(LinkSettings(bytes_per_s=1e6))) as (one, other):

        def two() -> Sequence[float]:
            started_s, found = time.monotonic(), []
            for _ in range(2):
                one.send_frame(bytes(50_000), "node-1")
            for _ in range(2):
                assert other.recv_frame(_WAIT_S)
                found.append(time.monotonic() - started_s)
            return found

        _least(two, (0.05, 0.1))


def test_jitter_and_loss_keep_the_order_and_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpiedge.lab.shaped_links.LEAST_RETRANSMISSION_S", 0.01)
    frames = [number.to_bytes(2) for number in range(300)]
    with _mesh(2, _links(LinkSettings(jitter_s=0.002, loss=0.2))) as (one, other):
        for frame in frames:
            one.send_frame(frame, "node-1")
        assert [other.recv_frame(_WAIT_S) for _ in frames] == [("node-0", frame) for frame in frames]


class _LosesTheFirst(LinkModel):
    """Loses the first message and no other."""

    def __init__(self) -> None:
        super().__init__(LinkSettings(latency_s=0.001))
        self._lost = 0

    def arrival_ns(self, now_ns: int, nbytes: int) -> int | None:
        self._lost += 1
        return None if self._lost == 1 else super().arrival_ns(now_ns, nbytes)


def test_a_lost_frame_comes_a_timeout_later_and_holds_up_its_own_link_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tpiedge.lab.shaped_links.LEAST_RETRANSMISSION_S", 1.0)
    _least(_around_a_loss, [1.001])


def _around_a_loss() -> Sequence[float]:
    """Seconds until the frame that is lost at first has come, and the one behind it."""

    def path(sender: str, _receiver: str) -> LinkModel:
        return _LosesTheFirst() if sender == "node-0" else LinkModel(LinkSettings())

    with _mesh(3, path) as (one, other, third):
        started_s = time.monotonic()
        one.send_frame(b"lost", "node-1")
        one.send_frame(b"behind", "node-1")
        third.send_frame(b"elsewhere", "node-1")
        assert other.recv_frame(_WAIT_S) == ("node-2", b"elsewhere")
        assert [other.recv_frame(_WAIT_S) for _ in range(2)] == [("node-0", b"lost"), ("node-0", b"behind")]
        return [time.monotonic() - started_s]


def test_pairs_that_share_a_link_share_its_rate() -> None:
    core = LinkModel(LinkSettings(bytes_per_s=1e6))
    with _mesh(3, lambda _sender, _receiver: PathModel([core])) as (one, other, third):
        started_s = time.monotonic()
        one.send_frame(bytes(50_000), "node-2")
        other.send_frame(bytes(50_000), "node-2")
        assert third.recv_frame(_WAIT_S)
        assert third.recv_frame(_WAIT_S)
        assert time.monotonic() - started_s >= 0.1


def test_closing_with_frames_under_way_leaves_nothing() -> None:
    before = set(threading.enumerate())
    network = ShapedNetwork(_links(LinkSettings(latency_s=30.0)))
    one, other = InProcessPeer.group(["node-0", "node-1"])
    network.join(one, other)
    one.send_frame(b"never seen", "node-1")
    network.close()
    network.close()
    assert set(threading.enumerate()) == before
    assert other.recv_frame(0.0) is None
    one.close()
    with pytest.raises(EndpointClosed):
        one.send_frame(b"", "node-1")
    other.close()


class _Refuses:
    """A receiver that takes nothing."""

    name = "node-1"

    def __init__(self) -> None:
        self.asked = threading.Event()

    def deliver(self, _sender: str, _frame: bytes | None) -> None:
        self.asked.set()
        raise ValueError("refused")


def _refused() -> tuple[ShapedNetwork, InProcessPeer]:
    """A network whose thread has ended by an error of a receiver, and one of its endpoints."""
    network, (peer,) = ShapedNetwork(_links(LinkSettings())), InProcessPeer.group(["node-0"])
    network.join(peer)
    assert peer.carry is not None
    receiver = _Refuses()
    peer.carry("node-0", receiver, b"")
    assert receiver.asked.wait(_WAIT_S)
    return network, peer


def test_what_a_receiver_raises_is_raised_at_close() -> None:
    network, peer = _refused()
    peer.close()
    with pytest.raises(ValueError, match="refused"):
        network.close()
    network.close()


def _send_for(peer: InProcessPeer, seconds: float) -> None:
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        assert peer.carry is not None
        peer.carry("node-0", _Refuses(), b"")


def test_what_a_receiver_raises_is_raised_at_the_next_send() -> None:
    network, peer = _refused()
    with pytest.raises(ValueError, match="refused"):
        _send_for(peer, _WAIT_S)
    with pytest.raises(ValueError, match="refused"):
        network.close()
    peer.close()


def test_a_link_that_loses_everything_does_not_keep_it_busy() -> None:
    with _mesh(2, _links(LinkSettings(loss=1.0))) as (one, other):
        one.send_frame(b"gone", "node-1")
        started_s = time.process_time()
        assert other.recv_frame(0.5) is None
        assert time.process_time() - started_s < 0.1
