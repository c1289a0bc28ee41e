"""Abusers without a key of the cluster: silent callers and peers, junk, empty frames, guesses."""

import contextlib
import random
import secrets
import socket
import struct
from collections import deque
from collections.abc import Iterator

import zmq

from tools.abusing.attack import Bout
from tools.abusing.target import Target, anywhere
from tpiedge.host.addresses import PAIRING_OFFSET, Address
from tpiedge.joining.enrolment import introduction
from tpiedge.joining.identity import peer_name
from tpiedge.joining.pairing_link import introduction_keys
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.codec import PROTOCOL, encode
from tpiedge.wire.control import Shutdown
from tpiedge.wire.join import PairingRequest, Reveal

_MOST_OPEN = 400
_FLOODERS = 4
_FRAMES = 500


def silent_callers(target: Target, bout: Bout) -> None:
    """Opens silent connections to every port, some hundred at a time."""
    callers: deque[socket.socket] = deque()
    while bout.goes_on(0.02):
        for address in target.ports:
            _call(target, bout, address, callers)
        while len(callers) > _MOST_OPEN * bout.size:
            callers.popleft().close()


def silent_peers(target: Target, bout: Bout) -> None:
    """Opens peers that finish the handshake and say nothing, each with a key and most with an address of its own."""
    with _peers() as open_peer:
        peers: deque[zmq.Socket[bytes]] = deque()
        while bout.goes_on(0.05):
            peers.append(open_peer(target, bout.rng, pairing=bout.rng.random() < 0.3, probe=False))
            bout.counts["peers"] += 1
            while len(peers) > _MOST_OPEN * bout.size:
                peers.popleft().close(0)


def junk(target: Target, bout: Bout) -> None:
    """Sends bytes that are no ZMTP, nearly ZMTP, or something else, to every port."""
    callers: deque[socket.socket] = deque()
    while bout.goes_on(0.01):
        caller = _call(target, bout, bout.rng.choice(target.ports), callers)
        if caller is not None:
            with contextlib.suppress(OSError):
                caller.settimeout(0.5)
                caller.sendall(_rubbish(bout.rng))
        while len(callers) > 100:
            callers.popleft().close()


def empty_frames(target: Target, bout: Bout) -> None:
    """Opens peers that send empty frames as fast as they can, and come back when they are cut off."""
    with _peers() as open_peer:
        peers = [open_peer(target, bout.rng, pairing=False, probe=True) for _ in range(_FLOODERS)]
        while bout.goes_on(0.005):
            place = bout.rng.randrange(_FLOODERS)
            try:
                for _ in range(_FRAMES):
                    peers[place].send(b"", zmq.NOBLOCK)
                    bout.counts["frames"] += 1
            except zmq.Again:
                if not peers[place].poll(0, zmq.POLLOUT) and bout.rng.random() < 0.02:
                    peers[place].close(0)
                    peers[place] = open_peer(target, bout.rng, pairing=bout.rng.random() < 0.3, probe=True)
                    bout.counts["peers"] += 1


def guesses(target: Target, bout: Bout) -> None:
    """Sends made-up secrets of tokens and proofs of pairings, and messages that only members may send."""
    with _peers() as open_peer:
        while bout.goes_on(0.03):
            pairing = bout.rng.random() < 0.4
            peer = open_peer(target, bout.rng, pairing=pairing, probe=True)
            for frame in _claims(pairing):
                if peer.poll(500, zmq.POLLOUT):
                    peer.send(frame, zmq.NOBLOCK)
                    bout.counts["guesses"] += 1
                if peer.poll(50, zmq.POLLIN):
                    bout.counts["answers"] += 1
                    peer.recv_multipart(zmq.NOBLOCK)
            peer.close(0)


def _claims(pairing: bool) -> list[bytes]:
    if pairing:
        request = PairingRequest(PROTOCOL, "1", "somebody", secrets.token_bytes(16))
        return [encode(request), encode(Reveal(secrets.token_bytes(32))), encode(Shutdown(0))]
    return [encode(introduction("somebody", secrets.token_urlsafe(32)[:32])), encode(Shutdown(0))]


@contextlib.contextmanager
def _peers() -> Iterator["_Opening"]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.max_sockets = 8192
    try:
        yield _Opening(context)
    finally:
        context.destroy(0)


class _Opening:
    """Opens connections that have finished, or will finish, the handshake."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._context = context

    def __call__(
        self, target: Target, rng: random.Random, *, pairing: bool, probe: bool
    ) -> zmq.Socket[bytes]:
        keys = CurveKeys.generate()
        peer = self._context.socket(zmq.DEALER)
        peer.linger = 0
        peer.immediate = 1
        peer.sndhwm = 2 * _FRAMES
        peer.curve_publickey, peer.curve_secretkey = keys.public.encode(), keys.secret.encode()
        master = introduction_keys().public if pairing else target.master_key
        peer.curve_serverkey = master.encode()
        peer.routing_id = f"{peer_name(keys.public)}/{secrets.token_hex(8)}".encode()
        peer.probe_router = int(probe)
        place = target.address.beside(PAIRING_OFFSET) if pairing else target.address
        peer.connect(f"tcp://{anywhere(rng)}:0;{place}")
        return peer


def _call(
    target: Target, bout: Bout, address: Address, callers: deque[socket.socket]
) -> socket.socket | None:
    try:
        caller = target.connect(address, anywhere(bout.rng), 2.0)
    except OSError:
        bout.counts["refused"] += 1
        return None
    callers.append(caller)
    bout.counts["callers"] += 1
    return caller


def _rubbish(rng: random.Random) -> bytes:
    noise = rng.randbytes(rng.randint(1, 4096))
    return rng.choice(
        [
            noise,
            b"\xff" + noise[:63],
            _greeting(b"CURVE") + noise,
            _greeting(b"CURVE") + b"\x06" + struct.pack("!Q", 1 << 62),
            _greeting(b"CURVE") + b"\x04\xc8\x05HELLO\x01\x00" + noise[:193].ljust(193, b"\0"),
            _greeting(b"NULL") + b"\x04\x05\x05READY",
            _greeting(b"PLAIN") + b"\x04\x0a\x05HELLO\x01a\x01b",
            b"\x16\x03\x01" + noise,
            b"GET / HTTP/1.1\r\nHost: master\r\n\r\n",
        ]
    )


def _greeting(mechanism: bytes) -> bytes:
    return b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)
