"""An HTTP server in a thread with an event loop."""

import asyncio
import contextlib
import functools
import logging
import ssl
import threading
from collections.abc import Callable
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from tpiedge.api.connection import HttpConnection, HttpListener, RoundRobin
from tpiedge.api.limits import HEADERS_BYTES, Limits
from tpiedge.errors import InternalError
from tpiedge.host.addresses import Address

ABORT_S: Final = 5.0


class HttpServer:
    """Listens from its construction on. Answers from `start` to `close`. `name` is the thread's name. `tls` is None for
    plain HTTP. Raises UserError if it cannot listen."""

    def __init__(
        self, name: str, address: Address, limits: Limits, tls: ssl.SSLContext | None = None
    ) -> None:
        self._socket = HttpListener(address, limits.connections, plain=tls is None)
        #: Host and the port in use.
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        own = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.address[0], self.address[0])
        #: The URL for clients on this computer.
        self.url = f"{'http' if tls is None else 'https'}://{Address(own, self.address[1])}"
        self._limits, self._tls = limits, tls
        self._server: uvicorn.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._up = threading.Event()
        self._closing = False
        self._name = name
        # In Python 3.11 a thread counts as ended once a signal has interrupted its join().
        self._over = threading.Event()

    def start(self, app: ASGIApp, begin: Callable[[], None] = lambda: None) -> None:
        """Calls `begin` on the event loop; returns once `app` answers requests."""
        config = uvicorn.Config(
            app,
            # uvicorn calls it like a class.
            http=functools.partial(HttpConnection, self._limits, RoundRobin()),  # type: ignore[arg-type]
            h11_max_incomplete_event_size=HEADERS_BYTES,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.CRITICAL,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=30,
        )
        config.load()
        config.ssl = self._tls
        self._server = server = uvicorn.Server(config)
        threading.Thread(target=self._run, args=(server, begin), name=self._name, daemon=True).start()
        if not self._up.wait(10.0):
            raise InternalError("the HTTP server did not start within ten seconds")

    def close(self, drain_s: float = 0.0, abort: Callable[[], None] | None = None) -> None:
        """Stops listening, lets answers finish for `drain_s`, then calls `abort` on the event loop. Drops connections
        that are left. Idempotent."""
        self._closing = True
        if self._server is not None:
            self._server.should_exit = True
            self._over.wait(drain_s)
            for cancel in (abort, self._drop_connections):  # first, clients are told
                if cancel is not None and not self._over.is_set():
                    if self._loop is not None:  # it may be about to begin
                        with contextlib.suppress(RuntimeError):  # it ends at this moment
                            self._loop.call_soon_threadsafe(cancel)
                    self._over.wait(ABORT_S)
        self._socket.close()

    def _run(self, server: uvicorn.Server, begin: Callable[[], None]) -> None:
        try:
            asyncio.run(self._serve(server, begin))
        finally:
            self._over.set()
        if not self._closing:
            raise InternalError("the HTTP server ended by itself")

    async def _serve(self, server: uvicorn.Server, begin: Callable[[], None]) -> None:
        self._loop = loop = asyncio.get_running_loop()
        # uvicorn has no setting for this timeout, and asyncio lets a handshake take a minute.
        handshake_s = None if self._tls is None else self._limits.headers_s
        within = functools.partial(loop.create_server, ssl_handshake_timeout=handshake_s)
        loop.create_server = within  # type: ignore[method-assign]
        serving = asyncio.create_task(server.serve([self._socket]))
        while not (server.started or serving.done()):
            await asyncio.sleep(0)
        if server.started:
            begin()
            self._up.set()
        await serving

    def _drop_connections(self) -> None:
        if self._server is not None:
            self._server.force_exit = True
            for connection in tuple(self._server.server_state.connections):
                connection.transport.abort()
