"""`tpiedge pack` and `tpiedge unpack`: the on-disk form of a model, and back."""

import json
from pathlib import Path

import click

from tpiedge.cli.prepare import (
    TEXT_FOLDER,
    cache_option,
    cached_pack,
    keep_text_files,
    pack_checkpoint,
    packs_folder,
    run_packing,
    source_precision,
)
from tpiedge.cli.types import Location
from tpiedge.errors import UserError
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.config import ModelConfig
from tpiedge.model.presets import PRESETS, preset
from tpiedge.model.source import resolve_model
from tpiedge.model.spec import model_spec
from tpiedge.pack.child import PackRequest, RandomTensors
from tpiedge.pack.export import export_safetensors
from tpiedge.pack.layout import Precision
from tpiedge.pack.reader import Pack, verify_pack
from tpiedge.pack.writer import PackReport
from tpiedge.units import format_bytes

__all__ = ["pack", "unpack"]


@click.command()
@click.argument("model_name", metavar="[MODEL]", required=False)
@click.option(
    "--random", "preset_name", metavar="PRESET", help=f"Random weights: {', '.join(sorted(PRESETS))}."
)
@click.option(
    "--distinct-layers", type=int, metavar="K", help="Store K layers and repeat them (with --random)."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random weights.")
@click.option(
    "--precision", type=click.Choice(["f32", "bf16"]), help="Storage.  [default: the checkpoint's; bf16]"
)
@click.option("--out", type=Location(), help="Folder to write.  [default: in the cache]")
@click.option("--verify", is_flag=True, help="Read everything back and compare with the hashes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@cache_option
def pack(
    model_name: str | None,
    preset_name: str | None,
    distinct_layers: int | None,
    seed: int,
    precision: str | None,
    out: Path | None,
    verify: bool,
    as_json: bool,
    cache: Path | None,
) -> None:
    """Write MODEL (or a random model of a real shape) in the form that nodes read."""
    if (model_name is None) == (preset_name is None):
        raise UserError("give either a MODEL or --random PRESET")
    if preset_name is not None:
        report = _pack_random(preset_name, distinct_layers, seed, Precision(precision or "bf16"), out, cache)
    else:
        if distinct_layers is not None:
            raise UserError("--distinct-layers needs --random: a real model has every layer of its own")
        report = _pack_model(model_name or "", precision, out, cache)
    if verify:
        verify_pack(Pack.open(report.path))
    if as_json:
        record = {
            "path": str(report.path),
            "bytes": report.nbytes,
            "reused": report.reused,
            "verified": verify,
        }
        click.echo(json.dumps(record))
    else:
        done = "already there" if report.reused else "written"
        click.echo(f"{report.path} ({format_bytes(report.nbytes)}, {done}{', verified' if verify else ''})")


def _pack_model(name: str, precision: str | None, out: Path | None, cache: Path | None) -> PackReport:
    checkpoint = Checkpoint.open(resolve_model(name, cache))
    stored = Precision(precision) if precision else source_precision(checkpoint)
    return pack_checkpoint(checkpoint, stored, out or cached_pack(checkpoint, stored, cache))


def _pack_random(
    name: str,
    distinct_layers: int | None,
    seed: int,
    precision: Precision,
    out: Path | None,
    cache: Path | None,
) -> PackReport:
    if not 0 <= seed < 1 << 64:
        raise UserError(f"--seed {seed} is out of range: 0 to {(1 << 64) - 1}")
    config = ModelConfig.from_huggingface(preset(name), f"preset {name}")
    layers = f"-k{distinct_layers}" if distinct_layers is not None else ""
    folder = out or packs_folder(cache) / f"random-{name}-{precision.value}{layers}-s{seed}"
    request = PackRequest(model_spec(config), RandomTensors(seed), precision, folder, distinct_layers)
    return run_packing(request, f"packing random {name} as {precision.value}")


@click.command()
@click.argument("pack_path", metavar="PACK", type=Location())
@click.argument("out", type=Location())
def unpack(pack_path: Path, out: Path) -> None:
    """Write PACK back as a Hugging Face checkpoint in the new folder OUT, bit for bit."""
    files = export_safetensors(Pack.open(pack_path), out)
    text = pack_path / TEXT_FOLDER
    if text.is_dir():
        keep_text_files(text, out)
    click.echo(f"{out} ({len(files)} file{'s' if len(files) > 1 else ''} of tensors)")
