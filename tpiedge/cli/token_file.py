"""The token that a master makes at its start: printed for a worker, or in a file that workers wait for.

It is void when the master ends. Where a master was killed, the next one of the same folder, which has one at a time,
makes it void.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from tpiedge.errors import UserError
from tpiedge.host.addresses import Address
from tpiedge.host.private_file import read_private, replace_private
from tpiedge.joining.token_store import DAY_S, TokenStore
from tpiedge.joining.tokens import JoinToken

_NOTE = "offered.json"
_OWNER_ONLY = 0o600
_EXPIRES_S = 30 * DAY_S
_POLL_S = 0.1
_MAX_BYTES = 4096


@contextmanager
def offered(path: Path, folder: Path, master_key: str, address: Address) -> Iterator[None]:
    """Keeps a token for any number of workers in `path`, which only its owner may read. Raises UserError."""
    with _noted(folder, _EXPIRES_S, None) as secret:
        _write(path, JoinToken(master_key, secret, address).text)
        try:
            yield
        finally:
            with suppress(OSError):  # gone with its volume, perhaps: what it holds is void in a moment
                path.unlink()


@contextmanager
def invitation(folder: Path) -> Iterator[str]:
    """Gives the secret of a token for one worker. Raises UserError."""
    with _noted(folder, DAY_S, 1) as secret:
        yield secret


@contextmanager
def _noted(folder: Path, expires_s: float, uses: int | None) -> Iterator[str]:
    """Gives the secret of a new token, which is noted, so that the next master can withdraw it if need be."""
    _withdraw(folder)
    record, secret = TokenStore(folder).create(expires_s, uses)
    try:
        replace_private(folder / _NOTE, {"token": record.id})
        yield secret
    finally:
        _withdraw(folder)


def _withdraw(folder: Path) -> None:
    """Make the noted token void, if there is one."""
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
