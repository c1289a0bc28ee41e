"""`tpiedge pack`, `tpiedge import-gguf` and `tpiedge unpack`: the on-disk form of a model, and back."""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from tpiedge.cli.model_names import MODEL
from tpiedge.cli.options import cache_option
from tpiedge.cli.table import json_option, print_table
from tpiedge.cli.types import Location
from tpiedge.errors import UserError
from tpiedge.kernels.quantise import QuantisationError
from tpiedge.local.catalogue import ModelKind, check_free, check_name, find_model, name_pack, the_pack_of
from tpiedge.local.packing import (
    cached_pack,
    import_gguf_file,
    keep_text_files,
    name_checkpoint_pack,
    pack_checkpoint,
    run_packing,
    source_precision,
)
from tpiedge.local.paths import packs_folder
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.config import ModelConfig
from tpiedge.model.gguf.model import GgufModel
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
_out_option = click.option("--out", type=Location(), help="Folder to write.  [default: in the cache]")
_name_option = click.option(
    "--name", help="What the pack is called: every verb takes it.  [default: made of the model's name]"
)
_verify_option = click.option(
    "--verify", is_flag=True, help="Read everything back and compare with the hashes."
)
#: Of the usual precision of layers, and of whether embedding and head are one matrix.
_StorageOf = Callable[[Precision, bool], Storage]


@dataclass(frozen=True)
class _PackJob:
    """What is to be packed: by `pack` into a folder, by default `folder`, where `label` then gives it a name.

    `source_bytes` is None unless a checkpoint's files of tensors are read.
    """

    folder: Path
    pack: Callable[[Path], PackReport]
    label: Callable[[str | None], str]
    source_bytes: int | None = None


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
@_out_option
@_name_option
@_verify_option
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

    def storage_of(usual: Precision, tied: bool) -> Storage:
        embedding, head = (Precision(one) if one else None for one in (embedding_precision, head_precision))
        layers = Precision(precision) if precision else usual
        return Storage.of(layers, tied=tied, embedding=embedding, head=head, search=search)

    _check_name(name, out)
    if (model_name is None) == (preset_name is None):
        raise UserError("give either a MODEL or --random PRESET")
    if preset_name is not None:
        work = _of_preset(preset_name, distinct_layers, seed, storage_of, cache)
    elif distinct_layers is not None:
        raise UserError("--distinct-layers needs --random: a real model has every layer of its own")
    else:
        work = _of_checkpoint(model_name or "", storage_of, cache)
    if out is None:
        check_free(work.folder, name)
    started = time.perf_counter()
    report = work.pack(out or work.folder)
    seconds = time.perf_counter() - started
    called = None if out else work.label(name)
    if verify:
        verify_pack(Pack.open(report.path))
    quality = load_quality(report.path)
    if not as_json:
        if quality and sys.stdout.isatty():
            print_table(["matrix", "stored", "SQNR", "least", "tensor"], _rows(quality))
        _tell(report, called, verify, [f"SQNR {_decibels(quality.total)}"] if quality else [])
        return
    record = _record(report, called, verify)
    record |= {"seconds": None, "source_bytes": None, "source_bytes_per_s": None}
    if not report.reused:  # the packing process from its start to its end
        rate = work.source_bytes / seconds if work.source_bytes is not None else None
        record |= {"seconds": seconds, "source_bytes": work.source_bytes, "source_bytes_per_s": rate}
    click.echo(json.dumps(record | ({"quality": quality.to_json()} if quality else {})))


def _of_checkpoint(name: str, storage_of: _StorageOf, cache: Path | None) -> _PackJob:
    found = find_model(name, cache)
    if found.kind is ModelKind.PACK:
        raise UserError(f"{name} is a pack already, {found.path}: give what it was made from (tpiedge ls)")
    if found.kind is ModelKind.GGUF:
        refuse_gguf(found.path)
    checkpoint = Checkpoint.open(found.path)
    stored = storage_of(source_precision(checkpoint), checkpoint.config.tie_word_embeddings)
    files: set[Path] = set()
    for tensor in checkpoint.tensors.values():
        files.update(tensor.files if isinstance(tensor, ImportedTensor) else (tensor.file,))
    folder = cached_pack(checkpoint, stored, cache)
    return _PackJob(
        folder,
        partial(pack_checkpoint, checkpoint, stored),
        partial(name_checkpoint_pack, checkpoint, stored, folder),
        sum(file.stat().st_size for file in files),
    )


