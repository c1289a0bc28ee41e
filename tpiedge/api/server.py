"""The HTTP server: a thread of its own with an event loop, beside the rest of the master."""

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence

import uvicorn

from tpiedge.answers.shelf import AnswerShelf
from tpiedge.api.app import Api
from tpiedge.api.connection import FairTurns, HttpConnection, HttpListener
from tpiedge.api.guard import Guard, check_bind, is_loopback
from tpiedge.api.keys import ApiKeys
from tpiedge.api.limits import Limits
from tpiedge.api.origins import Origins
from tpiedge.api.proxies import Proxies
from tpiedge.api.record_folder import RecordFolder
from tpiedge.api.service import Service
from tpiedge.errors import InternalError, UserError
from tpiedge.host.addresses import own_names
from tpiedge.master.reconciler import RECOVERY_GRACE_S

_ABORT_S = 5.0
_BACKLOG = 2048


class ApiServer:
    """Listens from its construction on, answers from `start` to `close`. Raises UserError where it cannot listen.

    Where no API `keys` are needed, `host` must be a loopback address unless `insecure`. Owns its socket and
    threads, not the service.
    """

    def __init__(
        self,
        service: Service,
        host: str,
        port: int,
        keys: ApiKeys,
        admin_secret: str,
        *,
        insecure: bool = False,
        tls: ssl.SSLContext | None = None,
        origins: Origins | None = None,
        limits: Limits | None = None,
        records: RecordFolder | None = None,
        grace_s: float = RECOVERY_GRACE_S,
        public_names: Sequence[str] = (),
        proxies: Proxies | None = None,
        share_prefixes: bool = False,
    ) -> None:
        """`tls`: with it, clients speak https; `origins`: of web pages that may use it; `records`: with it, answers
        survive the server, and those of the one before go on at once; `grace_s`: for how long its streams wait for
        their readers; the last three as of Guard. Raises UserError for records that cannot be read."""
        pages = origins or Origins()
        check_bind(host, keys, insecure, pages)
        found = limits or Limits.of_context(service.max_sequence)
        names = () if keys.needed or is_loopback(host) else own_names()
        guard = Guard(
            host,
            keys,
            admin_secret,
            found.headers_bytes,
            names,
            pages,
            public_names=public_names,
            proxies=proxies,
            share_prefixes=share_prefixes,
        )
        self._scheme = "http" if tls is None else "https"
        self._socket = _listen(host, port, found.connections, plain=tls is None)
        shelf = AnswerShelf(service, grace_s)
        try:
            #: How many answers of the server before go on.
            self.recovered = 0 if records is None else shelf.recover(records.found(service.tokenizer))
        except BaseException:
            self._socket.close()
            raise
        self._api = Api(service, guard, found, shelf, records, pages)
        self._name: tuple[str, int] = self._socket.getsockname()[:2]
        config = uvicorn.Config(
            self._api,
            loop="asyncio",
            # It is called as a class is.
            http=functools.partial(HttpConnection, found, FairTurns()),  # type: ignore[arg-type]
            h11_max_incomplete_event_size=found.headers_bytes,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level=logging.CRITICAL,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=30,
        )
        config.load()
        config.ssl = tls
        self._server = _Server(config)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="api", daemon=True)
        # Not the thread's own word: where a signal interrupts its join(), Python 3.11 takes it for ended.
        self._over = threading.Event()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, the true one where 0 was asked for."""
        return self._name

    @property
    def url(self) -> str:
        """Where clients on this computer reach it."""
        host, port = self.address
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"{self._scheme}://[{host}]:{port}" if ":" in host else f"{self._scheme}://{host}:{port}"

    def start(self) -> None:
        """Returns once requests are answered."""
        self._thread.start()
        if not self._server.up.wait(10.0):
            raise InternalError("the HTTP server did not start within ten seconds")
        self._server.call(self._api.sweep)

    def close(self, drain_s: float = 0.0) -> None:
        """Stop listening, let running answers finish for `drain_s`, then cancel them. Idempotent."""
        self._closing = True
        if self._thread.ident is not None:
            self._server.should_exit = True
            self._over.wait(drain_s)
            self._end()
        self._socket.close()
        self._api.close(_ABORT_S)

    def _run(self) -> None:
        try:
            self._server.run([self._socket])
        finally:
            self._over.set()
        if not self._closing:
            raise InternalError("the HTTP server ended by itself")

    def _end(self) -> None:
        """Cancel what still runs, first politely: its clients are told."""
        if not self._over.is_set():
            self._server.call(self._api.abort)
            self._over.wait(_ABORT_S)
        if not self._over.is_set():
            self._server.force_exit = True
            self._server.call(self._server.drop_connections)
            self._over.wait(_ABORT_S)


class _Server(uvicorn.Server):
    """uvicorn's, which tells when it listens and can be called from other threads."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.up.set()

    def call(self, function: Callable[[], None]) -> None:
        """Run `function` on the event loop soon, if there still is one."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function)

    def drop_connections(self) -> None:
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, HttpConnection):
                connection.transport.abort()


def _listen(host: str, port: int, limit: int, *, plain: bool) -> HttpListener:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = HttpListener(family, kind, protocol, limit, plain)
    except (OSError, UnicodeError, OverflowError) as error:
        raise UserError(f"cannot listen on {host}:{port}: {error}; give another address") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"cannot listen on {host}:{port}: {reason}; give another port") from None
    return listener
