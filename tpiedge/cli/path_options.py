"""The flags that say where things are kept."""

from collections.abc import Callable
from pathlib import Path

import click
from platformdirs import user_cache_path, user_state_path

from tpiedge.cli.types import Location
from tpiedge.host.private_file import check_folder


def _checked(
    usual: Callable[[str], Path], *within: str
) -> Callable[[click.Context, click.Parameter, Path | None], Path | None]:
    """Refuses a folder in which other users may change what this one reads; `usual` is the one without the flag."""

    def check(ctx: click.Context, option: click.Parameter, given: Path | None) -> Path | None:
        if not ctx.resilient_parsing:  # completion
            check_folder(given or usual("tpiedge"), within, option.opts[0])
        return given

    return check


cache_option = click.option(
    "--cache",
    type=Location(file_okay=False),
    envvar="TPIEDGE_CACHE",
    callback=_checked(user_cache_path, "packs", "hub", "shards"),
    help="Folder for packs.  [default: the user's cache folder]",
)

state_option = click.option(
    "--state",
    type=Location(file_okay=False),
    envvar="TPIEDGE_STATE",
    callback=_checked(user_state_path, "master", "worker"),
    help="Folder for keys, members and tokens.  [default: the user's state folder]",
)
