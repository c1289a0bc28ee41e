"""What the ways of a running testbed really give: round trips of datagrams, bytes of one TCP connection. Linux, root.

All sockets belong to this process, made in the devices' namespaces: the devices' own limits do not count, and what is
measured is the network alone.
"""

import contextlib
import re
import select
import shutil
import socket
import statistics
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from tpiedge.errors import ResourceError
from tpiedge.lab.testbed.topology import Expected

_MTU_BYTES = 1500
#: Of each packet: IP and TCP headers with time stamps.
_HEADERS_BYTES = 52
_DATAGRAM = struct.Struct("!I")
_RTTS, _LEAST_RTTS = 41, 5
_RTTS_S = 4.0
_GAP_S = 0.002
_ANSWER_S = 1.0
_PIECE = 1 << 18
_WARM_UP_S, _THROUGHPUT_S = 0.7, 1.5
_CONNECT_S = 10.0
_PING_S = 30.0
_PING_RTT = re.compile(r"= [\d.]+/([\d.]+)/")


class End(Protocol):
    """A device."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...


class Ways(Protocol):
    """A testbed: a thread that is `inside` a device makes sockets there."""

    def inside(self, device: Any, /) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class Measured:
    """What one pair gave, `source` first. `rtt_s` is a median; `bytes_per_s` the payload that arrived."""

    source: str
    target: str
    rtt_s: float
    lost: int
    bytes_per_s: float | None
    ping_rtt_s: float | None


def measure_pair(testbed: Ways, source: End, target: End, more_s: float = 0.0) -> Measured:
    """Takes about three seconds, and the longer the more the links delay: what is waited for may take
    `more_s` more than without any delay. Raises ResourceError where nothing arrives."""
    count = _RTTS if not more_s else max(_LEAST_RTTS, min(_RTTS, int(_RTTS_S / more_s)))
    times, lost = rtts_s(testbed, source, target, count, more_s)
    return Measured(
        source.name,
        target.name,
        statistics.median(times),
        lost,
        _payload_per_s(testbed, source, target, more_s),
        ping_rtt_s(testbed, source, target),
    )


def expected_rtt_s(there: Expected, back: Expected) -> float:
    """Half of the jitter comes on top on average."""
    return there.latency_s + back.latency_s + (there.jitter_s + back.jitter_s) / 2


def longest_rtt_s(there: Expected, back: Expected) -> float:
    """The round trip with all jitter, before anything waits in a queue."""
    return there.latency_s + back.latency_s + there.jitter_s + back.jitter_s


def expected_payload(expected: Expected) -> float | None:
    """Payload per second of one TCP connection; the rate counts packets with their headers. None: no limit."""
    if expected.bytes_per_s is None:
        return None
    return expected.bytes_per_s * (_MTU_BYTES - _HEADERS_BYTES) / _MTU_BYTES


def rtts_s(
    testbed: Ways, source: End, target: End, count: int = _RTTS, more_s: float = 0.0
) -> tuple[list[float], int]:
    """(round trips of small datagrams, how many got no answer). Raises ResourceError where none did."""
    answer_s = _ANSWER_S + more_s
    with (
        _datagram_socket(testbed, source, answer_s) as here,
        _datagram_socket(testbed, target, answer_s) as there,
    ):
        here.connect(there.getsockname())
        there.connect(here.getsockname())
        times = [found for number in range(count) if (found := _round_trip(here, there, number)) is not None]
    if not times:
        raise ResourceError(f"nothing arrives at {target.name} from {source.name}, or nothing comes back")
    return times[1:] or times, count - len(times)  # the first one pays for what is set up on the way


def ping_rtt_s(testbed: Ways, source: End, target: End) -> float | None:
    """The mean that the system's own `ping` says; None where it is not installed, or gets no answer."""
    if shutil.which("ping") is None:
        return None
    with testbed.inside(source):
        try:
            ended = subprocess.run(
                ["ping", "-q", "-c", "20", "-i", "0.02", target.address],
                capture_output=True,
                text=True,
                check=False,
                timeout=_PING_S,
            )
        except subprocess.TimeoutExpired:
            return None
    found = _PING_RTT.search(ended.stdout)
    return float(found[1]) / 1000 if found else None


@contextlib.contextmanager
def _datagram_socket(testbed: Ways, device: End, answer_s: float) -> Iterator[socket.socket]:
    with testbed.inside(device):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with made:
        made.bind((device.address, 0))
        made.settimeout(answer_s)
        yield made


def _round_trip(here: socket.socket, there: socket.socket, number: int) -> float | None:
    """One thread plays both ends: only the network wakes it."""
    time.sleep(_GAP_S)
    started = time.perf_counter()
    here.send(_DATAGRAM.pack(number))
    for end, answers in ((there, True), (here, False)):
        if not _await(end, number):
            return None
        if answers:
            end.send(_DATAGRAM.pack(number))
    return time.perf_counter() - started


def _await(end: socket.socket, number: int) -> bool:
    """False if it does not come; late ones of earlier numbers are passed over."""
    with contextlib.suppress(TimeoutError):
        while _DATAGRAM.unpack(end.recv(64))[0] != number:
            pass
        return True
    return False


def _payload_per_s(testbed: Ways, source: End, target: End, more_s: float) -> float:
    """Once the connection has found its speed. Raises ResourceError where there is none."""
    with testbed.inside(target):
        listener = socket.create_server((target.address, 0))
    with testbed.inside(source):
        sender = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with listener, sender:
        for end in (sender, listener):
            end.settimeout(_CONNECT_S + more_s)
        try:
            sender.connect(listener.getsockname())
            receiver, _ = listener.accept()
        except OSError as error:
            raise ResourceError(f"no connection from {source.name} to {target.name}: {error}") from None
        with receiver:
            thread = threading.Thread(target=_send_all_the_time, args=(sender,), name="sender")
            thread.start()
            try:
                return _received_per_s(receiver, _WARM_UP_S + more_s)
            finally:
                for end in (receiver, sender):
                    with contextlib.suppress(OSError):  # the other end may have broken it off by now
                        end.shutdown(socket.SHUT_RDWR)
                thread.join()


def _send_all_the_time(sender: socket.socket) -> None:
    piece = bytes(_PIECE)
    with contextlib.suppress(OSError):  # its end is shut down by the other thread
        while True:
            sender.send(piece)


def _received_per_s(receiver: socket.socket, warm_up_s: float) -> float:
    buffer = bytearray(_PIECE)
    _receive_until(receiver, buffer, time.perf_counter() + warm_up_s)
    started = time.perf_counter()
    received = _receive_until(receiver, buffer, started + _THROUGHPUT_S)
    return received / (time.perf_counter() - started)


def _receive_until(receiver: socket.socket, buffer: bytearray, deadline: float) -> int:
    received = 0
    while (left := deadline - time.perf_counter()) > 0:
        readable, _, _ = select.select([receiver], [], [], left)
        if readable:
            received += receiver.recv_into(buffer)
    return received
