"""`tpiedge nodes`: the machines of the running master, and who may be one of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tpiedge.cli.listing import ListingGroup
from tpiedge.cli.options import on_either_side
from tpiedge.cli.path_options import state_option
from tpiedge.cli.reach import admin_of
from tpiedge.cli.table import print_table
from tpiedge.errors import UserError
from tpiedge.master.status import collective_names
from tpiedge.sanitise import sanitised
from tpiedge.units import counted, format_bytes, format_seconds

__all__ = ["nodes"]

_HEADER = (
    "node",
    "rank",
    "state",
    "attention",
    "ffn",
    "threads",
    "memory",
    "speed",
    "weights",
    "disk",
    "seen",
)


#: Who has been lost for longer is not listed, unless all are.
_GONE_S = 60.0

_json_option = click.option("--json", "as_json", is_flag=True, help="For programs.")


@click.group(cls=ListingGroup, invoke_without_command=True)
@click.option(
    "--all", "everybody", is_flag=True, help="Also workers that have been away for a minute or more."
)
@_json_option
@state_option
@click.pass_context
def nodes(context: click.Context, everybody: bool, as_json: bool, state: Path | None) -> None:
    """Show who has which share of the model, and why; let waiting workers in; shut nodes out."""
    if context.invoked_subcommand is None:
        _show(everybody, as_json, state)
    elif context.get_parameter_source("everybody") is ParameterSource.COMMANDLINE:
        raise UserError(f"--all is for the list of nodes: leave it out before '{context.invoked_subcommand}'")


@nodes.command()
@click.argument("code")
@_json_option
@state_option
@click.pass_context
def approve(context: click.Context, code: str, as_json: bool, state: Path | None) -> None:
    """Let the worker in that shows CODE on its screen."""
    answer = _order(context, as_json, state, "approve", {"code": code})
    if answer is not None:
        click.echo(f"{sanitised(str(answer.get('name')))} may join from now on")


@nodes.command()
@click.argument("name")
@_json_option
@state_option
@click.pass_context
def revoke(context: click.Context, name: str, as_json: bool, state: Path | None) -> None:
    """Shut the node NAME out for good."""
    answer = _order(context, as_json, state, "revoke", {"name": name})
    if answer is not None:
        click.echo(f"{_named(str(answer.get('revoked')), name)} is shut out")


def _order(
    context: click.Context, as_json: bool, state: Path | None, what: str, body: dict[str, str]
) -> dict[str, Any] | None:
    """The master's answer, or None once it is printed as JSON."""
    with admin_of(on_either_side(context, "state", state)) as master:
        answer = master.post(f"/admin/nodes/{what}", body)
    if not on_either_side(context, "as_json", as_json):
        return answer
    click.echo(json.dumps(answer))
    return None


def _show(everybody: bool, as_json: bool, state: Path | None) -> None:
    with admin_of(state) as master:
        status: dict[str, Any] = master.get("/admin/nodes") | master.get("/admin/nodes/pending")
        if everybody:
            status |= master.get("/admin/nodes/members")
    try:
        away = [] if everybody else [node["name"] for node in status["nodes"] if _is_gone(node)]
        status["nodes"] = [node for node in status["nodes"] if node["name"] not in away]
        click.echo(json.dumps(status)) if as_json else _print(status, len(away))
    except (KeyError, TypeError, ValueError):
        raise UserError("the master answers in another form: is it of another version?") from None


def _is_gone(node: dict[str, Any]) -> bool:
    return bool(node["state"] == "lost" and node["last_seen_s"] > _GONE_S)


def _print(status: dict[str, Any], away: int) -> None:
    """`away`: workers that are left out."""
    listed = {node["name"] for node in status["nodes"]}
    absent = [member for member in status.get("members", []) if member["name"] not in listed]
    print_table(_HEADER, [*map(_row, status["nodes"]), *map(_absent_row, absent)])
    if away:
        click.echo(f"{counted(away, 'worker')} away for more than a minute: tpiedge nodes --all")
    for node in status["nodes"]:
        if node["why"]:
            click.echo(f"{_title(node)}: {sanitised(node['why'])}")
    for node in status["nodes"]:
        if node["not_stocked"]:
            why = sanitised(node["not_stocked"])
            click.echo(f"{_title(node)} lacks what it would need after another's loss: {why}")
    click.echo(("ready" if status["ready"] else "not ready") + _because(status["reason"]))
    if status["collective"]:
        ways = collective_names(sanitised(status["collective"]), sanitised(status["bulk_collective"]))
        click.echo(f"all-reduces: {ways}" + _because(status["collective_why"]))
    if status["ready"]:
        click.echo("answers: " + _exactness(sanitised(status["split_shows"])))
    click.echo(f"{status['running']} running, {status['queued']} queued")
    for join in status["pending"]:
        place = f"{sanitised(join['name'])} ({sanitised(join['address'])})"
        click.echo(f"{place} waits to join: type the code that it shows: tpiedge nodes approve CODE")


def _exactness(split_shows: str) -> str:
    if not split_shows:
        return "the same to the last bit, whoever computes them"
    return f"their last bits may depend on who computes them, because of {split_shows}"


def _because(reason: str) -> str:
    return f": {sanitised(reason)}" if reason else ""


def _title(node: dict[str, Any]) -> str:
    """The machine's name as it calls itself, with the one that `revoke` takes."""
    return _named(node["name"], node.get("host"))


def _named(name: str, host: str | None) -> str:
    return sanitised(f"{name} ({host})" if host not in (None, "", name) else name)


def _row(node: dict[str, Any]) -> tuple[str, ...]:
    return (
        _title(node),
        "-" if node["rank"] is None else str(node["rank"]),
        sanitised(node["state"]),
        _interval(node["attention"]),
        _interval(node["ffn"]),
        str(node["threads"]),
        format_bytes(node["memory_bytes"]) if node["memory_bytes"] else "?",
        f"{format_bytes(node['speed'])}/s" if node["speed"] else "?",
        format_bytes(node["weight_bytes"]),
        format_bytes(node["disk_bytes"]) if node["disk_bytes"] else "-",
        f"{format_seconds(node['last_seen_s'])} ago",
    )


def _absent_row(member: dict[str, Any]) -> tuple[str, ...]:
    """Of a worker that has not come since the master's start."""
    return (_title(member), "-", "away", "-", "-", "-", "?", "?", "-", "-", "-")


def _interval(units: Sequence[int]) -> str:
    start, stop = units
    return f"{start}..{stop}" if stop > start else "-"
