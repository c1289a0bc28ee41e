"""A token that workers read from a file: how containers join that start together with their master."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from tpiedge.errors import UserError
from tpiedge.host.addresses import Address
from tpiedge.host.private_file import private_folder, read_private, replace_private
from tpiedge.joining.token_store import DAY_S, TokenStore
from tpiedge.joining.tokens import JoinToken
from tpiedge.pack.store.locks import FileLock, holder_of

__all__ = ["await_token", "offered", "withdraw"]

_NOTE = "offered.json"
_LOCK = ".offered.lock"
_OWNER_ONLY = 0o600
_EXPIRES_S = 30 * DAY_S
_POLL_S = 0.1
_MAX_BYTES = 4096


@contextmanager
def offered(path: Path, folder: Path, master_key: str, address: Address) -> Iterator[None]:
    """Meanwhile `path` has a token for any number of workers, which only its owner may read. Raises UserError, also
    where another master of `folder` does the same.

    The token is noted in `folder`, so that it can be withdrawn from a master that was killed."""
    with FileLock(private_folder(folder) / _LOCK) as lock:
        if not lock.try_alone():
            who = holder_of(lock.path)
            raise UserError(
                f"the master of process {who} offers a token from {folder}: end it, or give another --state"
            )
        _withdraw(folder)
        with _offered(path, folder, master_key, address):
            yield


def withdraw(folder: Path) -> None:
    """Make the token void that the last master of `folder` offered in a file and, being killed, left behind."""
    with FileLock(private_folder(folder) / _LOCK) as lock:
        if lock.try_alone():  # else it lives
            _withdraw(folder)


@contextmanager
def _offered(path: Path, folder: Path, master_key: str, address: Address) -> Iterator[None]:
    record, secret = TokenStore(folder).create(_EXPIRES_S, None)
    try:
        replace_private(folder / _NOTE, {"token": record.id})
        _write(path, JoinToken(master_key, secret, address).text)
        try:
            yield
        finally:
            with suppress(OSError):  # gone with its volume, perhaps: what it holds is void in a moment
                path.unlink()
    finally:
        _withdraw(folder)


def _withdraw(folder: Path) -> None:
    note, store = folder / _NOTE, TokenStore(folder)
    token_id = (read_private(note) or {}).get("token")
    for record, _ in store.list():
        if record.id == token_id:
            store.revoke(record.id)
    note.unlink(missing_ok=True)


def await_token(path: Path, limit_s: float) -> str:
    """What the file holds, as soon as it is there. Raises UserError where that takes longer than `limit_s`."""
    deadline = time.monotonic() + limit_s
    waiting = False
    while not (text := _read(path)):
        if time.monotonic() >= deadline:
            raise UserError(
                f"no token in {path} within {limit_s:.0f} s: is 'tpiedge master --token-file' running?"
            )
        if not waiting:
            waiting = True
            click.echo(f"waiting for a token in {path}", err=True)
        time.sleep(_POLL_S)
    return text


def _write(path: Path, text: str) -> None:
    """At once or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{text}\n")
        partial.replace(path)
    except OSError as error:
        raise UserError(f"cannot write the token to {path}: {error.strerror}") from None


def _read(path: Path) -> str:
    """ "" where there is none yet."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UserError(f"cannot read the token in {path}: {error.strerror}") from None
