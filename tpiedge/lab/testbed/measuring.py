"""Measures round trips and TCP throughput of a running testbed. Needs Linux and root.

This process makes all sockets, so the devices' own limits have no effect.
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
from dataclasses import dataclass
from pathlib import Path

from tpiedge.errors import ResourceError
from tpiedge.lab.testbed.isolation import inside
from tpiedge.lab.testbed.topology import Expected

_DATAGRAM = struct.Struct("!I")
_RTTS = 41
_PIECE = 1 << 18


@dataclass(frozen=True)
class End:
    name: str
    address: str
    namespace: Path


@dataclass(frozen=True)
class Measured:
    """Results for a pair. `rtt_s`: the median round trip. `bytes_per_s`: the payload that arrived per second."""

    source: str
    target: str
    rtt_s: float
    lost: int
    bytes_per_s: float | None
    ping_rtt_s: float | None


def measure_pair(source: End, target: End, more_s: float = 0.0) -> Measured:
    """Measures a pair for about 3 s. Each wait may take `more_s` longer."""
    count = _RTTS if not more_s else max(5, min(_RTTS, int(4.0 / more_s)))
    times, lost = rtts_s(source, target, count, more_s)
    rate, ping = _payload_per_s(source, target, more_s), ping_rtt_s(source, target)
    return Measured(source.name, target.name, statistics.median(times), lost, rate, ping)


def expected_rtt_s(there: Expected, back: Expected) -> float:
    """Returns the mean round trip, with half of the jitter."""
    return there.latency_s + back.latency_s + (there.jitter_s + back.jitter_s) / 2


def longest_rtt_s(there: Expected, back: Expected) -> float:
    """Returns the longest round trip through empty queues, with all of the jitter."""
    return there.latency_s + back.latency_s + there.jitter_s + back.jitter_s


def expected_payload(expected: Expected) -> float | None:
    """Returns the bytes per second of TCP payload, without headers."""
    return None if expected.bytes_per_s is None else expected.bytes_per_s * (1500 - 52) / 1500


def rtts_s(source: End, target: End, count: int = _RTTS, more_s: float = 0.0) -> tuple[list[float], int]:
    """Returns (round trips, number of lost datagrams). Raises ResourceError if no datagram comes back."""
    with (
        _socket(source, socket.SOCK_DGRAM, 1.0 + more_s) as here,
        _socket(target, socket.SOCK_DGRAM, 1.0 + more_s) as there,
    ):
        here.connect(there.getsockname())
        there.connect(here.getsockname())
        times = [found for number in range(count) if (found := _round_trip(here, there, number)) is not None]
    if not times:
        raise ResourceError(f"nothing arrives at {target.name} from {source.name}, or nothing comes back")
    return times[1:] or times, count - len(times)  # the first one includes setup


def ping_rtt_s(source: End, target: End) -> float | None:
    """Returns the mean round trip that the system's `ping` measures."""
    if shutil.which("ping") is None:
        return None
    command = ["ping", "-q", "-c", "20", "-i", "0.02", target.address]
    with inside(source.namespace), contextlib.suppress(subprocess.TimeoutExpired):
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30.0)
        if found := re.search(r"= [\d.]+/([\d.]+)/", ended.stdout):
            return float(found[1]) / 1000
    return None


def _socket(device: End, kind: socket.SocketKind, timeout_s: float) -> socket.socket:
    with inside(device.namespace):
        made = socket.socket(socket.AF_INET, kind)
    made.bind((device.address, 0))
    made.settimeout(timeout_s)
    return made


def _round_trip(here: socket.socket, there: socket.socket, number: int) -> float | None:
    # One thread plays both ends, so only the network wakes it.
    time.sleep(0.002)
    started = time.perf_counter()
    here.send(_DATAGRAM.pack(number))
    try:
        while _DATAGRAM.unpack(there.recv(64))[0] != number:
            pass
        there.send(_DATAGRAM.pack(number))
        while _DATAGRAM.unpack(here.recv(64))[0] != number:
            pass
    except TimeoutError:
        return None
    return time.perf_counter() - started


def _payload_per_s(source: End, target: End, more_s: float) -> float:
    limit_s = 10.0 + more_s
    with (
        _socket(target, socket.SOCK_STREAM, limit_s) as listener,
        _socket(source, socket.SOCK_STREAM, limit_s) as sender,
    ):
        listener.listen()
        try:
            sender.connect(listener.getsockname())
            receiver, _ = listener.accept()
        except OSError as error:
            raise ResourceError(f"no connection from {source.name} to {target.name}: {error}") from None
        with receiver:
            thread = threading.Thread(target=_send_all_the_time, args=(sender,), name="sender")
            thread.start()
            try:
                _receive_for(receiver, 0.7 + more_s)
                started = time.perf_counter()
                return _receive_for(receiver, 1.5) / (time.perf_counter() - started)
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


def _receive_for(receiver: socket.socket, seconds: float) -> int:
    buffer, received, deadline = bytearray(_PIECE), 0, time.perf_counter() + seconds
    while (left := deadline - time.perf_counter()) > 0:
        readable, _, _ = select.select([receiver], [], [], left)
        if readable:
            received += receiver.recv_into(buffer)
    return received
