"""The HTTP application: routes, the guard before them, and one shape for every error."""

import asyncio
import secrets
from collections.abc import Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, Router

from tpiedge.answers.shelf import AnswerShelf
from tpiedge.api.admin import Admin
from tpiedge.api.answering import Aborted, BrokenOff, send_json
from tpiedge.api.body import Disconnected, Receive, Send, discard
from tpiedge.api.completions import Answers, name_usual_path
from tpiedge.api.errors import ApiError, error_body, of_exception
from tpiedge.api.formats import REQUEST_ID
from tpiedge.api.guard import OPEN_PATHS, Guard, is_admin
from tpiedge.api.intake import Intake
from tpiedge.api.limits import Limits
from tpiedge.api.lookups import lookup_routes
from tpiedge.api.metrics import METRICS_TYPE, metrics_page
from tpiedge.api.openapi import openapi_routes
from tpiedge.api.origins import Origins
from tpiedge.api.page import Page
from tpiedge.api.record_folder import RecordFolder
from tpiedge.api.service import Service

_CLOSE = (b"connection", b"close")
#: For a client to read why an answer fails: a browser drops what its page has not read when the connection breaks.
_HEARD_S = 0.5
_NOT_READY = "the cluster cannot answer yet: 'tpiedge nodes' on the master's computer says why"
_CODES = {404: "not_found", 405: "method_not_allowed"}


class Api:
    """An ASGI application over a Service. `shelf`: of its answers; `records`: with it, they survive the server;
    `origins`: of pages that may use it, apart from administration."""

    def __init__(
        self,
        service: Service,
        guard: Guard,
        limits: Limits,
        shelf: AnswerShelf | None = None,
        records: RecordFolder | None = None,
        origins: Origins | None = None,
    ) -> None:
        self._service = service
        self._guard = guard
        self._linger_s = limits.linger_s
        self._intake, self._admin_intake = Intake(limits, guard), Intake(limits, guard)
        self._shelf = shelf or AnswerShelf(service)
        self._records = records
        self._origins = origins or Origins()
        self.routes: list[BaseRoute] = [
            Route("/health", _health, methods=["GET"]),
            Route("/ready", self._ready, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            *Answers(service, self._intake, self._shelf, records).routes(),
            *lookup_routes(service, self._intake),
            *Admin(service, self._admin_intake, guard).routes(),
            *openapi_routes(),
            *Page().routes(),
        ]
        self._router = Router(self.routes, redirect_slashes=False)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["app"] = self  # has the router raise its refusals
        name_usual_path(scope)
        path, headers = scope["path"], scope["headers"]
        send = _lingering(scope, receive, send, self._linger_s)
        permitted = None
        if not is_admin(path):
            send = self._origins.permitting(headers, send)
            permitted = self._origins.preflight(scope["method"], headers)
        try:
            self._guard.check_sender(path, headers)
            if permitted is not None:  # browsers send no key with this question
                await _permit(send, permitted)
                return
            if (
                path in OPEN_PATHS and scope["method"] == "OPTIONS"
            ):  # as HAProxy asks, unless it is told otherwise
                scope["method"] = "GET"
            self._guard.check_key(path, headers)
            await self._router(scope, receive, send)
        # The server closes a connection whose response is unfinished.
        except (Disconnected, BrokenOff):
            return
        except Aborted:
            await asyncio.sleep(_HEARD_S)
        except HTTPException as error:
            code = _CODES.get(error.status_code, "invalid_request")
            refusal = ApiError(error.status_code, error.detail, code, headers=error.headers)
            await _refuse(send, refusal, scope)
        except Exception as error:
            await _refuse(send, of_exception(error), scope)

    def sweep(self) -> None:
        """Forget the answers that nobody came for; and again every second, on the event loop."""
        asyncio.get_running_loop().call_later(1.0, self.sweep)
        self._shelf.sweep()

    def abort(self) -> None:
        """End every running answer. To be called on the event loop, which then deletes the records of those whose
        clients are told of an error."""
        self._shelf.abort()

    def close(self, limit_s: float) -> None:
        """After the event loop has ended: what was not delivered is left to the next server, where it is recorded. Wait
        for the threads of the answers, and for those that prepare requests, for each kind at most that long."""
        self._shelf.close()
        self._shelf.join(limit_s)
        if self._records is not None:
            self._records.close(limit_s)
        self._intake.close()
        self._admin_intake.close()

    async def _ready(self, _request: Request) -> Response:
        """Without the reason where that names machines: whoever asks need not have a key."""
        status = self._service.status()
        headers = None if status.ready else {"Retry-After": "5"}
        reason = {}
        if not status.ready:
            reason["reason"] = f"the thread {status.failed} failed" if status.failed else _NOT_READY
        return JSONResponse({"ready": status.ready, **reason}, 200 if status.ready else 503, headers)

    async def _metrics(self, _request: Request) -> Response:
        page = metrics_page(self._service.observe(), self._service.model().name)
        return Response(page, media_type=METRICS_TYPE)


async def _health(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _permit(send: Send, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body"})


async def _refuse(send: Send, error: ApiError, scope: MutableMapping[str, Any]) -> None:
    # What was refused has no answer with a name: this one is for the client's own log.
    headers = {REQUEST_ID: f"req-{secrets.token_hex(12)}", **(error.headers or {})}
    body = error_body(error, scope["path"], scope["headers"])
    await send_json(send, error.status, body, headers)


def _lingering(scope: MutableMapping[str, Any], receive: Receive, send: Send, limit_s: float) -> Send:
    """`send`. The answer to a request whose body still arrives is the last of its connection, which ends when its
    sender had a while to read it."""
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
