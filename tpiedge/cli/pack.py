"""`tpiedge pack` and `tpiedge unpack`: the on-disk form of a model, and back."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import click

from tpiedge.cli.model_names import MODEL
from tpiedge.cli.pack_names import name_option, say_name, wanted_name
from tpiedge.cli.path_options import cache_option
from tpiedge.cli.table import print_table
from tpiedge.cli.types import Location
from tpiedge.errors import UserError
from tpiedge.kernels.quantise import QuantisationError
from tpiedge.local.catalogue import ModelKind, check_free, find_model, name_pack, the_pack_of
from tpiedge.local.packing import (
    cached_pack,
    name_checkpoint_pack,
    pack_checkpoint,
    run_packing,
    source_precision,
)
from tpiedge.local.paths import packs_folder
from tpiedge.local.text_folder import keep_text_files
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.config import ModelConfig
from tpiedge.model.presets import PRESETS, preset
from tpiedge.model.source import refuse_gguf
from tpiedge.model.spec import model_spec
from tpiedge.pack.layout import Precision
from tpiedge.pack.manifest import TEXT_FOLDER
from tpiedge.pack.reader import Pack, verify_pack
from tpiedge.pack.sources.imported import ImportedTensor
from tpiedge.pack.storage import Storage
from tpiedge.pack.writing.child import PackRequest, RandomTensors
from tpiedge.pack.writing.export import export_safetensors
from tpiedge.pack.writing.quality import Quality, TensorQuality, load_quality
from tpiedge.pack.writing.writer import PackReport
from tpiedge.units import format_bytes

_precision = click.Choice([precision.value for precision in Precision])


@dataclass(frozen=True)
class _Wish:
    """What the flags say of the storage."""

    precision: str | None
    embedding: str | None
    head: str | None
    search: bool

    def storage(self, usual: Precision, tied: bool) -> Storage:
        """`usual`: where --precision is not given. Raises UserError."""
        embedding, head = (Precision(one) if one else None for one in (self.embedding, self.head))
        layers = Precision(self.precision) if self.precision else usual
        return Storage.of(layers, tied=tied, embedding=embedding, head=head, search=self.search)


@dataclass(frozen=True)
class _Target:
    """Where the flags want the pack, and how it is to be called."""

    out: Path | None
    name: str | None
    cache: Path | None

    def check(self, folder: Path) -> None:
        """Raises UserError where another pack than that in `folder` has the name, before the work is done."""
        if self.out is None:
            check_free(folder, self.name)


@dataclass(frozen=True)
class _Packed:
    """A pack that is there, and what it took.

    `name` is None outside the cache, `source_bytes` None unless a checkpoint's files of tensors were read.
    """

    report: PackReport
    name: str | None
    seconds: float
    source_bytes: int | None

    def described(self) -> dict[str, float | int | None]:
        """The packing process from its start to its end; nothing where the pack was there already."""
        if self.report.reused:
            return {"seconds": None, "source_bytes": None, "source_bytes_per_s": None}
        rate = self.source_bytes / self.seconds if self.source_bytes is not None else None
        return {"seconds": self.seconds, "source_bytes": self.source_bytes, "source_bytes_per_s": rate}


@click.command()
@click.argument("model_name", metavar="[MODEL]", required=False, type=MODEL)
@click.option(
    "--random", "preset_name", metavar="PRESET", help=f"Random weights: {', '.join(sorted(PRESETS))}."
)
@click.option(
    "--distinct-layers", type=int, metavar="K", help="Store K layers and repeat them (with --random)."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random weights.")
@click.option(
    "--precision",
    type=_precision,
    help="Storage; q8 and q4 quantise the layers.  [default: the checkpoint's; bf16]",
)
@click.option(
    "--embedding-precision", type=_precision, help="Of the embedding, with q8 or q4.  [default: bf16]"
)
@click.option(
    "--head-precision",
    type=_precision,
    help="Of the output matrix, with q8 or q4; a tied embedding's, too.  [default: q8]",
)
@click.option(
    "--search/--no-search", default=True, help="Choose the scales of q4 by their error.  [default: search]"
)
@click.option("--out", type=Location(), help="Folder to write.  [default: in the cache]")
@name_option
@click.option("--verify", is_flag=True, help="Read everything back and compare with the hashes.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object on standard output, with seconds and bytes of the source per second.",
)
@cache_option
def pack(
    model_name: str | None,
    preset_name: str | None,
    distinct_layers: int | None,
    seed: int,
    precision: str | None,
    embedding_precision: str | None,
    head_precision: str | None,
    search: bool,
    out: Path | None,
    name: str | None,
    verify: bool,
    as_json: bool,
    cache: Path | None,
) -> None:
    """Write MODEL (or a random model of a real shape) in the form that nodes read."""
    wish = _Wish(precision, embedding_precision, head_precision, search)
    target = _Target(out, wanted_name(name, out), cache)
    if (model_name is None) == (preset_name is None):
        raise UserError("give either a MODEL or --random PRESET")
    if preset_name is not None:
        packed = _pack_random(preset_name, distinct_layers, seed, wish, target)
    else:
        if distinct_layers is not None:
            raise UserError("--distinct-layers needs --random: a real model has every layer of its own")
        packed = _pack_model(model_name or "", wish, target)
    if verify:
        verify_pack(Pack.open(packed.report.path))
    _tell(packed, verify, as_json)


def _tell(packed: _Packed, verified: bool, as_json: bool) -> None:
    report = packed.report
    quality = load_quality(report.path)
    if as_json:
        record = {
            "path": str(report.path),
            "name": packed.name,
            "bytes": report.nbytes,
            "reused": report.reused,
            "verified": verified,
            **packed.described(),
        }
        click.echo(json.dumps(record | ({"quality": quality.to_json()} if quality else {})))
        return
    if quality and sys.stdout.isatty():
        print_table(["matrix", "stored", "SQNR", "least", "tensor"], _rows(quality))
    notes = [
        format_bytes(report.nbytes),
        "already there" if report.reused else "written",
        *(["verified"] if verified else []),
        *([f"SQNR {_decibels(quality.total)}"] if quality else []),
    ]
    click.echo(f"{report.path} ({', '.join(notes)})")
    say_name(packed.name)


def _rows(quality: Quality) -> list[list[str]]:
    """One per kind of matrix: all of its tensors together, and the worst of them."""
    kinds: dict[str, list[TensorQuality]] = {}
    for tensor in quality.tensors:
        kinds.setdefault(tensor.matrix, []).append(tensor)
    rows = []
    for matrix, tensors in kinds.items():
        worst = min(tensors, key=lambda tensor: tensor.error.sqnr_db)
        whole = sum((tensor.error for tensor in tensors), QuantisationError())
        stored = worst.precision.value
        rows.append([matrix, stored, _decibels(whole), _decibels(worst.error), worst.tensor])
    return rows


def _decibels(error: QuantisationError) -> str:
    return f"{error.sqnr_db:.1f} dB" if error.noise else "exact"


def _pack_model(name: str, wish: _Wish, target: _Target) -> _Packed:
    found = find_model(name, target.cache)
    if found.kind is ModelKind.PACK:
        raise UserError(f"{name} is a pack already, {found.path}: give what it was made from (tpiedge ls)")
    if found.kind is ModelKind.GGUF:
        refuse_gguf(found.path)
    checkpoint = Checkpoint.open(found.path)
    stored = wish.storage(source_precision(checkpoint), checkpoint.config.tie_word_embeddings)
    folder = target.out or cached_pack(checkpoint, stored, target.cache)
    target.check(folder)
    source_bytes = _source_bytes(checkpoint)
    started = time.perf_counter()
    report = pack_checkpoint(checkpoint, stored, folder)
    seconds = time.perf_counter() - started
    called = None if target.out else name_checkpoint_pack(checkpoint, stored, folder, target.name)
    return _Packed(report, called, seconds, source_bytes)


def _source_bytes(checkpoint: Checkpoint) -> int:
    """Bytes of the files that hold the checkpoint's tensors."""
    files: set[Path] = set()
    for tensor in checkpoint.tensors.values():
        files.update(tensor.files if isinstance(tensor, ImportedTensor) else (tensor.file,))
    return sum(file.stat().st_size for file in files)


