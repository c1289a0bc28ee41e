"""Somebody between a browser and a master, who gives out a page of his own and hands everything else on as it is; and
notes what was asked and answered. To the browser he is whatever name leads to him."""

import contextlib
import re
import socket
import threading
from dataclasses import dataclass
from typing import Self

PAGE = "/attack.html"
_PART = 1 << 16
_JOIN_S = 5.0
_ASKED = re.compile(rb"(?:\A|\r\n|\})(GET|HEAD|POST|PUT|DELETE|OPTIONS) (\S+) HTTP/1\.1\r\n")
_ANSWERED = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")


@dataclass(frozen=True)
class Exchange:
    """A request and the status of its answer."""

    method: str
    path: str
    status: int


class Middleman:
    """On a port of loopback, before the master at `port` of it. A context manager."""

    def __init__(self, port: int, page: str) -> None:
        self._master = ("127.0.0.1", port)
        body = page.encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self._page = head.encode() + body
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._seen: list[Exchange] = []
        self._start(self._accept)

    @property
    def port(self) -> int:
        number: int = self._listener.getsockname()[1]
        return number

    @property
    def seen(self) -> list[Exchange]:
        """What was asked and answered so far."""
        with self._lock:
            return list(self._seen)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            sockets, threads = list(self._sockets), list(self._threads)
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(_JOIN_S)
        for one in sockets:
            one.close()

    def _start(self, work, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                browser, _ = self._listener.accept()
                with self._lock:
                    self._sockets.append(browser)
                self._start(self._serve, browser)

    def _serve(self, browser: socket.socket) -> None:
        """A connection is to one of the two: browsers do not pipeline."""
        with contextlib.suppress(OSError):
            first = browser.recv(_PART)
            if first.startswith(f"GET {PAGE}".encode()):
                browser.sendall(self._page)
                browser.shutdown(socket.SHUT_WR)
                return
            if not first:
                browser.shutdown(socket.SHUT_WR)
                return
            master = socket.create_connection(self._master)
            with self._lock:
                self._sockets.append(master)
            asked: list[tuple[str, str]] = []
            self._start(self._answer, master, browser, asked)
            while first:
                asked += [(one[1].decode(), one[2].decode()) for one in _ASKED.finditer(first)]
                master.sendall(first)
                first = browser.recv(_PART)
            master.shutdown(socket.SHUT_WR)

    def _answer(self, master: socket.socket, browser: socket.socket, asked: list[tuple[str, str]]) -> None:
        with contextlib.suppress(OSError):
            while part := master.recv(_PART):
                for one in _ANSWERED.finditer(part):
                    with self._lock:
                        self._seen.append(Exchange(*(asked.pop(0) if asked else ("", "")), int(one[1])))
                browser.sendall(part)
            browser.shutdown(socket.SHUT_WR)
