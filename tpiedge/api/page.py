"""The page that the server shows in a browser: the files of the package's folder `page`, the same for everybody.

The address of a file but the first has the digest of all files in it, so a browser keeps it for good and asks for the
first one only. The policy that comes along lets the page load and ask nothing but this server, run no script that is
written into it, and be framed by nobody.
"""

import functools
import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FOLDER: Final = Path(__file__).parents[1] / "page"
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
        # What would be read as HTML passes DOMPurify, or the browser refuses it.
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    ]
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_ALWAYS_ASK: Final = "no-cache"
_FOR_GOOD: Final = "max-age=31536000, immutable"


def is_page(path: str) -> bool:
    """Whether the page is there, which everybody may see."""
    return path == "/" or path.startswith(f"/{_ADDRESS}")


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent: `plain`, or `packed` by gzip to who takes that."""

    media_type: str
    plain: bytes
    packed: bytes

    @classmethod
    def of(cls, name: str, content: bytes) -> "PageFile":
        return cls(_TYPES[Path(name).suffix], content, gzip.compress(content, 9, mtime=0))


class Page:
    """The routes to the page's files, which are read from `folder` once."""

    def __init__(self, folder: Path = _FOLDER) -> None:
        self.version, self.files = _load(folder)

    def routes(self) -> list[Route]:
        return [
            Route("/", self._first, methods=["GET"]),
            Route(f"/{_ADDRESS}{{version}}/{{name:path}}", self._other, methods=["GET"]),
        ]

    async def _first(self, request: Request) -> Response:
        return self._answer(request, _FIRST, _ALWAYS_ASK)

    async def _other(self, request: Request) -> Response:
        """One of this version: another's page is to be loaded anew."""
        name = request.path_params["name"]
        if request.path_params["version"] != self.version or name == _FIRST or name not in self.files:
            raise HTTPException(404, "the page has no such file: load it anew")
        return self._answer(request, name, _FOR_GOOD)

    def _answer(self, request: Request, name: str, caching: str) -> Response:
        file = self.files[name]
        packed = _takes_gzip(request.headers.get("accept-encoding", ""))
        tag = f'"{self.version}{"-gzip" if packed else ""}"'
        headers = {**_HEADERS, "Cache-Control": caching, "ETag": tag}
        if tag in _tags(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        if packed:
            headers["Content-Encoding"] = "gzip"
        return Response(file.packed if packed else file.plain, headers=headers, media_type=file.media_type)


@functools.cache
def _load(folder: Path) -> tuple[str, Mapping[str, PageFile]]:
    """The version of the page, and its files by their names; links of the first name the version."""
    contents = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in _TYPES
    }
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    version = digest.hexdigest()[:20]
    links = f'"{_ADDRESS}'.encode()
    contents[_FIRST] = contents[_FIRST].replace(links, links + f"{version}/".encode())
    return version, {name: PageFile.of(name, content) for name, content in contents.items()}


def _takes_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding names gzip, and not as unwanted."""
    for coding in accepted.lower().split(","):
        name, _, weight = coding.partition(";")
        if name.strip() in ("gzip", "*"):
            return weight.replace(" ", "").rstrip("0.") != "q="
    return False


def _tags(wanted: str) -> set[str]:
    """The tags of an If-None-Match, compared weakly."""
    return {tag.strip().removeprefix("W/") for tag in wanted.split(",")}
