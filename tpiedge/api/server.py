"""The HTTP application, whose routes are behind the guard, and its server."""

import asyncio
import secrets
import ssl
from collections.abc import Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, Router

from tpiedge.answers.shelf import AnswerShelf
from tpiedge.api.admin import Admin
from tpiedge.api.answering import Aborted, json_response
from tpiedge.api.body import Disconnected, Receive, Send, discard
from tpiedge.api.completions import Answers, name_usual_path
from tpiedge.api.docs import docs_routes
from tpiedge.api.errors import ApiError, error_body, of_exception
from tpiedge.api.fields import IGNORED
from tpiedge.api.formats import REQUEST_ID, RESUMABLE
from tpiedge.api.guard import OPEN_PATHS, Guard, is_admin
from tpiedge.api.http_server import ABORT_S, HttpServer
from tpiedge.api.intake import Intake
from tpiedge.api.limits import Limits
from tpiedge.api.lookups import lookup_routes
from tpiedge.api.metrics import METRICS_TYPE, metrics_page
from tpiedge.api.openapi import send_document
from tpiedge.api.page import page_routes
from tpiedge.api.records import RecordFolder
from tpiedge.host.addresses import Address
from tpiedge.local.service import Service
from tpiedge.master.reconciler import RECOVERY_GRACE_S

_CLOSE = (b"connection", b"close")
#: Time for clients to read why an answer fails. A browser drops what its page has not read when the connection breaks.
_HEARD_S = 0.5
_NOT_READY = "the cluster cannot answer yet: 'tpiedge nodes' on the master's computer says why"
_CODES = {404: "not_found", 405: "method_not_allowed"}