def _pack_random(
    name: str,
    distinct_layers: int | None,
    seed: int,
    wish: _Wish,
    target: _Target,
) -> _Packed:
    if not 0 <= seed < 1 << 64:
        raise UserError(f"--seed {seed} is out of range: 0 to {(1 << 64) - 1}")
    config = ModelConfig.from_huggingface(preset(name), f"preset {name}")
    layers = f"-k{distinct_layers}" if distinct_layers is not None else ""
    spec = model_spec(config)
    storage = wish.storage(Precision.BF16, spec.tied)
    label = storage.label(tied=spec.tied)
    folder = target.out or packs_folder(target.cache) / f"random-{name}-{label}{layers}-s{seed}"
    target.check(folder)
    request = PackRequest(spec, RandomTensors(seed), storage, folder, distinct_layers)
    started = time.perf_counter()
    report = run_packing(request, f"packing random {name} as {label}")
    seconds = time.perf_counter() - started
    called = None
    if target.out is None:
        called = name_pack(folder, f"random-{name}", storage.layers.value, "random numbers", target.name)
    return _Packed(report, called, seconds, source_bytes=None)


@click.command()
@click.argument("model_name", metavar="MODEL", type=MODEL)
@click.argument("out", type=Location())
@cache_option
def unpack(model_name: str, out: Path, cache: Path | None) -> None:
    """Write the pack MODEL back as a Hugging Face checkpoint in the new folder OUT, bit for bit; q8 and q4 as f32."""
    path = the_pack_of(model_name, cache)
    found = Pack.open(path)
    files = export_safetensors(found, out)
    if found.precision.quantised:
        click.echo(
            "note: quantised weights come back in f32 as they are used, not as they were before", err=True
        )
    text = path / TEXT_FOLDER
    if text.is_dir():
        keep_text_files(text, out)
    click.echo(f"{out} ({len(files)} file{'s' if len(files) > 1 else ''} of tensors)")
