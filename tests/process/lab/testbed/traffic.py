"""Traffic between devices, and what it measures."""

import contextlib
import hashlib
import socket
import statistics
import struct
import threading
import time
from pathlib import Path

from tests.process.lab.testbed.switched import Devices

_SO_RCVBUFFORCE = 33
_SO_TIMESTAMPNS = 35
_ANCILLARY_BYTES = 256
_TIMESPEC = struct.Struct("=qq")
_BUFFER_BYTES = 1 << 20
_UDP_BUFFER_BYTES = 32 << 20


def open_udp(devices: Devices, name: str) -> socket.socket:
    """Returns a socket with room for thousands of packets, which are stamped on arrival."""
    made = devices.socket(name, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _UDP_BUFFER_BYTES)
    deadline = time.monotonic() + 10.0
    while not _is_stamping(made):
        assert time.monotonic() < deadline, "the kernel does not stamp packets"
    return made


def _is_stamping(made: socket.socket) -> bool:
    """The kernel begins a little later; until then a packet has the time at which it is read."""
    made.sendto(b"to itself", made.getsockname())
    arrived_s = time.time()
    time.sleep(0.001)
    return receive_stamped(made)[1] <= arrived_s


def round_trip_s(devices: Devices, source: str, target: str, count: int = 50) -> tuple[float, float]:
    """The least and the median of `count` small packets, each sent back at once."""
    times = []
    with open_udp(devices, source) as one, open_udp(devices, target) as other:
        echo = threading.Thread(target=_echo, args=(other, count))
        echo.start()
        for _ in range(count):
            started_s = time.perf_counter()
            one.sendto(bytes(64), other.getsockname())
            one.recv(2048)
            times.append(time.perf_counter() - started_s)
        echo.join()
    return min(times), statistics.median(times)


def lateness_s() -> float:
    """Returns what waking up may add to a round trip through the switch, which lets no processor sleep deeply where it
    may say so. A virtual machine's sleeps all the same."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(Path("/dev/cpu_dma_latency").open("wb", buffering=0)).write(bytes(4))
        return 2 * _waking_s()


def _waking_s(count: int = 31) -> float:
    """Returns the median of what this machine adds to a round trip that sleeps once: three threads wake up, one by the
    clock."""
    pause_s = 0.001
    added = []
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
    ):
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
            each.settimeout(10.0)
        echo = threading.Thread(target=_echo, args=(other, count, pause_s))
        echo.start()
        for _ in range(count):
            started_s = time.perf_counter()
            one.sendto(bytes(64), other.getsockname())
            one.recv(2048)
            added.append(time.perf_counter() - started_s - pause_s)
        echo.join()
    return statistics.median(added)


def _echo(other: socket.socket, count: int, pause_s: float = 0.0) -> None:
    for _ in range(count):
        packet, source = other.recvfrom(2048)
        if pause_s:
            time.sleep(pause_s)
        other.sendto(packet, source)


def receive_stamped(other: socket.socket) -> tuple[str, float]:
    """Returns the sender's address and the packet's time of arrival by `time.time`."""
    _, ancillary, _, (address, _) = other.recvmsg(2048, _ANCILLARY_BYTES)
    return address, _stamp_s(ancillary[0][2])


def _stamp_s(timespec: bytes) -> float:
    seconds, nanoseconds = _TIMESPEC.unpack(timespec)
    return float(seconds + nanoseconds * 1e-9)


class Receiver:
    """Takes everything from a connection in a thread: how much had arrived when by the clock of `time.time`, and its
    hash."""

    def __init__(self, connection: socket.socket) -> None:
        self.progress: list[tuple[float, int]] = []
        self.digest = hashlib.sha256()
        self._connection = connection
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _receive(self) -> None:
        buffer, total = memoryview(bytearray(_BUFFER_BYTES)), 0
        with self._connection as connection:
            connection.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            while True:
                got, ancillary, _, _ = connection.recvmsg_into([buffer], _ANCILLARY_BYTES)
                if not got:
                    return
                total += got
                self.digest.update(buffer[:got])
                if ancillary:
                    self.progress.append((_stamp_s(ancillary[0][2]), total))


def _connect(devices: Devices, source: str, target: str) -> tuple[socket.socket, socket.socket]:
    with devices.socket(target, socket.SOCK_STREAM) as listener:
        listener.listen()
        connection = devices.socket(source, socket.SOCK_STREAM)
        connection.connect(listener.getsockname())
        accepted, _ = listener.accept()
    accepted.settimeout(10.0)
    return connection, accepted


def goodput(devices: Devices, source: str, target: str, seconds: float) -> float:
    """Payload in bytes per second of one connection, but for the first third of the time; 0: it was too late."""
    connection, accepted = _connect(devices, source, target)
    receiver = Receiver(accepted)
    chunk, until_s = bytes(1 << 16), time.time() + seconds
    with connection:
        while time.time() < until_s:
            connection.sendall(chunk)
        # What fills the buffers by now would take too long at a low rate.
        start_s = until_s - seconds * 2 / 3
        within = [(at_s, total) for at_s, total in list(receiver.progress) if start_s <= at_s <= until_s]
        connection.shutdown(socket.SHUT_WR)
        receiver.join()
    if len(within) < 2:  # the receiver had no time
        return 0.0
    (first_s, first), (last_s, last) = within[0], within[-1]
    return (last - first) / (last_s - first_s)


def transfer(devices: Devices, source: str, target: str, data: bytes) -> bytes:
    connection, accepted = _connect(devices, source, target)
    receiver = Receiver(accepted)
    with connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        receiver.join()
    return receiver.digest.digest()
