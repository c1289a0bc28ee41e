"""`tpiedge cache` lists and clears the machines' files of KV pages."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tpiedge.cli.listing import ListingGroup, json_option, print_table
from tpiedge.cli.options import state_option, together
from tpiedge.cli.reach import admin_of
from tpiedge.cli.top import names_of, well_formed
from tpiedge.errors import PeerError
from tpiedge.host.private_file import PAGES, master_state, running_master, worker_state
from tpiedge.kv.page_folder import PageFolder
from tpiedge.sanitise import sanitised
from tpiedge.units import counted, format_bytes

_usual_options = together(json_option, state_option)


@click.group(cls=ListingGroup)
def cache() -> None:
    """List and clear what the machines keep of prompts on disk, for the KV cache.

    `--keep-context` and `--kv-disk` of master and workers allow it. The files are encrypted.
    """


@cache.command()
@_usual_options
def ls(as_json: bool, state: Path | None) -> None:
    """List the machines with their page files; without a running master, this computer alone."""
    record = _everywhere(state, clear=False) if running_master(state) else _here(state, clear=False)
    if as_json:
        click.echo(json.dumps(record))
        return
    with well_formed():
        header = ("machine", "kept pages", "size", "limit", "parked pages", "size", "limit")
        called = names_of(record["machines"])
        print_table(header, [(called[one["name"]], *_cells(one)) for one in record["machines"]])
        for one in record["machines"]:
            if one["why"]:
                click.echo(f"{called[one['name']]}: {sanitised(one['why'])}", err=True)


@cache.command()
@click.option("--all-nodes", is_flag=True, help="Clear all machines of the running master.")
@_usual_options
def clear(all_nodes: bool, as_json: bool, state: Path | None) -> None:
    """Delete the page files of this computer. Running answers go on; what they miss is computed again."""
    record = (_everywhere if all_nodes else _here)(state, clear=True)
    if as_json:
        click.echo(json.dumps(record))
    with well_formed():
        called, missing = names_of(record["machines"]), []
        for one in record["machines"]:
            pages, nbytes = (one["kept"][what] + one["parked"][what] for what in ("pages", "nbytes"))
            if one["why"]:
                missing.append(f"{called[one['name']]}: {sanitised(one['why'])}")
            elif not as_json:
                click.echo(
                    f"{called[one['name']]}: {counted(pages, 'page')} deleted ({format_bytes(nbytes)})"
                )
    if missing:
        raise PeerError(f"not cleared: {'; '.join(missing)}; type 'tpiedge cache clear' there")


def _everywhere(state: Path | None, *, clear: bool) -> dict[str, Any]:
    with admin_of(state) as master:
        return master.delete("/admin/cache") if clear else master.get("/admin/cache")


def _here(state: Path | None, *, clear: bool) -> dict[str, Any]:
    """Counts, or deletes and counts, the page files in this computer's state folder. Raises UserError."""
    found = []
    for name, folder in (("master", master_state(state)), ("worker", worker_state(state))):
        kept, parked = PageFolder(folder / PAGES).usage(clear=clear)
        counts = {"kept": asdict(kept), "parked": asdict(parked)}
        found.append({"name": name, "host": "", **counts, "keep_bytes": None, "park_bytes": None, "why": ""})
    return {"machines": found}


def _cells(machine: dict[str, Any]) -> list[str]:
    cells = []
    for kind, limit in (("kept", "keep_bytes"), ("parked", "park_bytes")):
        used, most = machine[kind], machine[limit]
        most = "-" if most is None else format_bytes(most) if most else "none"
        cells += [str(used["pages"]), format_bytes(used["nbytes"]), most]
    return cells
