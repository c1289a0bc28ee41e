"""Serves the web page from the folder `page`. Addresses of files contain a digest, so browsers may keep files for good.
The content security policy forbids other servers, inline scripts and frames around the page."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, request_response

_FIRST: Final = "index.html"
_ADDRESS: Final = "page/"
DOCS: Final = "/docs"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    "": "text/plain; charset=utf-8",  # LICENSE
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    # Browsers refuse HTML that DOMPurify has not cleaned.
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
PAGE_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def is_page(path: str) -> bool:
    return path in ("/", DOCS) or path.startswith(f"/{_ADDRESS}")


@cache
def page_files() -> tuple[str, dict[str, bytes]]:
    """Returns (digest of all files, the files by path)."""
    folder = Path(__file__).parents[1] / "page"
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in _TYPES
    }
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    version = digest.hexdigest()[:20]
    links = f'"{_ADDRESS}'.encode()  # in the first file
    files[_FIRST] = files[_FIRST].replace(links, links + f"{version}/".encode())
    return version, files


def page_routes() -> list[Route]:
    version, files = page_files()

    def sent(name: str, **headers: str) -> Response:
        return Response(
            files[name], headers={**PAGE_HEADERS, **headers}, media_type=_TYPES[Path(name).suffix]
        )

    async def first(request: Request) -> Response:
        headers = {"Cache-Control": "no-cache", "ETag": f'"{version}"'}
        if version in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=PAGE_HEADERS | headers)
        return sent(_FIRST, **headers)

    async def other(request: Request) -> Response:
        name = request.path_params["name"]
        if request.path_params["version"] != version or name == _FIRST or name not in files:
            raise HTTPException(404, "the page has no such file: load it anew")
        return sent(name, **{"Cache-Control": "max-age=31536000, immutable"})

    paths = {"/": first, f"/{_ADDRESS}{{version}}/{{name:path}}": other}
    return [
        Route(path, GZipMiddleware(request_response(send)), methods=["GET"]) for path, send in paths.items()
    ]
