"""The page for browsers: the files of the package's folder `page`.

Addresses of all files but the first hold the digest of all files, so that browsers keep them for good. The policy lets
the page load from and ask this server only, run no inline script, and be framed by no other page.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, request_response

_FIRST: Final = "index.html"
_ADDRESS: Final = "page/"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    "": "text/plain; charset=utf-8",  # LICENSE
}
_POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # Browsers refuse HTML that DOMPurify has not cleaned.
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    ]
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def is_page(path: str) -> bool:
    return path == "/" or path.startswith(f"/{_ADDRESS}")


class Page:
    """The routes to the page's files, which are read once."""

    def __init__(self, folder: Path = Path(__file__).parents[1] / "page") -> None:
        self.files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.suffix in _TYPES
        }
        digest = hashlib.sha256()
        for name, content in self.files.items():
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        self.version = digest.hexdigest()[:20]
        links = f'"{_ADDRESS}'.encode()  # in the first file
        self.files[_FIRST] = self.files[_FIRST].replace(links, links + f"{self.version}/".encode())

    def routes(self) -> list[Route]:
        return [
            Route("/", GZipMiddleware(request_response(self._first)), methods=["GET"]),
            Route(
                f"/{_ADDRESS}{{version}}/{{name:path}}",
                GZipMiddleware(request_response(self._other)),
                methods=["GET"],
            ),
        ]

    async def _first(self, request: Request) -> Response:
        headers = {"Cache-Control": "no-cache", "ETag": f'"{self.version}"'}
        if self.version in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=_HEADERS | headers)
        return self._file(_FIRST, headers)

    async def _other(self, request: Request) -> Response:
        name = request.path_params["name"]
        if request.path_params["version"] != self.version or name == _FIRST or name not in self.files:
            raise HTTPException(404, "the page has no such file: load it anew")
        return self._file(name, {"Cache-Control": "max-age=31536000, immutable"})

    def _file(self, name: str, headers: Mapping[str, str]) -> Response:
        return Response(
            self.files[name], headers={**_HEADERS, **headers}, media_type=_TYPES[Path(name).suffix]
        )
