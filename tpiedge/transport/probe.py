"""What listens at an address: a look from outside, to explain a connection that does not come about."""

import socket
import time
from enum import Enum

__all__ = ["Listener", "probe"]

_GREETING_BYTES = 64
_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
# ZMTP 3.1, mechanism, as-server 0, filler.
_GREETING = _SIGNATURE + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)


class Listener(Enum):
    """NOBODY: the port is closed. UNREACHABLE: no answer at all. CURVE: ZeroMQ with CURVE, as a master has it."""

    NOBODY = "nobody"
    UNREACHABLE = "unreachable"
    CURVE = "curve"
    OTHER = "other"


def probe(host: str, port: int, timeout_s: float) -> Listener:
    """Connect, exchange a ZeroMQ greeting, and hang up."""
    deadline = time.monotonic() + timeout_s
    try:
        connection = socket.create_connection((host, port), timeout_s)
    except ConnectionRefusedError:
        return Listener.NOBODY
    except OSError:
        return Listener.UNREACHABLE
    with connection:
        greeting = _greeting_of(connection, deadline)
    is_curve = greeting.startswith(b"\xff") and greeting[12:32].rstrip(b"\0") == b"CURVE"
    return Listener.CURVE if is_curve else Listener.OTHER


def _greeting_of(connection: socket.socket, deadline: float) -> bytes:
    """What the other side says first, 64 bytes at most."""
    received = b""
    try:
        connection.sendall(_GREETING)
        while len(received) < _GREETING_BYTES:
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            part = connection.recv(_GREETING_BYTES - len(received))
            if not part:
                break
            received += part
    except OSError:
        pass
    return received
