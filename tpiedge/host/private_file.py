"""Files that only their owner may read, replaced as a whole. Messages never show their contents."""

import contextlib
import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from platformdirs import user_state_path

from tpiedge.errors import UserError, cannot_write
from tpiedge.pack.files import FileLock, sync_folder

_OWNER_ONLY = 0o600
_MAX_BYTES = 4 << 20
PAGES = "pages"  # the folder of KV pages in a machine's state
#: Files in a master's folder: the running master's lock, and its addresses and secret.
MASTER_LOCK, ADMIN = ".master.lock", "admin.json"


def master_state(state: Path | None) -> Path:
    """Returns the folder of the master's key, members and tokens. `state` is --state."""
    return (state or user_state_path("tpiedge")) / "master"


def worker_state(state: Path | None) -> Path:
    """Returns the folder of the worker's key and known masters."""
    return (state or user_state_path("tpiedge")) / "worker"


def api_keys(state: Path | None) -> Path:
    """Returns the default file of a master's API keys."""
    return master_state(state) / "api-keys"


def kept_secret(folder: Path) -> bytes:
    """Returns the secret of a master's kept context; makes it on first use. Raises UserError, DiskFull."""
    path = folder / "kept-context.json"
    create_private(path, {"secret": secrets.token_hex(32)})  # unless it exists
    match read_private(path):
        case {"secret": str(text)} if re.fullmatch("[0-9a-f]{64}", text):
            return bytes.fromhex(text)
    raise UserError(f"{path} is damaged: delete it, and what was kept on disk is computed again")


def chat_history(state: Path | None) -> Path:
    """Returns the file with what the user typed in chats."""
    return (state or user_state_path("tpiedge")) / "chat-history"


def private_folder(folder: Path) -> Path:
    """Makes a missing `folder` for its owner alone. Raises UserError, DiskFull."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        words = f"cannot make the folder {folder}: {error.strerror}; choose another --state"
        raise cannot_write(folder, error, words) from None
    return folder


def check_folder(folder: Path, within: Sequence[str], flag: str) -> None:
    """Raises UserError if others may change `folder` or its subfolders `within`. A broken link raises UserError, a
    missing folder passes. A folder like /tmp passes, because users can change only their own files there. Errors name
    `flag`."""
    if folder.is_symlink() and not folder.exists():
        raise UserError(
            f"{folder} is a link to {folder.readlink()}, which is not there: make or mount that, or give another {flag}"
        )
    for one, shared in ((folder, stat.S_ISVTX), *((folder / name, 0) for name in within)):
        try:
            found = one.stat()
        except OSError:
            continue  # reported when it is used, as a file in place of a folder is
        if not stat.S_ISDIR(found.st_mode):
            continue
        if found.st_uid not in (0, os.geteuid()):
            raise UserError(
                f"{one} belongs to the user with number {found.st_uid}, who may change what is in it: give another "
                f"{flag}, or type chown {os.geteuid()} {one}"
            )
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & shared:
            raise UserError(
                f"other users may change what is in {one}: chmod go-w {one}, if they did not yet, or give another "
                f"{flag}"
            )


def read_private(path: Path) -> dict[str, object] | None:
    """Returns the JSON object in `path`, or None if there is no file. Raises UserError."""
    try:
        data = private_bytes(path)
    except FileNotFoundError:
        return None
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise UserError(
            f"{path} is damaged (not a JSON object): restore it from a backup, or delete it to start anew"
        )
    return values


def running_master(state: Path | None) -> dict[str, object]:
    """Returns the fields of the running master's admin.json; empty if none runs. Raises UserError."""
    folder = master_state(state)
    note = read_private(folder / ADMIN)
    # A killed master leaves its file.
    return note if note and FileLock(folder / MASTER_LOCK).is_held() else {}


def private_bytes(path: Path, most: int = _MAX_BYTES) -> bytes:
    """Reads a file of at most `most` bytes. Raises FileNotFoundError, UserError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise UserError(f"{path} is not a file: move it away")
            if found.st_mode & 0o077:
                raise UserError(
                    f"{path} can be read or changed by other users: chmod 600 {path}, if they did not yet"
                )
            if found.st_size > most:
                raise UserError(f"{path} is damaged ({found.st_size} bytes): delete it to start anew")
            return os.read(fd, found.st_size)
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def create_private(path: Path, values: dict[str, object]) -> bool:
    """Writes a new file; returns False if another process was first."""
    return _write(path, _json(values), os.link)


def replace_private(path: Path, values: dict[str, object]) -> None:
    """Writes or replaces the file, durably. Raises UserError, DiskFull."""
    _write(path, _json(values), os.replace)


def replace_text(path: Path, text: str) -> None:
    """Writes or replaces the file, durably. Raises UserError, DiskFull."""
    _write(path, text, os.replace)


def _json(values: dict[str, object]) -> str:
    return json.dumps(values, indent=1) + "\n"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks `path` against other processes and threads during the block."""
    private_folder(path.parent)
    lock = path.with_name(f".{path.name}.lock")
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _OWNER_ONLY)
    except OSError as error:
        raise cannot_write(lock, error) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _write(path: Path, text: str, place: Callable[[Path, Path], None]) -> bool:
    """Writes a new file durably; `place` renames or links it to `path`. Returns False if `place` links and `path`
    exists."""
    private_folder(path.parent)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        fd = os.open(
            partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, _OWNER_ONLY
        )
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(fd)
        place(partial, path)
        sync_folder(path.parent)
    except OSError as error:
        if place is os.link and isinstance(error, FileExistsError):
            return False
        raise cannot_write(path, error) from None
    finally:
        partial.unlink(missing_ok=True)
    return True