def _of_preset(
    name: str, distinct_layers: int | None, seed: int, storage_of: _StorageOf, cache: Path | None
) -> _PackJob:
    if not 0 <= seed < 1 << 64:
        raise UserError(f"--seed {seed} is out of range: 0 to {(1 << 64) - 1}")
    spec = model_spec(ModelConfig.from_huggingface(preset(name), f"preset {name}"))
    layers = f"-k{distinct_layers}" if distinct_layers is not None else ""
    storage = storage_of(Precision.BF16, spec.tied)
    label = storage.label(tied=spec.tied)
    folder = packs_folder(cache) / f"random-{name}-{label}{layers}-s{seed}"

    def run(out: Path) -> PackReport:
        request = PackRequest(spec, RandomTensors(seed), storage, out, distinct_layers)
        return run_packing(request, f"packing random {name} as {label}")

    named = partial(name_pack, folder, f"random-{name}", storage.layers.value, "random numbers")
    return _PackJob(folder, run, named)


@click.command("import-gguf")
@click.argument("file", type=Location())
@_out_option
@click.option(
    "--precision",
    type=_precision,
    help="Of the layers.  [default: what holds the file's weights as they are; q8]",
)
@_name_option
@_verify_option
@json_option
@cache_option
def import_gguf(
    file: Path,
    out: Path | None,
    precision: str | None,
    name: str | None,
    verify: bool,
    as_json: bool,
    cache: Path | None,
) -> None:
    """Write the Llama or Qwen model in the GGUF FILE in the form that nodes read, with its tokenizer.

    A file of one type stays as it is where that is Q4_0, Q8_0, BF16, F16 or F32, unless --precision says otherwise.
    Other types, and others beside that of most layers, may be rounded, which is told. Norms and biases never are.
    `run` and `master` take the FILE itself, too: `tpiedge run FILE` imports it into the cache the first time.
    """
    _check_name(name, out)
    model = GgufModel.open(file)
    storage = model.storage(Precision(precision) if precision else None)
    imported = import_gguf_file(model, storage, cache, out=out, name=name)
    if verify:
        verify_pack(Pack.open(imported.report.path))
    for notice in imported.notices:
        click.echo(f"tpiedge: {file.name}: {notice}", err=True)
    if not as_json:
        _tell(imported.report, imported.name, verify, [])
        return
    kinds = Counter(tensor.kind for tensor in model.tensors.values())
    parts = {"layers": storage.layers, "embedding": storage.embedding, "head": storage.head}
    record = _record(imported.report, imported.name, verify) | {
        "precision": {part: stored.value for part, stored in parts.items()},
        "tensors": dict(sorted(kinds.items())),
        "notices": list(imported.notices),
        "exact": not imported.losses,
    }
    click.echo(json.dumps(record))


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


def _check_name(name: str | None, out: Path | None) -> None:
    """Raises UserError for a --name that no pack can have, or beside --out."""
    if name is not None:
        if out is not None:
            raise UserError("give either --name or --out: a pack outside of the cache is called by its path")
        check_name(name)


def _record(report: PackReport, name: str | None, verified: bool) -> dict[str, object]:
    return {
        "path": str(report.path),
        "name": name,
        "bytes": report.nbytes,
        "reused": report.reused,
        "verified": verified,
    }


def _tell(report: PackReport, name: str | None, verified: bool, more: list[str]) -> None:
    """Says where the pack is, and what to type for it where it has a name."""
    done = "already there" if report.reused else "written"
    notes = [format_bytes(report.nbytes), done, *(["verified"] if verified else []), *more]
    click.echo(f"{report.path} ({', '.join(notes)})")
    if name is not None:
        click.echo(f"called {name}: tpiedge run {name}", err=True)


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
