"""Somebody in the middle: forwards connections of a worker to its master, faithfully, with a bit changed, or twice; and
keeps what the worker said."""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

from tests.process.network.namespaces import BRIDGE, MASTER, Namespaces

_PART = 1 << 16


class Proxy:
    """A context manager: a proxy on the bridge for the master's `count` ports from `port` on."""

    def __init__(self, namespaces: Namespaces, port: int, count: int) -> None:
        self._master = namespaces.addresses[MASTER]
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._flips: dict[tuple[int, bool], int] = {}
        self._repeats: set[tuple[int, bool]] = set()
        self._lock = threading.Lock()
        self._closing = False
        #: Connections forwarded so far, by port.
        self.connections: dict[int, int] = {}
        #: All that the worker has sent on each of them, by port.
        self.heard: dict[int, list[bytearray]] = {}
        # What these threads do is done on the bridge.
        with namespaces.inside(BRIDGE):
            for number in range(port, port + count):
                server = self._own(socket.create_server((namespaces.addresses[BRIDGE], number)))
                self._start(self._accept, server, number)

    def flip(self, port: int, to_worker: bool, at: int) -> None:
        """Change a bit of the next part that passes on a connection to `port`: of its byte `at`, -1 the last."""
        self._flips[port, to_worker] = at

    def repeat(self, port: int, to_worker: bool) -> None:
        """Send the next part that passes on a connection to `port` twice."""
        self._repeats.add((port, to_worker))

    @property
    def pending(self) -> bool:
        return bool(self._flips or self._repeats)

    def close(self) -> None:
        with self._lock:
            self._closing = True
            for one in self._sockets:
                _shut(one)
        while self._threads:
            self._threads.pop().join()
        for one in self._sockets:
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _accept(self, server: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError):
            while not self._closing:
                worker = self._own(server.accept()[0])
                try:
                    master = self._own(socket.create_connection((self._master, port)))
                except ConnectionError:  # no node listens there between two epochs
                    worker.close()
                    continue
                self.connections[port] = self.connections.get(port, 0) + 1
                heard = bytearray()
                self.heard.setdefault(port, []).append(heard)
                self._start(self._pump, worker, master, port, heard)
                self._start(self._pump, master, worker, port, None)

    def _pump(self, source: socket.socket, sink: socket.socket, port: int, heard: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(_PART):
                if heard is not None:
                    heard += part
                sink.sendall(self._changed(part, port, heard is None))
        _shut(source)
        _shut(sink)

    def _changed(self, part: bytes, port: int, to_worker: bool) -> bytes:
        if (port, to_worker) in self._repeats:
            self._repeats.remove((port, to_worker))
            return part + part
        at = self._flips.pop((port, to_worker), None)
        if at is None:
            return part
        changed = bytearray(part)
        changed[at] ^= 4
        return bytes(changed)

    def _own(self, one: socket.socket) -> socket.socket:
        with self._lock:
            self._sockets.append(one)
            if self._closing:
                _shut(one)
        return one

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)
        thread.start()
        self._threads.append(thread)


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
