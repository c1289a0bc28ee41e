"""`tpiedge keys` manages API keys for phones and programs."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import click

from tpiedge.api.guard import is_loopback
from tpiedge.api.keys import add_key, key_names, revoke_key
from tpiedge.cli.listing import ListingGroup, json_option, print_table
from tpiedge.cli.master_lines import qr_lines, terminal_columns, url_for_others
from tpiedge.cli.options import Location, option, state_option, together
from tpiedge.host.addresses import HTTP_PORT, outgoing_host, parse_address
from tpiedge.host.private_file import api_keys, running_master

_usual_options = together(
    option(
        "--api-key-file",
        "The file with the keys.  [default: the running master's, else one in the state folder]",
        Location(dir_okay=False),
        name="file",
    ),
    json_option,
    state_option,
)


@click.group(cls=ListingGroup)
def keys() -> None:
    """Make, list and revoke API keys, with which phones and programs use the API.

    A running master sees each change at once.
    """


@keys.command()
@click.argument("name")
@_usual_options
def add(name: str, file: Path | None, as_json: bool, state: Path | None) -> None:
    """Make a key called NAME, and show a QR code that opens the page with this key on a phone."""
    running = running_master(state)
    path = _chosen(file, running, state)
    key = add_key(path, name)
    page = ""
    if str(path) == running.get("api_key_file"):
        page = url_for_others(parse_address(str(running["http"])), str(running["url"]))
    reached = not is_loopback(urlsplit(page).hostname or "localhost")
    if not reached:
        page = f"http://{outgoing_host() or '127.0.0.1'}:{HTTP_PORT}"
    url = f"{page}/#key={key}"
    if as_json:
        click.echo(json.dumps({"name": name, "key": key, "url": url, "file": str(path)}))
        return
    click.echo(f"the key, shown once:  {key}" if sys.stdout.isatty() else key)
    if not reached:
        flag = "" if path == api_keys(state).resolve() else f" --api-key-file {shlex.quote(str(path))}"
        now = "phones cannot use the running master with this key: " if running else ""
        click.echo(f"{now}start 'tpiedge master MODEL --http 0.0.0.0:{HTTP_PORT}{flag}' first", err=True)
    click.echo(
        "\n".join([f"on a phone, scan this or open:  {url}", *qr_lines(url, terminal_columns())]), err=True
    )
    click.echo(
        f"whoever has this address may use the model, until:  tpiedge keys revoke {shlex.quote(name)}",
        err=True,
    )


@keys.command()
@_usual_options
def ls(file: Path | None, as_json: bool, state: Path | None) -> None:
    """List the names of the keys."""
    path = _chosen(file, running_master(state), state)
    names = key_names(path)
    if as_json:
        click.echo(json.dumps({"file": str(path), "keys": [{"name": name} for name in names]}))
    elif names:
        print_table(("key",), [(name or "(without a name)",) for name in names])
    else:
        click.echo(f"no API keys in {path}: make one with 'tpiedge keys add NAME'")


@keys.command()
@click.argument("name")
@_usual_options
def revoke(name: str, file: Path | None, as_json: bool, state: Path | None) -> None:
    """Revoke the key called NAME; running answers finish."""
    path = _chosen(file, running_master(state), state)
    revoke_key(path, name)
    click.echo(json.dumps({"revoked": name, "file": str(path)}) if as_json else f"{name} is revoked")


def _chosen(given: Path | None, running: Mapping[str, object], state: Path | None) -> Path:
    used = running.get("api_key_file")
    return (given or (Path(used) if isinstance(used, str) and used else api_keys(state))).resolve()
