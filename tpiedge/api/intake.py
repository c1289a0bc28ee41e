"""Reads and prepares arriving requests, within limits."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar, cast
from weakref import WeakValueDictionary

from starlette.requests import Request

from tpiedge.api.body import Disconnected, left, parse_object, read_body
from tpiedge.api.errors import ApiError
from tpiedge.api.guard import Guard
from tpiedge.api.limits import Limits
from tpiedge.master.request_queue import QueueFull
from tpiedge.quotas import ClientQuotas

_THREADS: Final = 4
#: The most threads that work for one client.
_AT_ONCE: Final = _THREADS // 2
#: Content types that curl, and aiohttp in LiteLLM, send by default.
_UNTOLD = ("", "application/x-www-form-urlencoded", "application/octet-stream")
_T = TypeVar("_T")


class Intake:
    """Reads requests on one event loop, prepares them in threads. Clients have quotas."""

    def __init__(self, limits: Limits, guard: Guard) -> None:
        self.limits = limits
        self.guard, self.client = guard, guard.client
        self._threads = ThreadPoolExecutor(_THREADS, "api-intake")
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._places = ClientQuotas(limits.preparing)
        self._bytes = ClientQuotas(limits.bodies_bytes)

    async def done(
        self,
        request: Request,
        work: Callable[[dict[str, object]], _T],
        undo: Callable[[_T], None] | None = None,
    ) -> _T:
        """Returns the result of `work` for the request's JSON. A cancelled call gives the result to `undo`. Raises
        ApiError, QueueFull, Disconnected."""
        client, limits, held = self.client(request), self.limits, 0
        if not self._places.acquire(client):
            own = self._places.used_by(client)
            raise QueueFull(f"{self._places.used} requests are arriving at once, {own} of them yours")

        def reserve(count: int) -> None:
            nonlocal held
            if not self._bytes.acquire(client, count):
                raise QueueFull("too many large requests are arriving at once")
            held += count

        tasks: list[asyncio.Task[Any]] = []
        try:
            # A web page cannot send this type across origins without a preflight, as it can send others.
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            told = any(name == "origin" or name.startswith("sec-fetch-") for name in request.headers)
            # Ollama's clients may omit it where no header shows a browser.
            untold = not told and kind in _UNTOLD and request.url.path.startswith("/api/")
            if kind != "application/json" and not untold:
                raise ApiError(415, "send 'Content-Type: application/json'", "unsupported_media_type")
            announced = request.headers.get("content-length")
            body = await read_body(request.receive, announced, limits.body_bytes, limits.body_s, reserve)
            prepared = self.run(client, lambda: work(parse_object(body, limits.body_values)), undo)
            tasks += asyncio.create_task(prepared), asyncio.create_task(left(request.receive))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                raise Disconnected
            return cast(_T, tasks[0].result())
        finally:
            for task in tasks:
                task.cancel()
            self._places.release(client)
            self._bytes.release(client, held)

    async def run(self, client: str, work: Callable[[], _T], undo: Callable[[_T], None] | None = None) -> _T:
        """Runs `work` in a thread. A cancelled call gives the result to `undo`."""
        slots = self._slots.setdefault(client, asyncio.Semaphore(_AT_ONCE))
        async with slots:
            begun = self._threads.submit(work)
            done = asyncio.wrap_future(begun)
            try:
                return await asyncio.shield(done)
            except asyncio.CancelledError:
                if not begun.cancel():  # the client keeps the thread until the work ends
                    await asyncio.wait([done])
                    if undo is not None and done.exception() is None:
                        undo(done.result())
                raise

    def close(self) -> None:
        """Drops work that has not begun. Call it after the event loop has ended."""
        self._threads.shutdown(wait=False, cancel_futures=True)
