"""Which connections the HTTP port accepts: each one takes a descriptor, of which workers need some, too."""

import contextlib
import errno
import json
import logging
import os
import socket
import time
import weakref
from collections import Counter
from typing import Any, Final

from tpiedge.api.errors import ApiError
from tpiedge.api.guard import is_loopback
from tpiedge.rate_limited_log import RateLimitedLog

#: Connections that are refused before the event loop has its turn again.
_BURST: Final = 64
_REST_S: Final = 0.02
_SENT_BYTES: Final = 64 << 10
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE)
_log = logging.getLogger(__name__)


class Places:
    """Counts connections by the host at their other end: at most `limit`, of one host at most half of that, and the
    last sixteenth is for this computer's own. Not thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._of_others = limit - limit // 16
        self._of_one = limit // 2
        self._taken = 0
        self._by_host: Counter[str] = Counter()

    def take(self, host: str) -> bool:
        """Whether there is a place, which is taken then."""
        limit = self._limit if is_loopback(host.removeprefix("::ffff:")) else self._of_others
        if self._taken >= limit or self._by_host[host] >= self._of_one:
            return False
        self._taken += 1
        self._by_host[host] += 1
        return True

    def leave(self, host: str) -> None:
        """A connection of `host` has ended."""
        self._taken -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]


class HttpListener(socket.socket):
    """A listening socket. Whoever finds no place among `limit` never waits: the connection ends, where it is `plain`
    HTTP with a 503.

    For one event loop, which accepts until BlockingIOError.
    """

    def __init__(self, family: int, kind: int, protocol: int, limit: int, plain: bool) -> None:
        super().__init__(family, kind, protocol)
        self._plain = plain
        self._places = Places(limit)
        self._warnings = RateLimitedLog(_log)
        self._spare: int | None = _opened()

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection that finds a place."""
        for _ in range(_BURST):
            try:
                accepted, address = super().accept()
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._shed()
                continue
            host = address[0]
            if self._places.take(host):
                return _Connection(accepted, self._places, host), address
            self._warnings.warning("refused an HTTP connection from %s: all places are taken", host)
            if self._plain:
                _refuse(accepted)
            else:  # no TLS client reads what comes before a handshake, which takes time
                accepted.close()
        raise BlockingIOError

    def close(self) -> None:
        super().close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _shed(self) -> None:
        """No descriptor is left: closes the connection that waits longest, by means of the one kept for that.

        BlockingIOError where none waits, or that one is gone, too.
        """
        if self._spare is None:
            self._spare = _opened()
        if self._spare is None:
            time.sleep(_REST_S)  # or the event loop would try without a pause
            raise BlockingIOError
        os.close(self._spare)
        try:
            super().accept()[0].close()
        except OSError:
            raise BlockingIOError from None
        finally:
            self._spare = _opened()
        self._warnings.warning(
            "closed an HTTP connection: this process has too many files and connections open"
        )


class _Connection(socket.socket):
    """Leaves its place when it is closed, or forgotten."""

    def __init__(self, accepted: socket.socket, places: Places, host: str) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self._leave = weakref.finalize(self, places.leave, host)

    def close(self) -> None:
        super().close()
        self._leave()


def _opened() -> int | None:
    """A descriptor; None where there is none."""
    with contextlib.suppress(OSError):
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    return None


def _refuse(connection: socket.socket) -> None:
    error = ApiError(503, "too many connections are open: try again later", "too_many_connections")
    body = json.dumps(error.body())
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 5\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with connection, contextlib.suppress(OSError):
        connection.setblocking(False)
        connection.send(f"{head}{body}".encode("ascii"))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(_SENT_BYTES)  # what is not read makes the end a reset
