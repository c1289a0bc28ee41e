"""The administrator's routes under /admin: machines, tokens, requests, the model, the key by a link. All but LINK_PATH
need the admin key."""

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tpiedge.api import fields as t
from tpiedge.api.cluster import ClusterPicture
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.guard import LINK_PATH, Guard
from tpiedge.api.intake import Intake
from tpiedge.api.parsed import found_model
from tpiedge.api.timeline import shown_step
from tpiedge.local.service import Service
from tpiedge.master.loss_plans import Forecast
from tpiedge.master.reconciler import NotServing

_T = TypeVar("_T")

_MAX_NAME = 256
NOTHING: Final = t.body()
"""The schema of a body without fields."""
USE: Final = t.body(
    "model",
    model={**t.TEXT, "minLength": 1, "maxLength": _MAX_NAME},
    now=t.flag("Whether the requests of other models end at once."),
)
#: Shorter than clients wait for an answer.
_PLAN_S = 30.0


class Admin:
    """Makes the routes under /admin. `intake` must serve only these routes."""

    def __init__(self, service: Service, intake: Intake, guard: Guard) -> None:
        self._service = service
        self._intake = intake
        self._guard = guard
        self._picture = ClusterPicture(service, guard.sender)
        self._prediction: asyncio.Future[Forecast] | None = None

    def routes(self) -> list[Route]:
        return [
            Route("/admin/cluster", self._cluster, methods=["GET"]),
            Route("/admin/link", self._link, methods=["POST"]),
            Route(LINK_PATH, self._key, methods=["POST"]),
            Route("/admin/whatif", self._what_if, methods=["GET"]),
            Route("/admin/requests/{id}", self._dismiss, methods=["DELETE"]),
            Route("/admin/cache", self._cache, methods=["GET", "DELETE"]),
            Route("/admin/nodes", self._nodes, methods=["GET"]),
            Route("/admin/tokens", self._invite, methods=["POST"]),
            Route("/admin/model", self._use, methods=["POST"]),
            self._told("pending", lambda: {"pending": self._service.pending()}),
            self._told("members", self._service.members),
            self._order("drain", "name", "name", self._service.drain),
            self._order("approve", "code", "name", self._service.approve),
            self._order("revoke", "name", "revoked", self._service.revoke),
            self._order("undrain", "name", "name", self._service.undrain),
            self._order("clear", "name", "name", self._service.clear),
        ]

    async def _link(self, _request: Request) -> Response:
        return _secret({"code": self._guard.admin.new_code()})

    async def _key(self, request: Request) -> Response:
        return _secret({"key": self._guard.admin_key(request)})

    async def _cluster(self, request: Request) -> Response:
        service = self._service
        status, timeline = service.observe(timeline=True), service.timeline()
        waiting, shown = await self._run(
            lambda: (service.pending(), shown_step(timeline, status.nodes, status.epoch))
        )
        body = json.dumps(self._picture.of(status, waiting, shown, time.monotonic())).encode()
        headers = {"etag": f'"{hashlib.sha256(body).hexdigest()[:32]}"', "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type="application/json")

    async def _what_if(self, request: Request) -> Response:
        query = dict(request.query_params)
        without = query.get("without", "")
        if len(query) != 1 or not (query.get("more") == "1" or 0 < len(without) <= _MAX_NAME):
            raise refused("ask for one machine less, ?without=NAME, or for one more, ?more=1")
        if self._prediction is not None and not self._prediction.done():
            wait = {"Retry-After": f"{_PLAN_S:.0f}"}
            raise ApiError(429, "another prediction is being made", "predicting", headers=wait)
        work = self._prediction = asyncio.ensure_future(self._run(lambda: self._service.what_if(without)))
        # Reads the failure, which perhaps no request waits for any more.
        work.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        return JSONResponse(asdict(await _planned(asyncio.shield(work), "the prediction")))

    async def _run(self, work: Callable[[], _T]) -> _T:
        # At most two calls run at once, so that two threads are left to read orders.
        return await self._intake.run("the administrator", work)

    async def _dismiss(self, request: Request) -> Response:
        name = request.path_params["id"]
        if not self._service.dismiss(name):
            raise ApiError(404, f"no request {name[:_MAX_NAME]!r} runs or waits", "unknown_request")
        return JSONResponse({"id": name, "deleted": True})

    async def _nodes(self, _request: Request) -> Response:
        status = asdict(await self._run(self._service.status))
        body = json.dumps(status, default=msgspec.structs.asdict)  # counters of nodes are structs
        return Response(body, media_type="application/json")

    async def _cache(self, request: Request) -> Response:
        """Answers with the page files of each machine. DELETE deletes them and answers with the deleted ones."""
        clear = request.method == "DELETE"
        machines = await self._run(lambda: self._service.page_files(clear=clear))
        return JSONResponse({"object": "tpiedge.cache", "machines": [asdict(one) for one in machines]})

    async def _invite(self, request: Request) -> Response:
        await self._intake.done(request, lambda values: BodyFields(values, NOTHING))
        return JSONResponse(await self._run(self._service.invite))

    async def _use(self, request: Request) -> Response:
        fields = await self._intake.done(request, lambda values: BodyFields(values, USE))
        name, now = fields.needed("model"), fields.get("now", False)
        use = partial(self._service.use, now=now)
        model = await self._run(lambda: found_model(use, name))
        return JSONResponse({"model": model.name})

    def _told(self, what: str, find: Callable[[], object]) -> Route:
        async def endpoint(_request: Request) -> Response:
            return Response(msgspec.json.encode(await self._run(find)), media_type="application/json")

        return Route(f"/admin/nodes/{what}", endpoint, methods=["GET"])

    def _order(self, verb: str, field: str, answered: str, act: Callable[[str], str | Future[str]]) -> Route:
        """Makes the route of an order about a worker. `field`, `answered`: keys of the worker in request and answer."""
        table = word_body(field, "")

        async def endpoint(request: Request) -> Response:
            word = await self._intake.done(request, lambda values: BodyFields(values, table).needed(field))
            found = await self._run(lambda: act(word))
            if isinstance(found, Future):  # cancelling it voids the order
                found = await _planned(
                    asyncio.wrap_future(found), f"a plan without {word!r}", ": try again later"
                )
            return JSONResponse({answered: found})

        return Route(f"/admin/nodes/{verb}", endpoint, methods=["POST"])


def _secret(body: dict[str, str]) -> Response:
    return JSONResponse(body, headers={"cache-control": "no-store"})


async def _planned(work: Awaitable[_T], what: str, advice: str = "") -> _T:
    try:
        async with asyncio.timeout(_PLAN_S):
            return await work
    except TimeoutError:
        raise NotServing(f"{what} takes more than {_PLAN_S:.0f} s{advice}") from None


def word_body(key: str, description: str) -> t.JsonSchema:
    named = {**t.TEXT, "minLength": 1, "maxLength": _MAX_NAME, "description": description}
    return {**t.body(key, **{key: named}), "additionalProperties": False}
