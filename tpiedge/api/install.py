"""Serves the files of this installation, which hold no secret, to machines that will join."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import Route

from tpiedge.api.http_server import HttpServer
from tpiedge.api.limits import Limits
from tpiedge.host.addresses import Address
from tpiedge.local.distribution import Installer


class InstallServer:
    """Serves the files of `made` by name. Raises UserError if it cannot listen."""

    def __init__(self, made: Installer, address: Address) -> None:
        self._made = made
        self._http = HttpServer("install", address, Limits(connections=64))

    def start(self) -> None:
        self._http.start(Starlette(routes=[Route("/{name}", self._send, methods=["GET"])]))

    def close(self) -> None:
        self._http.close()

    async def _send(self, request: Request) -> FileResponse:
        name = request.path_params["name"]
        if name not in self._made.names:
            raise HTTPException(
                404, "no such file: 'tpiedge token create' on the master prints the addresses"
            )
        return FileResponse(self._made.folder / name, media_type="application/zip")
