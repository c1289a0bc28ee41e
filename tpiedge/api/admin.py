"""Administration: which nodes there are, who may join, who may not any more. The guard asks for the admin secret."""

import asyncio
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.intake import Intake
from tpiedge.api.service import Service, Unavailable

__all__ = ["Admin"]

_MAX_NAME = 256
#: For a hundred machines a plan takes seconds. Clients wait longer than this for an answer.
_PLAN_S = 30.0


class Admin:
    """The routes under /admin."""

    def __init__(self, service: Service, intake: Intake) -> None:
        self._service = service
        self._intake = intake

    def routes(self) -> list[Route]:
        return [
            Route("/admin/nodes", self._nodes, methods=["GET"]),
            Route("/admin/nodes/pending", self._pending, methods=["GET"]),
            Route("/admin/nodes/members", self._members, methods=["GET"]),
            Route("/admin/nodes/approve", self._approve, methods=["POST"]),
            Route("/admin/nodes/revoke", self._revoke, methods=["POST"]),
            Route("/admin/nodes/drain", self._drain, methods=["POST"]),
            Route("/admin/nodes/undrain", self._undrain, methods=["POST"]),
        ]

    async def _nodes(self, _request: Request) -> Response:
        return JSONResponse(asdict(await self._intake.run(self._service.status)))

    async def _pending(self, _request: Request) -> Response:
        found = await self._intake.run(self._service.pending)
        return JSONResponse({"pending": [asdict(join) for join in found]})

    async def _members(self, _request: Request) -> Response:
        found = await self._intake.run(self._service.members)
        return JSONResponse({"members": [asdict(member) for member in found]})

    async def _approve(self, request: Request) -> Response:
        code = await self._word(request, "code")
        return JSONResponse({"name": await self._intake.run(lambda: self._service.approve(code))})

    async def _revoke(self, request: Request) -> Response:
        name = await self._word(request, "name")
        return JSONResponse({"revoked": await self._intake.run(lambda: self._service.revoke(name))})

    async def _drain(self, request: Request) -> Response:
        name = await self._word(request, "name")
        ordered = await self._intake.run(lambda: self._service.drain(name))
        try:
            async with asyncio.timeout(_PLAN_S):
                found = await asyncio.wrap_future(ordered)  # cancelled, it voids the order
        except TimeoutError:
            raise Unavailable(
                f"a plan without {name!r} takes more than {_PLAN_S:.0f} s: try again later"
            ) from None
        return JSONResponse({"name": found})

    async def _undrain(self, request: Request) -> Response:
        name = await self._word(request, "name")
        return JSONResponse({"name": await self._intake.run(lambda: self._service.undrain(name))})

    async def _word(self, request: Request, key: str) -> str:
        """The one field of the body."""
        fields = BodyFields(await self._intake.parsed(request))
        word = fields.text(key)
        fields.finish()
        if not word or len(word) > _MAX_NAME:
            raise refused(f"'{key}' must have 1 to {_MAX_NAME} characters", key)
        return word
