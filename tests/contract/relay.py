"""A relay between a spoke and its hub that can change what passes."""

import contextlib
import socket
import threading
from typing import Self


class Relay:
    """Hands every connection on to `port` of loopback. `flip` changes a bit of the next message
    towards the spoke."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._flip = threading.Event()
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def flipped(self) -> bool:
        return not self._flip.is_set()

    def flip(self) -> None:
        self._flip.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(5.0)
        for one in self._sockets:
            one.close()

    def _start(self, work, *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                spoke, _ = self._listener.accept()
                hub = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [spoke, hub]
                self._start(self._pass_on, spoke, hub, False)
                self._start(self._pass_on, hub, spoke, True)

    def _pass_on(self, source: socket.socket, target: socket.socket, to_spoke: bool) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(65536)):
                if to_spoke and self._flip.is_set():
                    data[-1] ^= 1  # in what CURVE seals
                    self._flip.clear()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
