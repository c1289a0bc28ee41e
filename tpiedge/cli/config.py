"""`tpiedge config` shows and checks settings."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tpiedge.cli.listing import ListingGroup, json_option, print_table
from tpiedge.cli.options import Location
from tpiedge.cli.settings import (
    SettingsFile,
    config_option,
    effective,
    nearest,
    options_of,
    problems,
    read_settings,
    refused,
    resolve,
    unused_variables,
    verbs_of,
)
from tpiedge.errors import UserError

_SECRETS = frozenset({"api-key", "token", "password", "secret", "hub-token"})


@click.group(cls=ListingGroup)
def config() -> None:
    """Show and check settings."""


@config.command()
@click.argument("words", metavar="[VERB]", nargs=-1)
@json_option
@click.pass_context
def show(ctx: click.Context, words: tuple[str, ...], as_json: bool, config: Path | None) -> None:
    """Show the value of each flag of VERB (default: all verbs), and where it comes from."""
    root = ctx.find_root().command
    verbs = verbs_of(root, words[:1] or None)
    chosen = {table: verb for table, verb in verbs.items() if tuple(table.split("."))[: len(words)] == words}
    if not chosen:
        known = [table.replace(".", " ") for table in verbs_of(root)]
        raise UserError(f"there is no verb {' '.join(words)!r}{nearest(' '.join(words), known)}")
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for table, command in chosen.items():
        settings, found[table] = effective(root, table, command, config), {}
        for key, option in options_of(command).items():
            value, source = option.to_info_dict()["default"], "default"
            if key in settings:
                value, source = "***" if key in _SECRETS else settings[key].value, settings[key].origin
            elif not isinstance(value, str | int | float | list | tuple | None):
                value = str(value)
            found[table][key] = {"value": value, "source": source}
    if as_json:
        click.echo(json.dumps(found))
        return
    rows = [
        [f"{table.replace('.', ' ')} --{key}", _shown(item["value"]), item["source"]]
        for table, items in found.items()
        for key, item in items.items()
    ]
    print_table(["flag", "value", "source"], rows)
    for name, meant in unused_variables(chosen, os.environ).items():
        click.echo(f"not used: {name}{f'; did you mean {meant}?' if meant else ''}", err=True)


show.params.append(config_option())


@config.command()
@click.argument("file", type=Location())
@click.pass_context
def check(ctx: click.Context, file: Path) -> None:
    """Check the settings in FILE against every verb; each problem is one line."""
    root = ctx.find_root().command
    settings = read_settings(file)
    found = [*problems(settings, verbs_of(root))] or [*check_values(root, settings)]
    for line in found[:-1]:
        click.echo(f"tpiedge: {line}", err=True)
    if found:
        raise UserError(found[-1])
    click.echo(f"{file} is valid")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)


def check_values(root: click.Command, file: SettingsFile) -> Iterator[str]:
    """Yields a line for each refused value. `file` must have no `problems`."""
    for table, command in verbs_of(root).items():
        yield from refused(command, resolve(table, command, {}, file))
