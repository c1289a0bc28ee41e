"""Arriving requests: their bodies and what is done with them before the cluster sees them, all of it bounded, and
divided fairly among clients."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar, cast
from weakref import WeakValueDictionary

from starlette.requests import Request

from tpiedge.answers.generation import Busy
from tpiedge.api.body import Disconnected, left, parse_object, read_body
from tpiedge.api.errors import ApiError
from tpiedge.api.guard import Guard
from tpiedge.api.limits import Limits
from tpiedge.portions import Portions

_THREADS: Final = 4
#: Pieces of work that a client may have with the threads, so that no client's work waits for all of another's.
_AT_ONCE: Final = _THREADS // 2
#: What curl says where it is not told, and aiohttp, by which LiteLLM asks.
_UNTOLD = ("", "application/x-www-form-urlencoded", "application/octet-stream")
_T = TypeVar("_T")


class Intake:
    """For one event loop. Parsing, templates and tokenizing take milliseconds to seconds: threads do them.

    Of its places and bytes no client has more than half, nor more than the others leave; of its threads each has half
    at most, and they do in turn what different clients ask for.
    """

    def __init__(self, limits: Limits, guard: Guard) -> None:
        self.limits = limits
        self._guard = guard
        self._threads = ThreadPoolExecutor(_THREADS, "api-intake")
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._places = Portions(limits.preparing)
        self._bytes = Portions(limits.bodies_bytes)

    def client(self, request: Request) -> str:
        """Who sent a request that was let in."""
        return self._guard.client(request.headers.raw, _host(request))

    def key(self, request: Request) -> bytes:
        """The API key of a request that was let in; empty where none is needed."""
        return self._guard.key_needed(request.headers.raw)

    def scope(self, request: Request) -> str:
        """Returns the scope of a request that was let in, as of Guard."""
        return self._guard.scope(request.headers.raw, _host(request))

    async def done(
        self,
        request: Request,
        work: Callable[[dict[str, object]], _T],
        undo: Callable[[_T], None] | None = None,
    ) -> _T:
        """What `work` makes of the request's JSON object, in a thread; `undo` as of `run`. Raises ApiError and Busy,
        and Disconnected where the sender leaves before."""
        client, limits, held = self.client(request), self.limits, 0
        if not self._places.take(client):
            own = self._places.of(client)
            raise Busy(f"{self._places.taken} requests are arriving at once, {own} of them yours")

        def take(count: int) -> None:
            nonlocal held
            if not self._bytes.take(client, count):
                raise Busy("too many large requests are arriving at once")
            held += count

        tasks: list[asyncio.Task[Any]] = []
        try:
            # A web page can send other types across origins without asking; this one it cannot.
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json" and not _is_a_program_s(request, kind):
                raise ApiError(415, "send 'Content-Type: application/json'", "unsupported_media_type")
            announced = request.headers.get("content-length")
            body = await read_body(request.receive, announced, limits.body_bytes, limits.body_s, take)
            prepared = self.run(client, lambda: work(parse_object(body, limits.body_values)), undo)
            tasks += asyncio.create_task(prepared), asyncio.create_task(left(request.receive))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                raise Disconnected
            return cast(_T, tasks[0].result())
        finally:
            for task in tasks:
                task.cancel()
            self._places.leave(client)
            self._bytes.leave(client, held)

    async def run(self, client: str, work: Callable[[], _T], undo: Callable[[_T], None] | None = None) -> _T:
        """What `work` returns, done in a thread when `client` has its turn. If it is cancelled before, nothing is done;
        if later, what was done is undone."""
        turn = self._turns.setdefault(client, asyncio.Semaphore(_AT_ONCE))
        async with turn:
            begun = self._threads.submit(work)
            done = asyncio.wrap_future(begun)
            try:
                return await asyncio.shield(done)
            except asyncio.CancelledError:
                if not begun.cancel():  # its client keeps the turn until it ends
                    await asyncio.wait([done])
                    if undo is not None and done.exception() is None:
                        undo(done.result())
                raise

    def close(self) -> None:
        """After the event loop has ended. What has not begun never does; what runs ends before the process does."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _host(request: Request) -> str:
    return "" if request.client is None else request.client.host


def _is_a_program_s(request: Request, kind: str) -> bool:
    """Whether a program may say so little of what it sends to Ollama's API, as curl does, where nothing shows a
    browser: these all say from where they ask."""
    told = any(name == "origin" or name.startswith("sec-fetch-") for name in request.headers)
    return not told and kind in _UNTOLD and request.url.path.startswith("/api/")
