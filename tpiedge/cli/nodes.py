"""`tpiedge nodes`: the machines of the running master, and who may be one of them."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tpiedge.cli.listing import ListingGroup, json_option, print_table
from tpiedge.cli.options import Number, option, state_option, together
from tpiedge.cli.reach import MasterClient, admin_of
from tpiedge.cli.top import named, title, waiting_lines, well_formed
from tpiedge.errors import PeerError
from tpiedge.master.assignments import collective_names
from tpiedge.progress import LiveLine
from tpiedge.sanitise import sanitised
from tpiedge.units import counted, format_bytes, format_range, format_seconds

_HEADER = (
    *("node", "rank", "state", "heads", "FFN tiles", "threads"),
    *("memory", "speed", "weights", "disk", "seen"),
)
_usual_options = together(json_option, state_option)


@click.group(cls=ListingGroup, invoke_without_command=True)
@option(
    "--all",
    "Also workers that have been away for a minute or more, and those that were revoked.",
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
    """Let the worker in that shows CODE on its screen."""
    _order(as_json, state, "approve", {"code": code}, "{} may join from now on")


@nodes.command()
@_usual_options
def key(as_json: bool, state: Path | None) -> None:
    """Print the administrator's key of the running master, for the page's view of the cluster.

    Who has it may let machines in and shut them out. The next start of the master makes another one.
    """
    with admin_of(state) as master:
        found = str(master.key)
    click.echo(json.dumps({"key": found}) if as_json else found)


@nodes.command()
@click.argument("name")
@_usual_options
def revoke(name: str, as_json: bool, state: Path | None) -> None:
    """Shut the node NAME out for good."""
    _order(as_json, state, "revoke", {"name": name}, "{} is shut out")


@nodes.command()
@click.argument("name")
@click.option("--undo", is_flag=True, help="Let plans have the worker again.")
@option(
    "--timeout", "Seconds to wait until it has no part. It stays drained.", Number(0, 1e6), 600.0, "limit_s"
)
@_usual_options
def drain(name: str, undo: bool, limit_s: float, as_json: bool, state: Path | None) -> None:
    """Take the worker NAME out of the plan, so that its machine can be switched off.

    The others prepare for its part meanwhile, then answers that run pause and go on without it. That is refused where
    they cannot serve the model. It lasts until the worker is started anew, or --undo.
    """
    if undo:
        _order(as_json, state, "undrain", {"name": name}, "{} may have a part again")
        return
    with admin_of(state) as master:
        peer = str(master.post("/admin/nodes/drain", {"name": name}).get("name"))
        node = _wait_until_drained(master, peer, named(peer, name), limit_s)
    record = {"name": peer, "host": node["host"], "state": node["state"]}
    words = f"{title(node)} has no part any more: it may be switched off"
    click.echo(json.dumps(record) if as_json else words)


@nodes.command()
@click.argument("name")
@_usual_options
def clear(name: str, as_json: bool, state: Path | None) -> None:
    """Try the worker NAME again now, which is left out for a while after failures or breaches.

    If it fails again, it is left out for longer.
    """
    _order(as_json, state, "clear", {"name": name}, "{} is left out no longer")


def _order(as_json: bool, state: Path | None, what: str, body: dict[str, str], words: str) -> None:
    with admin_of(state) as master:
        answer = master.post(f"/admin/nodes/{what}", body)
    peer = str(answer.get("revoked" if what == "revoke" else "name"))
    click.echo(json.dumps(answer) if as_json else words.format(named(peer, body.get("name"))))


def _wait_until_drained(master: MasterClient, peer: str, called: str, limit_s: float) -> Mapping[str, Any]:
    deadline, progress = time.monotonic() + limit_s, LiveLine()
    try:
        with well_formed():
            while True:
                status: dict[str, Any] = master.get("/admin/nodes")
                nodes: Sequence[Mapping[str, Any]] = status["nodes"]
                node = next((node for node in nodes if node["name"] == peer), None)
                if node is None or node["state"] not in ("draining", "drained", "lost"):
                    raise PeerError(
                        f"{called} is not drained any more: it was started anew, or somebody undid it"
                    )
                if node["state"] != "draining":
                    return node
                waits = sanitised(status["reason"]) or "they prepare"
                for one in nodes:
                    if (done := one["fetched_bytes"]) < (total := one["fetch_total_bytes"]):
                        waits = f"{title(one)} has {done / total:.0%} of {format_bytes(total)} of weights"
                        break
                if time.monotonic() >= deadline:
                    raise PeerError(
                        f"{called} still has its part after {format_seconds(limit_s)} ({waits}); the next plan is "
                        "without it: type the same again to wait on, or add --undo"
                    )
                progress.tell(f"{called} has its part until the others are ready: {waits}")
                time.sleep(0.2)
    finally:
        progress.finish()


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
    rows = {node["name"]: _row(node) for node in status["nodes"]}
    for state, workers in (("away", "members"), ("revoked", "revoked")):
        for worker in status.get(workers, []):
            absent = (title(worker), "-", state, "-", "-", "-", "?", "?", "-", "-", "-")
            rows.setdefault(worker["name"], absent)
    print_table(_HEADER, list(rows.values()))
    if away:
        click.echo(f"{counted(away, 'worker')} away for more than a minute: tpiedge nodes --all")
    for node in status["nodes"]:
        if node["why"]:
            click.echo(f"{title(node)}: {sanitised(node['why'])}")
        if node["not_stocked"]:
            why = sanitised(node["not_stocked"])
            click.echo(f"{title(node)} lacks what it would need after another's loss: {why}")
    reason, why = (
        f": {sanitised(status[name])}" if status[name] else "" for name in ("reason", "collective_why")
    )
    click.echo(f"{'ready' if status['ready'] else 'not ready'}{reason}")
    if status["collective"]:
        ways = collective_names(sanitised(status["collective"]), sanitised(status["bulk_collective"]))
        click.echo(f"all-reduces: {ways}{why}")
    if status["ready"]:
        shows = sanitised(status["split_shows"])
        other = f"their last bits may depend on who computes them, because of {shows}"
        click.echo(f"answers: {other if shows else 'the same to the last bit, whoever computes them'}")
    click.echo(f"{status['running']} running, {status['queued']} queued")
    for line in waiting_lines(status["pending"]):
        click.echo(line)


def _row(node: dict[str, Any]) -> tuple[str, ...]:
    return (
        title(node),
        "-" if node["rank"] is None else str(node["rank"]),
        sanitised(node["state"]),
        format_range(*node["attention"]),
        format_range(*node["ffn"]),
        str(node["threads"]),
        format_bytes(node["memory_bytes"]) if node["memory_bytes"] else "?",
        f"{format_bytes(node['speed'])}/s" if node["speed"] else "?",
        format_bytes(node["weight_bytes"]),
        format_bytes(node["disk_bytes"]) if node["disk_bytes"] else "-",
        f"{format_seconds(node['last_seen_s'])} ago",
    )
