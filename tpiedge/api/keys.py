"""The admin key and the API keys. API keys are given at the start or in a file. A changed file is read again.

A line of the file is `KEY`, `NAME: KEY`, blank or a comment (#). Logs and errors show names only."""

import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from tpiedge.errors import UserError
from tpiedge.host.private_file import locked, private_bytes, replace_text
from tpiedge.sanitise import sanitised_line

_MAX_KEY: Final = 4096
_CODE_S: Final = 3600.0
_log = logging.getLogger(__name__)
#: The name of each key ("": no name), keyed by the key's SHA-256.
_NamedKeys: TypeAlias = dict[bytes, str]


class ApiKeys:
    """API keys, which change when their file changes. Not thread-safe. Raises UserError."""

    def __init__(self, given: Iterable[str] = (), file: Path | None = None) -> None:
        """`file` must have a key, and be readable by its owner alone."""
        self._given: _NamedKeys = {_digest(_checked(key, "an API key").encode()): "" for key in given}
        self._file = file
        self._seen = None if file is None else _signature(file)
        self._filed: _NamedKeys = {} if file is None else _read(file)
        if file is not None and not self._filed:
            raise UserError(
                f"no API key is in {file}: add one with 'tpiedge keys add NAME', or write lines like phone: KEY"
            )

    @property
    def needed(self) -> bool:
        """Whether clients must send a key. Always true with a key file."""
        return bool(self._given) or self._file is not None

    def have(self, key: bytes) -> bool:
        """Whether `key` is valid now. A bad file leaves the earlier keys valid."""
        self._read_again()
        digest = _digest(key)
        # Every key is compared, in constant time.
        found = [hmac.compare_digest(digest, one) for one in (*self._given, *self._filed)]
        return any(found)

    def name_of(self, digest: bytes) -> str | None:
        """Returns the name of the key whose SHA-256 is `digest`; "" for a key without a name, None for an unknown
        key."""
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


def key_names(path: Path) -> list[str]:
    """Returns the names of the file's keys, "" for a key without a name. Raises UserError."""
    return [name for _, name, key in _present_lines(path) if key]


def add_key(path: Path, name: str) -> str:
    """Makes a key, appends it to the file and returns it. A missing file is created. Raises UserError, DiskFull."""
    if (
        not name.isprintable()
        or name.strip() != name
        or len(name) > 100
        or not name
        or name[0] == "#"
        or ":" in name
    ):
        raise UserError("a key's name has 1 to 100 printable characters, no colon, and no # at its beginning")
    key = secrets.token_hex(16)
    with locked(path):
        lines = _present_lines(path)
        if any(one == name for _, one, _ in lines):
            raise UserError(f"there is a key {name!r} already: take another name, or revoke that key first")
        replace_text(
            path, "".join(f"{line}\n" for line in (*(text for text, _, _ in lines), f"{name}: {key}"))
        )
    return key


def revoke_key(path: Path, name: str) -> None:
    """Removes all keys with the name `name` from the file. Raises UserError, DiskFull."""
    if not name:
        raise UserError(f"keys without a name are revoked by taking their lines out of {path}")
    with locked(path):
        lines = _present_lines(path)
        kept = [text for text, one, key in lines if not key or one != name]
        if len(kept) == len(lines):
            raise UserError(f"{path} has no key {name!r}: 'tpiedge keys ls' lists the names")
        replace_text(path, "".join(f"{line}\n" for line in kept))


class AdminKey:
    """The admin key. Links contain a code instead, because terminals, logs and histories keep links. Only the latest
    code is valid. It is valid for one use within an hour."""

    def __init__(self, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = key.encode()
        self._clock = clock
        self._code, self._until = b"", 0.0

    def is_key(self, given: bytes) -> bool:
        return hmac.compare_digest(given, self._key)

    def new_code(self) -> str:
        code = secrets.token_urlsafe(16)
        self._code, self._until = code.encode(), self._clock() + _CODE_S
        return code

    def key_for(self, code: bytes) -> str | None:
        """Returns the admin key and voids the code; None for an invalid code."""
        if not code or not hmac.compare_digest(code, self._code) or self._clock() >= self._until:
            return None
        self._code = b""
        return self._key.decode()


def admin_link(url: str, code: str) -> str:
    """Returns a link with the code for the admin key. Browsers do not send the part after # to servers."""
    return f"{url}/#admin={code}"


def _present_lines(path: Path) -> list[tuple[str, str, str]]:
    return list(_lines(path)) if path.exists() else []


def _read(path: Path) -> _NamedKeys:
    return {_digest(key.encode()): name for _, name, key in _lines(path) if key}


def _lines(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yields (line, name, key), the last two empty for blank lines and comments. Raises UserError."""
    try:
        text = private_bytes(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"there is no file {path} with API keys: write one, and chmod 600 it") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is no text in UTF-8") from None
    found = set[str]()
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            yield line, "", ""
            continue
        where = f"{path}, line {number}"
        name, key = (part.strip() for part in (stripped.split(":", 1) if ":" in stripped else ("", stripped)))
        if ":" in stripped and not name:
            raise UserError(f"{where}: there is no name before the colon")
        if any(map(str.isspace, key)):
            raise UserError(f"{where}: a key has no spaces in it: write 'name: key', or the key alone")
        if _checked(key, f"{where}: an API key") in found:
            raise UserError(f"{where}: this key is in an earlier line, too: take one of them out")
        found.add(key)
        yield line, sanitised_line(name, 100), key


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
