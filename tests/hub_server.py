"""A model hub on this computer: enough of its protocol to list, gate, redirect and resume, and faults on order."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

_DENIED = {"x-error-code": "GatedRepo"}


def commit_of(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()


@dataclass
class Repo:
    """Files by name. `gated` asks for a token; `denied` refuses even with one. `architecture`: of its GGUF files."""

    files: dict[str, bytes]
    revisions: dict[str, str] = field(default_factory=lambda: {"main": commit_of("first")})
    gated: bool = False
    denied: bool = False
    architecture: str | None = None

    @staticmethod
    def of(folder: Path) -> "Repo":
        return Repo({path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()})

    def siblings(self) -> list[dict]:
        return [self._sibling(name, data) for name, data in self.files.items()]

    def _sibling(self, name: str, data: bytes) -> dict:
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        found = {"rfilename": name, "size": len(data), "blobId": blob}
        if name.endswith((".safetensors", ".bin", ".gguf")):
            sha = hashlib.sha256(data).hexdigest()
            found["lfs"] = {"sha256": sha, "size": len(data), "pointerSize": 134}
        return found


@dataclass
class Hub:
    """`requests` are (path, Range header) in order, `tokens` the Authorization header of each.

    `cuts` ends the next answers for a file after so many bytes, `statuses` are its next answers; `storage` is where
    the bytes are said to be, by default here.
    """

    endpoint: str
    repos: dict[str, Repo] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    ignores_ranges: bool = False
    storage: str = ""

    def ranges(self, name: str) -> list[str | None]:
        return [header for path, header in self.requests if path.startswith("/cdn/") and path.endswith(name)]


@contextlib.contextmanager
def running_hub() -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = False
    server.hub = Hub(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_args: object) -> None:
        pass

    def do_GET(self) -> None:
        hub: Hub = self.server.hub
        path = unquote(urlsplit(self.path).path)
        hub.requests.append((path, self.headers.get("Range")))
        hub.tokens.append(self.headers.get("Authorization"))
        if path.startswith("/api/models/"):
            return self._list(hub, *path.removeprefix("/api/models/").split("/revision/"))
        if path.startswith("/cdn/"):
            org, name, file = path.removeprefix("/cdn/").split("/", 2)
            return self._bytes(hub, file, hub.repos[f"{org}/{name}"].files[file])
        org, name, resolve, _commit, file = path.removeprefix("/").split("/", 4)
        assert resolve == "resolve"
        repo = hub.repos[f"{org}/{name}"]
        if repo.denied or (repo.gated and not self.headers.get("Authorization")):
            return self._answer(403 if repo.denied else 401, b"", _DENIED)
        return self._answer(302, b"", {"location": f"{hub.storage}/cdn/{org}/{name}/{file}"})

    def _list(self, hub: Hub, name: str, revision: str) -> None:
        repo = hub.repos.get(name)
        if repo is None:
            return self._answer(401, b'{"error":"Invalid"}', {"x-error-code": "RepoNotFound"})
        commits = repo.revisions | {commit: commit for commit in repo.revisions.values()}
        if revision not in commits:
            return self._answer(404, b'{"error":"Invalid rev"}', {"x-error-code": "RevisionNotFound"})
        info = {"id": name, "modelId": name, "sha": commits[revision], "siblings": repo.siblings()}
        if repo.architecture is not None:
            info["gguf"] = {"architecture": repo.architecture, "total": 1000}
        return self._answer(200, json.dumps(info | {"gated": repo.gated, "tags": []}).encode())

    def _bytes(self, hub: Hub, name: str, data: bytes) -> None:
        if hub.statuses.get(name):
            return self._answer(hub.statuses[name].pop(0), b"")
        start, headers = 0, {}
        header = self.headers.get("Range")
        if header and not hub.ignores_ranges:
            start = int(header.removeprefix("bytes=").removesuffix("-"))
            headers = {"content-range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        cuts = hub.cuts.get(name)
        end = start + cuts.pop(0) if cuts else len(data)
        return self._answer(206 if headers else 200, data[start:end], headers, length=len(data) - start)

    def _answer(
        self, status: int, body: bytes, headers: dict | None = None, length: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("content-length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)
