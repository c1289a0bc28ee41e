"""The API keys that clients may send, from the start or from a file that may change.

A line of the file is `KEY`, `NAME: KEY`, blank or a comment (#). Logs and errors show names only."""

import hashlib
import hmac
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeAlias

from tpiedge.errors import UserError
from tpiedge.host.private_file import private_bytes
from tpiedge.sanitise import sanitised_line

_MAX_KEY: Final = 4096
_log = logging.getLogger(__name__)
#: The name of each key ("": no name), keyed by the key's SHA-256.
_NamedKeys: TypeAlias = dict[bytes, str]


class ApiKeys:
    """Keys that may change in use. Not thread-safe. Raises UserError."""

    def __init__(self, given: Iterable[str] = (), file: Path | None = None) -> None:
        """`file` must be readable by its owner alone, and hold a key."""
        self._given: _NamedKeys = {_digest(_checked(key, "an API key").encode()): "" for key in given}
        self._file = file
        self._seen = None if file is None else _signature(file)
        self._filed: _NamedKeys = {} if file is None else _read(file)
        if file is not None and not self._filed:
            raise UserError(
                f"no API key is in {file}: write one to a line, with a name before it (phone: KEY)"
            )

    @property
    def needed(self) -> bool:
        """Whether clients must send a key. With a file they always must."""
        return bool(self._given) or self._file is not None

    def have(self, key: bytes) -> bool:
        """Whether `key` is valid now. A bad file changes nothing."""
        self._read_again()
        digest = _digest(key)
        # Every key is compared, in constant time.
        found = [hmac.compare_digest(digest, one) for one in (*self._given, *self._filed)]
        return any(found)

    def name_of(self, digest: bytes) -> str | None:
        """Returns a key's name or "". `digest`: the key's SHA-256."""
        return (self._filed | self._given).get(digest)

    def _read_again(self) -> None:
        if self._file is None or (signature := _signature(self._file)) == self._seen:
            return
        self._seen = signature
        try:
            found = _read(self._file)
        except UserError as error:
            _log.warning("the API keys of before still count: %s", error)
            return
        names = ", ".join(name or "one without a name" for name in found.values())
        _log.info("the API keys in %s are now: %s", self._file, names or "none, so all that were are refused")
        self._filed = found


def _read(path: Path) -> _NamedKeys:
    try:
        text = private_bytes(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"there is no file {path} with API keys: write one, and chmod 600 it") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is no text in UTF-8") from None
    found: _NamedKeys = {}
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        where = f"{path}, line {number}"
        name, key = (part.strip() for part in (stripped.split(":", 1) if ":" in stripped else ("", stripped)))
        if ":" in stripped and not name:
            raise UserError(f"{where}: there is no name before the colon")
        if any(map(str.isspace, key)):
            raise UserError(f"{where}: a key has no spaces in it: write 'name: key', or the key alone")
        digest = _digest(_checked(key, f"{where}: an API key").encode())
        if digest in found:
            raise UserError(f"{where}: this key is in an earlier line, too: take one of them out")
        found[digest] = sanitised_line(name, 100)
    return found


def _checked(key: str, what: str) -> str:
    if not key.strip() or len(key) > _MAX_KEY or not key.isascii() or not key.isprintable():
        raise UserError(f"{what} must have 1 to {_MAX_KEY} printable ASCII characters")
    return key


def _signature(path: Path) -> tuple[int, ...] | None:
    """Returns a value that changes with the file; None without a file."""
    try:
        found = os.stat(path)
    except OSError:  # reading says why
        return None
    return found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
