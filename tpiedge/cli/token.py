"""`tpiedge token`, and the token of a starting master."""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import click

from tpiedge.cli.listing import ListingGroup, print_table
from tpiedge.cli.options import state_option
from tpiedge.errors import UserError
from tpiedge.host.addresses import CONTROL_PORT, INSTALL_OFFSET, Address, outgoing_host, parse_address
from tpiedge.host.private_file import (
    master_state,
    private_folder,
    read_private,
    replace_private,
    running_master,
)
from tpiedge.joining.identity import load_or_create_keys
from tpiedge.joining.tokens import CLOCK_SET_S, DAY_S, JoinToken, TokenRecord, TokenStore
from tpiedge.local.distribution import INSTALL, find_installer, shell_lines
from tpiedge.units import counted

_NOTE = "offered.json"


@click.group(cls=ListingGroup)
def token() -> None:
    """Make, list and revoke tokens, with which new workers join."""


@token.command()
@click.option("--expires", default="24h", show_default=True, help="Lifetime: 30m, 24h, 7d.")
@click.option("--uses", default="1", show_default=True, help="How many workers the token lets in, or 'any'.")
@click.option(
    "--host", metavar="HOST[:PORT]", help="The master's address for workers.  [default: this computer]"
)
@state_option
def create(expires: str, uses: str, host: str | None, state: Path | None) -> None:
    """Print a new token; give it to 'tpiedge worker --token' on the new machine."""
    address = None if host is None else parse_address(host, CONTROL_PORT)
    time_given = re.fullmatch(r"(\d{1,9})([smhd])", expires.strip(), re.ASCII)
    if time_given is None:
        raise UserError(f"--expires {expires[:40]!r} is not a time: write it like 30m, 24h or 7d")
    expires_s = int(time_given[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S}[time_given[2]]
    if uses != "any" and not re.fullmatch(r"\d{1,9}", uses, re.ASCII):
        raise UserError(f"--uses {uses[:40]!r} is neither a number nor 'any'")
    folder = _master_folder(state)
    if address is None:
        # The running master's address, or the default one.
        running = running_master(state).get("workers")
        usual = Address(outgoing_host() or os.uname().nodename, CONTROL_PORT)
        address = parse_address(running, CONTROL_PORT) if isinstance(running, str) else usual
        if address.host in ("0.0.0.0", "::"):
            address = Address(usual.host, address.port)
    keys = load_or_create_keys(folder)
    record, secret = TokenStore(folder).create(expires_s, None if uses == "any" else int(uses))
    made = JoinToken(keys.public, secret, address)
    click.echo(made.text)
    workers = "any number of workers" if record.left is None else counted(record.left, "worker")
    click.echo(f"token {record.id}: for {workers} until {_end(record)}", err=True)
    click.echo(f"on another machine:  tpiedge worker --connect {address} --token {made.text}", err=True)
    if lines := install_lines(folder, address, made.text):
        click.echo("or, if tpiedge is not there yet, paste this while the master runs:", err=True)
        for line in lines:
            click.echo(f"  {line}", err=True)


@token.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@state_option
def ls(as_json: bool, state: Path | None) -> None:
    """List the tokens; their secrets are not stored."""
    records, rows = [], []
    for one, outcome in TokenStore(_master_folder(state)).list():
        usable, left = "usable" if outcome == "ok" else outcome, "any" if one.left is None else str(one.left)
        times = {"created": one.created, "expires": one.expires}
        records.append({"id": one.id, "state": usable, "uses_left": one.left, **times})
        rows.append((one.id, usable, left, _when(one.created), _end(one)))
    if as_json:
        click.echo(json.dumps(records, indent=2))
    else:
        print_table(("token", "state", "uses left", "created", "expires"), rows)


@token.command()
@click.argument("token_id", metavar="ID")
@state_option
def revoke(token_id: str, state: Path | None) -> None:
    """Revoke a token; workers that joined with it stay ('tpiedge nodes revoke' removes them)."""
    TokenStore(_master_folder(state)).revoke(token_id)
    click.echo(f"token {token_id} is revoked")


def install_lines(folder: Path, address: Address, token: str) -> list[str]:
    """Returns lines that install tpiedge on another machine and start a worker; [] before the master's first start."""
    handed = find_installer(folder / INSTALL)
    url = f"http://{address.beside(INSTALL_OFFSET)}"
    return shell_lines(handed, url, str(address), token) if handed is not None else []


def _master_folder(state: Path | None) -> Path:
    return private_folder(master_state(state))


def _end(record: TokenRecord) -> str:
    if record.created < CLOCK_SET_S:
        return f"{(record.expires - record.created) / 3600:g} h after the clock is set"
    return _when(record.expires)


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


@contextmanager
def offered(path: Path, folder: Path, master_key: str, address: Address) -> Iterator[None]:
    """Keeps a token in `path` during the block. The token lets in any number of workers. Raises UserError."""
    with invitation(folder, 30 * DAY_S, None) as secret:
        partial = path.with_name(f".{path.name}.partial")
        try:
            partial.unlink(missing_ok=True)
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{JoinToken(master_key, secret, address).text}\n")
            partial.replace(path)
        except OSError as error:
            raise UserError(f"cannot write the token to {path}: {error.strerror}") from None
        try:
            yield
        finally:
            with suppress(OSError):  # perhaps gone with its volume; the token is void in a moment
                path.unlink()


@contextmanager
def invitation(folder: Path, expires_s: float = DAY_S, uses: int | None = 1) -> Iterator[str]:
    """Yields the secret of a new token, which is void after the block."""
    _withdraw(folder)
    record, secret = TokenStore(folder).create(expires_s, uses)
    try:
        replace_private(folder / _NOTE, {"token": record.id})
        yield secret
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
    """Waits until the file has content, and returns it. Raises UserError after `limit_s`."""
    deadline, waiting = time.monotonic() + limit_s, False
    while True:
        try:
            with suppress(FileNotFoundError), path.open("rb") as file:
                if text := file.read(4096).decode("ascii", "replace").strip():
                    return text
        except OSError as error:
            raise UserError(f"cannot read the token in {path}: {error.strerror}") from None
        if time.monotonic() >= deadline:
            raise UserError(
                f"no token in {path} within {limit_s:.0f} s: is 'tpiedge master --token-file' running?"
            )
        if not waiting:
            waiting = True
            click.echo(f"waiting for a token in {path}", err=True)
        time.sleep(0.1)
