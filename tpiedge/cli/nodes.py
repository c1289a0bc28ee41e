"""`tpiedge nodes` shows the master's machines, and admits workers."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from tpiedge.api.guard import is_loopback
from tpiedge.api.keys import admin_link
from tpiedge.cli.listing import ListingGroup, json_option, print_table, screen_columns, wrapped
from tpiedge.cli.options import Number, option, state_option, together
from tpiedge.cli.reach import MasterClient, admin_of
from tpiedge.cli.top import named, names_of, title, wait_for, waiting_lines, well_formed
from tpiedge.errors import PeerError, UserError
from tpiedge.master.assignments import collective_names
from tpiedge.sanitise import sanitised
from tpiedge.units import counted, format_bytes, format_range, format_seconds

_HEADER = (
    *("node", "rank", "state", "heads", "FFN", "threads"),
    *("memory", "speed", "weights", "disk", "seen"),
)
_usual_options = together(json_option, state_option)


@click.group(cls=ListingGroup, invoke_without_command=True)
@option(
    "--all",
    "Also list workers away for over a minute, and revoked ones.",
    name="everybody",
    is_flag=True,
)
@_usual_options
@click.pass_context
def nodes(context: click.Context, everybody: bool, as_json: bool, state: Path | None) -> None:
    if context.invoked_subcommand is None:
        _show(everybody, as_json, state)


@nodes.command()
@click.argument("code")
@_usual_options
def approve(code: str, as_json: bool, state: Path | None) -> None:
    """Approve the worker that shows CODE on its screen."""
    _order(as_json, state, "approve", {"code": code}, "{} is approved")


@nodes.command()
@_usual_options
def key(as_json: bool, state: Path | None) -> None:
    """Print the admin key of the running master, for the page's view Cluster.

    With this key, machines can be approved and revoked. Each start of the master makes a new key.
    """
    with admin_of(state) as master:
        found = str(master.key)
    click.echo(json.dumps({"key": found}) if as_json else found)


@nodes.command()
@_usual_options
def link(as_json: bool, state: Path | None) -> None:
    """Print a link that opens the page on this computer with the admin key.

    The link works once, within an hour, and voids earlier links.
    """
    with admin_of(state) as master:
        if not is_loopback(urlsplit(master.url).netloc):
            raise UserError(
                f"the API is not on loopback: open {master.url} and type the key of 'tpiedge nodes key'"
            )
        found = admin_link(master.url, str(master.post("/admin/link", {}).get("code")))
    click.echo(json.dumps({"link": found}) if as_json else found)


@nodes.command()
@click.argument("name")
@_usual_options
def revoke(name: str, as_json: bool, state: Path | None) -> None:
    """Revoke the worker NAME for good."""
    _order(as_json, state, "revoke", {"name": name}, "{} is revoked")


@nodes.command()
@click.argument("name")
@click.option("--undo", is_flag=True, help="Use the worker again.")
@option("--timeout", "Seconds to wait; the drain goes on afterwards.", Number(0, 1e6), 600.0, "limit_s")
@_usual_options
def drain(name: str, undo: bool, limit_s: float, as_json: bool, state: Path | None) -> None:
    """Take the worker NAME out of the plan, so that its machine can be switched off.

    Answers pause while other machines take over the worker's part. The drain is refused if the other machines cannot
    serve the model. The drain lasts until the worker restarts, or until --undo."""
    if undo:
        _order(as_json, state, "undrain", {"name": name}, "{} is back in use")
        return
    with admin_of(state) as master:
        peer = str(master.post("/admin/nodes/drain", {"name": name}).get("name"))
        node = _wait_until_drained(master, peer, named(peer, name), limit_s)
    record = {"name": peer, "host": node["host"], "state": node["state"]}
    words = f"{title(node)} is drained and may be switched off"
    click.echo(json.dumps(record) if as_json else words)


@nodes.command()
@click.argument("name")
@_usual_options
def clear(name: str, as_json: bool, state: Path | None) -> None:
    """Retry at once the worker NAME, which is left out after failures.

    If it fails again, it is left out for longer."""
    _order(as_json, state, "clear", {"name": name}, "{} is no longer left out")


def _order(as_json: bool, state: Path | None, what: str, body: dict[str, str], words: str) -> None:
    with admin_of(state) as master:
        answer = master.post(f"/admin/nodes/{what}", body)
    peer = str(answer.get("revoked" if what == "revoke" else "name"))
    click.echo(json.dumps(answer) if as_json else words.format(named(peer, body.get("name"))))


def _wait_until_drained(master: MasterClient, peer: str, called: str, limit_s: float) -> Mapping[str, Any]:
    def look() -> tuple[Mapping[str, Any] | None, str]:
        status: dict[str, Any] = master.get("/admin/nodes")
        nodes: Sequence[Mapping[str, Any]] = status["nodes"]
        node = next((node for node in nodes if node["name"] == peer), None)
        if node is None or node["state"] not in ("draining", "drained", "lost"):
            raise PeerError(f"{called} is no longer drained: it was restarted, or the drain was undone")
        if node["state"] != "draining":
            return node, ""
        for one in nodes:
            if (done := one["fetched_bytes"]) < (total := one["fetch_total_bytes"]):
                return None, f"{title(one)} has {done / total:.0%} of {format_bytes(total)} of weights"
        return None, sanitised(status["reason"]) or "preparing"

    def late(why: str) -> str:
        return (
            f"{called} is still in use after {format_seconds(limit_s)} ({why}); the next plan is without it: run this "
            "again to keep waiting, or add --undo"
        )

    return wait_for(look, limit_s, f"{called} stays in use until the others are ready", late)


def _show(everybody: bool, as_json: bool, state: Path | None) -> None:
    with admin_of(state) as master:
        status: dict[str, Any] = master.get("/admin/nodes") | master.get("/admin/nodes/pending")
        if everybody:
            status |= master.get("/admin/nodes/members")
    with well_formed():
        here = [
            node
            for node in status["nodes"]
            if everybody or node["state"] != "lost" or node["last_seen_s"] <= 60.0
        ]
        away = len(status["nodes"]) - len(here)
        status["nodes"] = here
        click.echo(json.dumps(status)) if as_json else _print(status, away)


def _print(status: dict[str, Any], away: int) -> None:
    absent = {"away": status.get("members", []), "revoked": status.get("revoked", [])}
    # The same worker may be in several lists: what the plan says of it counts.
    called = names_of({one["name"]: one for one in chain(*absent.values(), status["nodes"])}.values())
    rows = {node["name"]: (called[node["name"]], *_row(node)) for node in status["nodes"]}
    for state, workers in absent.items():
        for worker in workers:
            rows.setdefault(worker["name"], (called[worker["name"]], "-", state, *"---", "?", "?", *"---"))
    print_table(_HEADER, list(rows.values()))
    for line in _lines(status, called, away):
        click.echo("\n".join(wrapped(line, screen_columns())))


def _lines(status: dict[str, Any], called: Mapping[str, str], away: int) -> Iterator[str]:
    if away:
        yield f"{counted(away, 'worker')} away for more than a minute: tpiedge nodes --all"
    for node in status["nodes"]:
        if node["why"]:
            yield f"{called[node['name']]}: {sanitised(node['why'])}"
        if node["not_stocked"]:
            yield f"{called[node['name']]} is not ready for failover: {sanitised(node['not_stocked'])}"
    reason, why = (
        f": {sanitised(status[name])}" if status[name] else "" for name in ("reason", "collective_why")
    )
    state = "ready" if status["ready"] else "asleep" if status["asleep"] else "not ready"
    yield f"{sanitised(status['model'])}: {state}{reason}" if status["model"] else f"{state}{reason}"
    if status["collective"]:
        ways = collective_names(sanitised(status["collective"]), sanitised(status["bulk_collective"]))
        yield f"all-reduce: {ways}{why}"
    if status["ready"]:
        shows = sanitised(status["split_shows"])
        other = f"may differ slightly with other shares ({shows})"
        yield f"answers: {other if shows else 'bit-identical for any shares'}"
    if status["keeps_context"]:
        yield "prompts are kept on disk: tpiedge cache ls"
    yield from (sanitised(status[why]) for why in ("not_kept", "not_parked") if status[why])
    yield f"{status['running']} running, {status['queued']} queued"
    yield from waiting_lines(status["pending"])


def _row(node: dict[str, Any]) -> tuple[str, ...]:
    return (
        "-" if node["rank"] is None else str(node["rank"]),
        "serving" if node["state"] == "ready" else sanitised(node["state"]),
        format_range(*node["attention"]),
        format_range(*node["ffn"]),
        str(node["threads"]),
        format_bytes(node["memory_bytes"]) if node["memory_bytes"] else "?",
        f"{format_bytes(node['speed'])}/s" if node["speed"] else "?",
        format_bytes(node["weight_bytes"]),
        format_bytes(node["disk_bytes"]) if node["disk_bytes"] else "-",
        f"{format_seconds(node['last_seen_s'])} ago",
    )
