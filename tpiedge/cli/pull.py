"""`tpiedge pull`: fetch a model from the hub."""

import json
from pathlib import Path

import click

from tpiedge.cli.model_names import HUB_MODEL
from tpiedge.cli.path_options import cache_option
from tpiedge.errors import UserError
from tpiedge.model.folder import has_file
from tpiedge.model.hub.cache import HubCache, parse_hub_name
from tpiedge.progress import ByteProgress
from tpiedge.sanitise import quote
from tpiedge.units import format_bytes


@click.command()
@click.argument("model_name", metavar="MODEL", type=HUB_MODEL)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@cache_option
def pull(model_name: str, as_json: bool, cache: Path | None) -> None:
    """Fetch MODEL from the hub: org/name, org/name@revision, or an alias (`tpiedge ls --all`).

    Only safetensors weights, configs, tokenizers and chat templates are fetched. A pull that broke off resumes.
    HF_TOKEN is for gated models, HF_ENDPOINT names another hub.
    """
    name = parse_hub_name(model_name)
    if name is None:
        raise UserError(
            f"{quote(model_name)} is no name of a model on the hub: give org/name or an alias (`tpiedge ls --all`)"
        )
    # Late: with it comes an HTTP client that no other verb should have to load.
    from tpiedge.model.hub.client import pull as pull_model

    progress = ByteProgress(f"pulling {name}")
    fetched = 0
    try:
        report = pull_model(name, HubCache(cache), progress)
        fetched = report.fetched
    finally:
        progress.finish(fetched)
    if not has_file(report.folder, "tokenizer.json"):
        click.echo(f"{name} has no tokenizer.json: it takes --prompt-ids, not text", err=True)
    if as_json:
        record = {
            "path": str(report.folder),
            "model": str(name),
            "commit": report.commit,
            "fetched_bytes": fetched,
        }
        click.echo(json.dumps(record))
    else:
        done = f"{format_bytes(fetched)} fetched" if fetched else "already there"
        click.echo(f"{report.folder} ({done})")
