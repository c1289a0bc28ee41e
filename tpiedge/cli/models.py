"""`tpiedge ls`, `tpiedge show` and `tpiedge rm`: the models of this computer."""

import dataclasses
import json
import sys
import time
from pathlib import Path

import click

from tpiedge.cli.model_card import ModelCard
from tpiedge.cli.model_names import HUB_MODEL, MODEL
from tpiedge.cli.path_options import cache_option
from tpiedge.cli.table import print_table
from tpiedge.errors import UserError
from tpiedge.local.catalogue import StoredPack, packs_of, stored_packs
from tpiedge.local.paths import packs_folder
from tpiedge.model.aliases import aliases
from tpiedge.model.hub.cache import HubCache, Pulled, parse_hub_name
from tpiedge.pack.use import remove_packs
from tpiedge.sanitise import quote, sanitised_line
from tpiedge.units import format_age, format_bytes

_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on standard output."
)


@click.command()
@click.option("--all", "with_aliases", is_flag=True, help="Also the aliases of models that can be pulled.")
@_json_option
@cache_option
def ls(with_aliases: bool, as_json: bool, cache: Path | None) -> None:
    """List the models that were pulled and the packs in the cache, by the names that every verb takes."""
    pulled, packs = HubCache(cache).pulled(), stored_packs(cache)
    offered = list(aliases().values()) if with_aliases else []
    if as_json:
        record = {
            "models": [_pulled_record(model) for model in pulled],
            "packs": [_pack_record(pack) for pack in packs],
        }
        if with_aliases:
            record["aliases"] = [dataclasses.asdict(alias) for alias in offered]
        click.echo(json.dumps(record))
        return
    rows = [
        *(
            [pack.name, pack.precision or "", _size(pack), sanitised_line(pack.source), _last_use(pack)]
            for pack in packs
        ),
        *([str(model.name), "checkpoint", format_bytes(model.nbytes), "the hub", ""] for model in pulled),
        *(
            [alias.name, "alias", "", f"{alias.repo}{', gated' if alias.gated else ''}", ""]
            for alias in offered
        ),
    ]
    if rows:
        print_table(["name", "precision", "size", "source", "last use"], rows)
    else:
        click.echo("no models yet: tpiedge ls --all lists what tpiedge pull knows by name", err=True)


def _size(pack: StoredPack) -> str:
    return "damaged: tpiedge rm it" if pack.nbytes is None else format_bytes(pack.nbytes)


def _last_use(pack: StoredPack) -> str:
    return format_age(time.time() - pack.used_s)


def _pack_record(pack: StoredPack) -> dict[str, object]:
    return dataclasses.asdict(pack) | {"path": str(pack.path)}


def _pulled_record(model: Pulled) -> dict[str, object]:
    return {
        "model": str(model.name),
        "repo": model.name.repo,
        "revision": model.name.revision,
        "commit": model.commit,
        "path": str(model.folder),
        "nbytes": model.nbytes,
    }


@click.command()
@click.argument("model_name", metavar="MODEL", type=HUB_MODEL)
@_json_option
@cache_option
def show(model_name: str, as_json: bool, cache: Path | None) -> None:
    """Say what is known of MODEL: shape, size, terms, where it lies."""
    card = ModelCard.of(model_name, cache)
    if as_json:
        click.echo(json.dumps(card.record()))
        return
    lines = card.lines()
    width = max(len(label) for label, _ in lines)
    for label, value in lines:
        click.echo(f"{label.ljust(width)}  {value}")


def _confirmed() -> bool:
    """Asks the user. Raises UserError where standard input has ended."""
    try:
        return click.confirm("Sure?", err=True)
    except click.Abort as aborted:  # by the end of the input, or by Ctrl-C
        click.echo(err=True)
        if sys.stdin.isatty() or isinstance(aborted.__context__, KeyboardInterrupt):
            raise
        raise UserError("nobody answers on standard input: say --yes to delete without a question") from None


def _refuse_others(packs: list[Path], cache: Path | None) -> None:
    """Raises UserError for a pack outside of the cache, which a user named by its path."""
    for pack in packs:
        if pack.resolve().parent != packs_folder(cache).resolve():
            raise UserError(f"{pack} is not in the cache: delete the folder yourself")


@click.command()
@click.argument("model_name", metavar="MODEL", type=MODEL)
@click.option("--packs-only", is_flag=True, help="Keep the checkpoint that was pulled.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cache_option
def rm(model_name: str, packs_only: bool, yes: bool, cache: Path | None) -> None:
    """Delete MODEL from the cache: what was pulled, and its packs. A folder of your own is never deleted."""
    hub_name, hub = parse_hub_name(model_name), HubCache(cache)
    packs = packs_of(model_name, cache)
    _refuse_others(packs, cache)
    repo = hub_name.repo if hub_name is not None and not packs_only else None
    entry = hub.entry(repo) if repo is not None and hub.entry(repo).is_dir() else None
    if not packs and entry is None:
        raise UserError(f"nothing of {quote(model_name)} is in the cache: tpiedge ls lists what is")
    for path in [*packs, *([entry] if entry else [])]:
        click.echo(f"delete {path}", err=True)
    if not yes and not _confirmed():
        click.echo("nothing was deleted", err=True)
        return
    remove_packs(packs)  # first: it refuses where a process uses one
    if entry is not None and repo is not None:
        hub.remove(repo)
