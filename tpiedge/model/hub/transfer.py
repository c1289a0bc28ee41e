"""Fetching one file over HTTP: resumed where it broke off, bounded in size and time, checked against its hash.

Laws:

1. A file appears under its name only when its size and hash are right.
2. What has arrived is kept in `NAME.incomplete`, whatever ends the transfer; the next one asks for the rest only.
3. Every attempt has deadlines, and after `RETRIES` attempts in a row without a new byte it is over.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import httpx

from tpiedge.errors import HubError
from tpiedge.sanitise import sanitised_line

RETRIES = 5
_CHUNK = 1 << 20
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 8.0)
_LONGEST_PAUSE_S = 60.0
_TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)


class TransferRefused(Exception):
    """The server answered with `status`; `code` is what it says of the reason ("GatedRepo"), or empty."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"HTTP {status} {code}".strip())
        self.status = status
        self.code = code


@dataclass(frozen=True)
class RemoteFile:
    """A file of `size` bytes. `digest` is its sha256, or where it has 40 digits, git's sha1 of it as a blob."""

    name: str
    size: int
    digest: str


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True)
class Transfer:
    """How to fetch: `client` has the timeouts and the headers; `pause(seconds)` waits between attempts."""

    client: httpx.Client
    pause: Callable[[float], object]

    def fetch(self, file: RemoteFile, url: str, target: Path, advance: Callable[[int], None]) -> None:
        """Make `target` the file at `url`. `advance` gets the bytes as they come; negative where some were discarded.

        Raises TransferRefused, HubError; OSError of the disk.
        """
        partial = partial_of(target)
        tries = 0
        while (have := _size(partial)) < file.size or not partial.exists():
            try:
                self._attempt(file, url, partial, have, advance)
            except httpx.HTTPError as error:
                tries = tries + 1 if _size(partial) <= have else 0
                if tries >= RETRIES:
                    raise HubError(_gave_up(file, error)) from None
                self.pause(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])
            except _Busy as busy:
                tries += 1
                if tries >= RETRIES:
                    raise HubError(_gave_up(file, busy)) from None
                self.pause(busy.pause_s or _PAUSES_S[min(tries, len(_PAUSES_S) - 1)])
        self._finish(file, partial, target, advance)

    def _attempt(
        self, file: RemoteFile, url: str, partial: Path, have: int, advance: Callable[[int], None]
    ) -> None:
        headers = {"Range": f"bytes={have}-"} if have else {}
        with self.client.stream("GET", url, headers=headers) as response:
            start = _start_of(response, have)
            with open(partial, "r+b" if have else "wb") as out:
                if start < have:
                    advance(start - have)
                    out.truncate(start)
                out.seek(start)
                _copy(response, out, file, start, advance)

    def _finish(self, file: RemoteFile, partial: Path, target: Path, advance: Callable[[int], None]) -> None:
        if _size(partial) != file.size or _digest(partial, file) != file.digest:
            advance(-_size(partial))
            partial.unlink()
            raise HubError(f"{file.name} arrived damaged (its hash differs) and was deleted: pull again")
        partial.replace(target)


def partial_of(target: Path) -> Path:
    """Where the bytes of `target` are kept until all are there."""
    return target.with_name(f"{target.name}.incomplete")


class _Busy(Exception):
    """The server asks to come back after `pause_s` seconds (0: it does not say)."""

    def __init__(self, status: int, pause_s: float) -> None:
        super().__init__(f"HTTP {status}")
        self.pause_s = pause_s


def _start_of(response: httpx.Response, have: int) -> int:
    """Which byte of the file the answer begins with; all that differs from what was asked raises."""
    status = response.status_code
    if status == 200 or (status == 416 and have):  # 416: there is no such part; begin anew
        return 0
    if status == 206:
        start = response.headers.get("content-range", "").removeprefix("bytes ").partition("-")[0]
        if start != str(have):
            raise HubError(f"the server sent another part of a file than byte {have} on: pull again later")
        return have
    if status in _TRY_AGAIN:
        wish = response.headers.get("retry-after", "")
        raise _Busy(status, min(float(wish), _LONGEST_PAUSE_S) if wish.isdecimal() else 0.0)
    raise TransferRefused(status, response.headers.get("x-error-code", ""))


def _copy(
    response: httpx.Response, out: BinaryIO, file: RemoteFile, start: int, advance: Callable[[int], None]
) -> None:
    if response.status_code == 416:
        raise httpx.RemoteProtocolError("the server no longer has the rest of the file")
    position = start
    for chunk in response.iter_raw():  # as they arrive: a break loses nothing of what came before it
        position += len(chunk)
        if position > file.size:
            raise HubError(f"the server sends more of {file.name} than the {file.size} bytes it has")
        out.write(chunk)
        advance(len(chunk))
    if position < file.size:
        raise httpx.RemoteProtocolError("the connection ended early")


def _digest(path: Path, file: RemoteFile) -> str:
    hasher: _Hash = hashlib.sha256()
    if len(file.digest) == 40:
        hasher = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with open(path, "rb") as stream:
        os.fsync(stream.fileno())  # a blob is trusted by its name afterwards, also after a power cut
        while chunk := stream.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _gave_up(file: RemoteFile, error: Exception) -> str:
    reason = sanitised_line(error, 120) or type(error).__name__
    return (
        f"{file.name} broke off and {RETRIES} attempts brought nothing more ({reason}): what has arrived is kept; "
        "type the same command again to resume"
    )
