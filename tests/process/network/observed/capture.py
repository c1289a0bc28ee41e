"""Everything that crosses a bridge, and the byte streams of its TCP connections put together again."""

import contextlib
import socket
import struct
import threading
from dataclasses import dataclass
from typing import Self

from tests.process.network.namespaces import BRIDGE, MACHINES, Namespaces

_ETH_P_ALL = 3
_SO_RCVBUFFORCE = 33
_BUFFER = 256 << 20
_PACKET = 1 << 17
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_STOP_S = 0.2
_SEQUENCE = 1 << 32
_IPV4, _TCP, _SYN = 0x0800, 6, 2

Direction = tuple[str, int, str, int]
"""(address, port) of the sender, then of the receiver."""


@dataclass(frozen=True)
class Recording:
    """`streams`: what was sent in each direction of each connection. `others`: whole packets that are no TCP."""

    streams: dict[Direction, bytes]
    others: list[bytes]

    def find(self, needle: bytes) -> list[str]:
        assert len(needle) >= 6, "so short a needle is found by accident"
        found = [str(direction) for direction, stream in self.streams.items() if needle in stream]
        return found + ["a packet that is no TCP" for packet in self.others if needle in packet]

    def sent_from(self, port: int) -> int:
        return sum(len(stream) for direction, stream in self.streams.items() if direction[1] == port)


class Capture:
    """Records from its start to `stop`. A context manager. It sees a packet where it enters the bridge."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._packets: list[bytes] = []
        self._sockets: list[socket.socket] = []
        with namespaces.inside(BRIDGE):
            for name in MACHINES:
                self._sockets.append(_listener(name))
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(one,)) for one in self._sockets]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Take what has come, then end. Fails if the kernel dropped anything. Idempotent."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            if one.fileno() >= 0:
                _seen, dropped = struct.unpack("II", one.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
                one.close()
                assert dropped == 0, f"{dropped} packets were not captured"

    def recording(self) -> Recording:
        segments: dict[Direction, dict[int, bytes]] = {}
        starts: dict[Direction, int] = {}
        others = []
        for packet in self._packets:
            parsed = _tcp_of(packet)
            if parsed is None:
                others.append(packet)
                continue
            direction, sequence, syn, data = parsed
            if syn:
                starts[direction] = (sequence + 1) % _SEQUENCE
            if data:
                known = segments.setdefault(direction, {})
                known[sequence] = max(known.get(sequence, b""), data, key=len)
        return Recording({way: _joined(parts, starts[way]) for way, parts in segments.items()}, others)

    def _read(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                self._take(listener)
        listener.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # nothing is left
            while True:
                self._take(listener)

    def _take(self, listener: socket.socket) -> None:
        packet, address = listener.recvfrom(_PACKET)
        if address[2] != socket.PACKET_OUTGOING:
            self._packets.append(packet)


def _listener(device: str) -> socket.socket:
    listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
    listener.settimeout(_STOP_S)
    listener.bind((device, _ETH_P_ALL))
    return listener


def _tcp_of(packet: bytes) -> tuple[Direction, int, bool, bytes] | None:
    """Returns direction, sequence number, whether it is a SYN, and payload; None for anything but TCP over IPv4."""
    if struct.unpack_from("!H", packet, 12)[0] != _IPV4 or packet[14 + 9] != _TCP:
        return None
    ip = packet[14:]
    header, total = (ip[0] & 15) * 4, struct.unpack_from("!H", ip, 2)[0]
    tcp = ip[header : total or None]  # offloaded packets may be too long to say their length
    source, target, sequence = struct.unpack_from("!HHI", tcp)
    way = (socket.inet_ntoa(ip[12:16]), source, socket.inet_ntoa(ip[16:20]), target)
    return way, sequence, bool(tcp[13] & _SYN), tcp[(tcp[12] >> 4) * 4 :]


def _joined(parts: dict[int, bytes], start: int) -> bytes:
    stream = bytearray()
    for offset, data in sorted(((sequence - start) % _SEQUENCE, data) for sequence, data in parts.items()):
        if offset == _SEQUENCE - 1:  # a probe of an idle connection: the byte before the next one
            continue
        assert offset <= len(stream), f"{offset - len(stream)} bytes were not captured"
        stream += data[len(stream) - offset :]
    return bytes(stream)
