"""`tpiedge use`: another model for a running master."""

import json
from pathlib import Path
from typing import Any

import click

from tpiedge.cli import options
from tpiedge.cli.listing import json_option
from tpiedge.cli.model_names import model_option
from tpiedge.cli.options import Number, option
from tpiedge.cli.pulling import offer_pull
from tpiedge.cli.reach import MasterClient, admin_of
from tpiedge.cli.top import wait_for
from tpiedge.errors import PeerError
from tpiedge.local.prepare import prepare
from tpiedge.sanitise import sanitised
from tpiedge.units import format_seconds


@click.command()
@model_option
@option("--now", "End requests of other models at once, with an error.", is_flag=True)
@option("--timeout", "Seconds to wait; the master goes on afterwards.", Number(0, 1e6), 600.0, "limit_s")
@json_option
@options.state_option
@options.cache_option
def use(
    model_name: str, now: bool, limit_s: float, as_json: bool, state: Path | None, cache: Path | None
) -> None:
    """Serve MODEL with the running master of this computer.

    A missing model is pulled and packed first. Running and waiting requests of other models are answered before the
    switch. A later request of another model switches back.
    """
    with admin_of(state) as master:
        offer_pull(model_name, cache)
        prepared = prepare(model_name, None, None, cache)  # makes the pack
        body = {"model": prepared.also_called[0], "now": now}
        name = str(master.post("/admin/model", body).get("model"))
        _wait_until_served(master, name, limit_s)
    click.echo(json.dumps({"model": name}) if as_json else f"{sanitised(name)} is served")


def _wait_until_served(master: MasterClient, name: str, limit_s: float) -> None:
    def look() -> tuple[bool | None, str]:
        picture: dict[str, Any] = master.get("/admin/cluster")
        here = picture["model"]["name"] == name
        if here and picture["ready"]:
            return True, ""
        if not here and picture["next"] != name:
            failed = (one["detail"] for one in picture["events"] if one["kind"] == "plan failed")
            why = sanitised(next(failed, "requests of another model came first"))
            raise PeerError(f"{name} is not served: {why}")
        served, why = sanitised(picture["model"]["name"]), sanitised(picture["reason"])
        return None, f"{served} serves until then" if picture["ready"] else why

    def late(why: str) -> str:
        return (
            f"{name} is not served yet after {format_seconds(limit_s)}, but is next ({why}): run this again to keep "
            "waiting, or add --now"
        )

    wait_for(look, limit_s, f"{name} is next", late)
