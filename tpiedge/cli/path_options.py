"""The flags that say where things are kept."""

import click

from tpiedge.cli.types import Location

__all__ = ["cache_option", "state_option"]

cache_option = click.option(
    "--cache",
    type=Location(file_okay=False),
    envvar="TPIEDGE_CACHE",
    help="Folder for packs.  [default: the user's cache folder]",
)

state_option = click.option(
    "--state",
    type=Location(file_okay=False),
    envvar="TPIEDGE_STATE",
    help="Folder for keys, members and tokens.  [default: the user's state folder]",
)
