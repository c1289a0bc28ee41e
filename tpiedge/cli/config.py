"""`tpiedge config`: which settings count and where they come from, and whether a file is in order."""

import json
import os
from pathlib import Path
from typing import Any

import click

from tpiedge.cli.configured import (
    SECRETS,
    Setting,
    Verbs,
    check_values,
    config_option,
    effective,
    nearest,
    options_of,
    problems,
    unused_variables,
    variables_of,
    verbs_of,
)
from tpiedge.cli.listing import ListingGroup
from tpiedge.cli.settings_file import read_settings
from tpiedge.cli.table import json_option, print_table
from tpiedge.cli.types import Location
from tpiedge.errors import UserError


@click.group(cls=ListingGroup)
def config() -> None:
    """Show and check settings."""


@config.command()
@click.argument("words", metavar="[VERB]", nargs=-1)
@json_option
@click.pass_context
def show(ctx: click.Context, words: tuple[str, ...], as_json: bool, config: Path | None) -> None:
    """Every value of VERB, or of all verbs, and where it comes from."""
    root = ctx.find_root().command
    chosen = _choose(root, words)
    found = {table: _values(root, table, command, config) for table, command in chosen.items()}
    if as_json:
        click.echo(json.dumps(found))
        return
    rows = [
        [f"{table.replace('.', ' ')} --{key}", _text(item["value"]), item["source"]]
        for table, items in found.items()
        for key, item in items.items()
    ]
    print_table(["flag", "value", "source"], rows)
    known = [
        name
        for table, command in chosen.items()
        for key in options_of(command)
        for name in variables_of(table, key)
    ]
    for name in unused_variables(chosen, os.environ):
        click.echo(f"not used: {name}{nearest(name, known)}", err=True)


show.params.append(config_option())


@config.command()
@click.argument("file", type=Location())
@click.pass_context
def check(ctx: click.Context, file: Path) -> None:
    """Check FILE against every verb; each problem is one line."""
    root = ctx.find_root().command
    settings = read_settings(file)
    found = list(problems(settings, verbs_of(root))) or list(check_values(root, settings))
    for line in found[:-1]:
        click.echo(f"tpiedge: {line}", err=True)
    if found:
        raise UserError(found[-1])
    click.echo(f"{file} is in order")


def _choose(root: click.Command, words: tuple[str, ...]) -> Verbs:
    verbs = verbs_of(root, words[:1] or None)
    chosen = {
        table: command for table, command in verbs.items() if tuple(table.split("."))[: len(words)] == words
    }
    if not chosen:
        known = [table.replace(".", " ") for table in verbs_of(root)]
        raise UserError(f"there is no verb {' '.join(words)!r}{nearest(' '.join(words), known)}")
    return chosen


def _values(
    root: click.Command, table: str, command: click.Command, given: Path | None
) -> dict[str, dict[str, Any]]:
    settings = effective(root, table, command, given)
    shown: dict[str, dict[str, Any]] = {}
    for key, option in options_of(command).items():
        setting = settings.get(key, Setting(option.to_info_dict()["default"], "default"))
        value = "***" if key in SECRETS and setting.value else _plain(setting.value)
        shown[key] = {"value": value, "source": setting.origin}
    return shown


def _plain(value: object) -> Any:
    """The value as JSON has it."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)
