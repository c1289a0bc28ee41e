"""Looks at a port, to explain why a connection fails."""

import contextlib
import fcntl
import socket
import struct
import termios
import time
from enum import Enum

# Signature, ZMTP 3.1, mechanism, as-server 0, filler.
_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
_POLL_S = 0.02


class Listener(Enum):
    """The kind of listener at a port."""

    NOBODY = "nobody"
    UNREACHABLE = "unreachable"
    CURVE = "curve"
    OTHER = "other"


def probe(host: str, port: int, timeout_s: float) -> Listener:
    """Exchanges ZeroMQ greetings and hangs up. Returns what listens."""
    deadline = time.monotonic() + timeout_s
    try:
        connection = socket.create_connection((host, port), timeout_s)
    except ConnectionRefusedError:
        return Listener.NOBODY
    except OSError:
        return Listener.UNREACHABLE
    greeting = b""
    with connection, contextlib.suppress(OSError):
        connection.sendall(_GREETING)
        while len(greeting) < len(_GREETING):
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            part = connection.recv(len(_GREETING) - len(greeting))
            if not part:
                break
            greeting += part
    is_curve = greeting.startswith(b"\xff") and greeting[12:32].rstrip(b"\0") == b"CURVE"
    return Listener.CURVE if is_curve else Listener.OTHER


def passes_large_packets(host: str, port: int, timeout_s: float) -> bool | None:
    """Returns whether the longest packets pass, or None if this is unknown. Takes up to four times `timeout_s`."""
    try:
        return _passes_large_packets(host, port, timeout_s) or _passes_large_packets(host, port, timeout_s)
    except OSError:
        return None


def _passes_large_packets(host: str, port: int, timeout_s: float) -> bool:
    with socket.create_connection((host, port), timeout_s) as connection:
        deadline = time.monotonic() + timeout_s
        longest = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        try:
            connection.sendall(_GREETING + bytes(2 * longest))
            while struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]:
                if time.monotonic() >= deadline:
                    return False
                connection.settimeout(_POLL_S)
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(4096):  # the other side has ended the connection
                        return True
        except ConnectionResetError:
            return True
    return True
