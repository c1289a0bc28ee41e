"""How the verbs that write packs let a user name them."""

from pathlib import Path

import click

from tpiedge.errors import UserError
from tpiedge.local.pack_label import check_name

name_option = click.option(
    "--name", help="What the pack is called: every verb takes it.  [default: made of the model's name]"
)


def wanted_name(name: str | None, out: Path | None) -> str | None:
    """What --name says beside --out. Raises UserError."""
    if name is None:
        return None
    if out is not None:
        raise UserError("give either --name or --out: a pack outside of the cache is called by its path")
    return check_name(name)


def say_name(name: str | None) -> None:
    """Say what to type for the pack, where it has a name."""
    if name is not None:
        click.echo(f"called {name}: tpiedge run {name}", err=True)