class Api:
    """The ASGI application of a Service. `records` keep answers for the next server."""

    def __init__(
        self,
        service: Service,
        guard: Guard,
        limits: Limits,
        shelf: AnswerShelf | None = None,
        records: RecordFolder | None = None,
    ) -> None:
        self._service = service
        self._guard = guard
        self._intake, self._admin_intake = Intake(limits, guard), Intake(limits, guard)
        self._shelf = shelf or AnswerShelf(service)
        self._records = records
        self.routes: list[BaseRoute] = [
            Route("/health", _health, methods=["GET"]),
            Route("/ready", self._ready, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            *Answers(service, self._intake, self._shelf, records).routes(),
            *lookup_routes(service, self._intake),
            *Admin(service, self._admin_intake, guard).routes(),
            Route("/openapi.json", send_document, methods=["GET"]),
            *docs_routes(),
            *page_routes(),
        ]
        self._router = Router(self.routes, redirect_slashes=False)
        self._for_pages = CORSMiddleware(
            self._answer,
            allow_origin_regex=".*",  # the guard checks the origin
            allow_methods=("GET", "HEAD", "POST", "DELETE"),
            allow_headers=("*",),
            allow_private_network=True,
            expose_headers=(REQUEST_ID, RESUMABLE, IGNORED, "retry-after"),
        )

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["app"] = self  # makes the router raise HTTPException
        name_usual_path(scope)
        # Browsers send no key with a preflight, so it is answered before keys are checked.
        headers = Headers(scope=scope)
        permitted = not is_admin(scope["path"]) and self._guard.permits(headers)
        if permitted and scope["method"] == "OPTIONS":
            try:
                self._guard.check_sender(scope["path"], headers)
            except ApiError:
                permitted = False  # refused below
        send = _lingering(scope, receive, send, self._intake.limits.linger_s)
        await (self._for_pages if permitted else self._answer)(scope, receive, send)

    async def _answer(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        path, headers = scope["path"], Headers(scope=scope)
        try:
            self._guard.check_sender(path, headers)
            if path in OPEN_PATHS and scope["method"] == "OPTIONS":  # HAProxy's default check
                scope["method"] = "GET"
            self._guard.check_key(path, headers)
            await self._router(scope, receive, send)
        # The server closes a connection whose response is unfinished.
        except Disconnected:
            return
        except Aborted:
            await asyncio.sleep(_HEARD_S)
        except Exception as error:
            if isinstance(error, HTTPException):
                code = _CODES.get(error.status_code, "invalid_request")
                refusal = ApiError(error.status_code, error.detail, code, headers=error.headers)
            else:
                refusal = of_exception(error)
            # A refused request has no id of an answer; this id is for the client's own log.
            named = {REQUEST_ID: f"req-{secrets.token_hex(12)}", **(refusal.headers or {})}
            response = json_response(refusal.status, error_body(refusal, path, headers), named)
            await response(scope, receive, send)

    def sweep(self) -> None:
        """Drops answers that wait too long, now and every second."""
        asyncio.get_running_loop().call_later(1.0, self.sweep)
        self._shelf.sweep()

    def close(self, limit_s: float) -> None:
        """Leaves recorded answers to the next server. Blocks up to twice `limit_s`. Call it after the event loop has
        ended."""
        self._shelf.close(limit_s)
        if self._records is not None:
            self._records.close(limit_s)
        self._intake.close()
        self._admin_intake.close()

    async def _ready(self, _request: Request) -> Response:
        """Answers /ready. Names no machines, because the route needs no key."""
        status = self._service.status()
        if status.ready or status.asleep:  # the next request wakes the cluster
            return JSONResponse({"ready": True})
        reason = f"the thread {status.failed} failed" if status.failed else _NOT_READY
        return JSONResponse({"ready": False, "reason": reason}, 503, {"Retry-After": "5"})

    async def _metrics(self, _request: Request) -> Response:
        page = metrics_page(self._service.observe(), self._service.model().name)
        return Response(page, media_type=METRICS_TYPE)


async def _health(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})


def _lingering(scope: MutableMapping[str, Any], receive: Receive, send: Send, limit_s: float) -> Send:
    """Wraps `send`. If the answer comes before the request's end, the connection closes `limit_s` later."""
    arriving: Callable[[], bool] = scope.get("state", {}).get("arriving", lambda: False)

    async def linger(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and arriving():
            headers = [field for field in message.get("headers", ()) if field != _CLOSE]
            message = {**message, "headers": [*headers, _CLOSE]}
        elif not message.get("more_body", False) and arriving():
            await send({**message, "more_body": True})
            await discard(receive, limit_s)
            message = {"type": "http.response.body"}
        await send(message)

    return linger


class ApiServer:
    """Listens from its construction on. Answers from `start` to `close`. Owns its socket and threads. Does not own the
    service.

    `tls` is None for plain HTTP. `records` keep answers for the next server. The previous server's streams wait
    `grace_s` for readers. Raises UserError."""

    def __init__(
        self,
        service: Service,
        guard: Guard,
        address: Address,
        limits: Limits,
        *,
        tls: ssl.SSLContext | None = None,
        records: RecordFolder | None = None,
        grace_s: float = RECOVERY_GRACE_S,
    ) -> None:
        self._http = HttpServer("api", address, limits, tls)
        #: Host and the port in use; the URL for clients on this computer.
        self.address, self.url = self._http.address, self._http.url
        self._shelf = AnswerShelf(service, grace_s)
        try:
            #: How many answers of the previous server were resumed.
            self.recovered = (
                0
                if records is None
                else self._shelf.recover(records.found(lambda pack: service.packed(pack).tokenizer))
            )
        except BaseException:
            self._http.close()
            raise
        self._api = Api(service, guard, limits, self._shelf, records)

    def start(self) -> None:
        """Returns once requests are answered."""
        self._http.start(self._api, self._api.sweep)

    def close(self, drain_s: float = 0.0) -> None:
        """Stops listening, lets answers finish for `drain_s`, then cancels unfinished answers. Idempotent."""
        self._http.close(drain_s, self._shelf.abort)
        self._api.close(ABORT_S)
