"""`tpiedge shards`: what this computer keeps as a worker of models that its masters shipped."""

import dataclasses
import json
from datetime import datetime
from pathlib import Path

import click

from tpiedge.cli.listing import ListingGroup
from tpiedge.cli.path_options import cache_option
from tpiedge.cli.table import print_table
from tpiedge.local.paths import cache_folder
from tpiedge.pack.store.space import PackUsage, write_limit
from tpiedge.pack.store.store import ShardStore
from tpiedge.units import format_bytes, parse_bytes

_ID_DIGITS = 12


@click.group(cls=ListingGroup)
def shards() -> None:
    """The parts of models that this computer keeps as a worker: list, remove, limit."""


@shards.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@cache_option
def ls(as_json: bool, cache: Path | None) -> None:
    """List the packs of which parts are here, and what they take."""
    usage = _store(cache).usage()
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(usage)))
        return
    if usage.packs:
        print_table(
            ["pack", "layers", "precision", "here", "of", "last used"], [_row(pack) for pack in usage.packs]
        )
    of = "" if usage.limit_bytes is None else f" of {format_bytes(usage.limit_bytes)}"
    click.echo(f"{format_bytes(usage.held_bytes)}{of} taken", err=True)


@shards.command("rm")
@click.argument("name", metavar="PACK")
@cache_option
def rm(name: str, cache: Path | None) -> None:
    """Remove PACK (the beginning of its id) from this computer; a worker fetches it again when it needs it."""
    removed = _store(cache).remove(name)
    click.echo(f"removed {removed[:_ID_DIGITS]}")


@shards.command("limit")
@click.argument("size")
@cache_option
def limit(size: str, cache: Path | None) -> None:
    """Let the parts take at most SIZE (like 20GB), or "none": the pack used longest ago leaves first."""
    most = None if size == "none" else parse_bytes(size)
    write_limit(_folder(cache), most)
    words = "all that the disk has" if most is None else f"at most {format_bytes(most)}"
    click.echo(f"the parts may take {words}", err=True)


def _folder(cache: Path | None) -> Path:
    return cache_folder(cache) / "shards"


def _store(cache: Path | None) -> ShardStore:
    return ShardStore(_folder(cache))


def _row(pack: PackUsage) -> list[str]:
    used = "in use" if pack.in_use else datetime.fromtimestamp(pack.used_at).strftime("%Y-%m-%d %H:%M")
    sizes = [format_bytes(pack.held_bytes), format_bytes(pack.full_bytes)]
    return [pack.id[:_ID_DIGITS], str(pack.layers), pack.precision, *sizes, used]
