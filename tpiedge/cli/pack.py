"""`tpiedge pack` and `tpiedge import-gguf` write packs; `tpiedge unpack` exports them."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from tpiedge.cli.listing import json_option
from tpiedge.cli.model_names import MODEL
from tpiedge.cli.options import PRECISION, Location, Parsed, cache_option, option, precision_option, together
from tpiedge.engine.sampling import MAX_SEED
from tpiedge.errors import UserError
from tpiedge.local.catalogue import (
    check_free,
    check_name,
    find_model,
    name_pack,
    packs_folder,
    the_pack_of,
    write_files,
)
from tpiedge.local.packing import PackedModel, keep_text_files, pack_model, rounding, run_packing
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.config import ModelConfig
from tpiedge.model.folder import read_text
from tpiedge.model.gguf.model import GgufModel
from tpiedge.model.presets import PRESETS, preset
from tpiedge.model.source import refuse_gguf
from tpiedge.model.spec import config_of_pack, model_spec, unused_keys
from tpiedge.model.template import ADDITIONAL_TEMPLATES, MAX_TEMPLATE_BYTES, ChatTemplate
from tpiedge.pack.export import export_safetensors
from tpiedge.pack.layout import Storage
from tpiedge.pack.manifest import TEXT_FOLDER
from tpiedge.pack.panel_writer import load_quality
from tpiedge.pack.process import PackRequest
from tpiedge.pack.reader import Pack, verify_pack
from tpiedge.pack.specs import Precision
from tpiedge.units import format_bytes


def _template_in(name: str) -> str:
    """Reads a chat template, and tries it with one message. Raises UserError, ChildLost."""
    path = Path(name).resolve()
    if not os.path.isfile(path):
        raise UserError(f"{path} is not a file")
    text = read_text(path.parent, path.name, MAX_TEMPLATE_BYTES)
    if not text.strip():
        raise UserError(f"{path} is empty, not a chat template")
    tokens = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "")
    ChatTemplate({"default": text}, tokens).render([{"role": "user", "content": "hello"}])
    return text


_result_options = together(
    option(
        "--chat-template",
        "Jinja template of chats with this pack.  [default: the model's own]",
        Parsed("file", _template_in),
    ),
    option("--out", "Folder to write.  [default: in the cache]", Location()),
    option("--name", "Name of the pack for every verb.  [default: made of the model's name]"),
    option("--verify", "Read everything back and compare with the hashes.", is_flag=True),
    json_option,
    cache_option,
)


@click.command()
@click.argument("model_name", metavar="[MODEL]", required=False, type=MODEL)
@option("--random", f"Random weights: {', '.join(sorted(PRESETS))}.", name="preset_name", metavar="PRESET")
@option("--distinct-layers", "Store K layers and repeat them (with --random).", int, metavar="K")
@option("--seed", "Seed of the random weights.", click.IntRange(0, MAX_SEED), 0)
@precision_option(
    "Precision of stored weights; q8 and q4 quantise the layers.  [default: keep the checkpoint's; bf16]"
)
@option("--embedding-precision", "Precision of the embedding, with q8 or q4.  [default: bf16]", PRECISION)
@option(
    "--head-precision",
    "Precision of the LM head, with q8 or q4; a tied embedding has the same.  [default: q8]",
    PRECISION,
)
@click.option(
    "--search/--no-search", default=True, help="Choose the scales of q4 by their error.  [default: search]"
)
@_result_options
def pack(
    model_name: str | None, preset_name: str | None, distinct_layers: int | None, seed: int, **flags: Any
) -> None:

    def storage_of(usual: Storage, tied: bool) -> Storage:
        layers, embedding, head = (
            Precision(flags[f"{part}precision"]) if flags[f"{part}precision"] else None
            for part in ("", "embedding_", "head_")
        )
        kept, search = {} if layers else usual.kept, flags["search"]
        layers = layers or usual.layers
        stored = Storage.of(layers, tied=tied, embedding=embedding, head=head, search=search)
        return replace(stored, kept=kept)

    out, name, cache, source_bytes = flags["out"], flags["name"], flags["cache"], None
    _check_name(name, out)
    if (model_name is None) == (preset_name is None):
        raise UserError("give either a MODEL or --random PRESET")
    if preset_name is not None:
        if flags["chat_template"]:
            raise UserError("--chat-template needs a MODEL: random weights have no tokenizer")
        write, label = partial(_pack_preset, preset_name, distinct_layers, seed, storage_of), ""
    elif distinct_layers is not None:
        raise UserError("--distinct-layers needs --random: a real model has every layer of its own")
    else:
        checkpoint = _checkpoint_of(model_name or "", cache)
        stored = storage_of(checkpoint.storage(None), checkpoint.config.tie_word_embeddings)
        write, label = partial(pack_model, checkpoint, stored), checkpoint.label
        files = {file for tensor in checkpoint.tensors.values() for file in tensor.files}
        source_bytes = sum(file.stat().st_size for file in files)
    started = time.perf_counter()
    packed = write(cache, out, name)
    seconds = time.perf_counter() - started
    report = packed.report
    quality = load_quality(report.path)
    record: dict[str, object] = {"seconds": None, "source_bytes": None, "source_bytes_per_s": None}
    if not report.reused:  # of the whole packing process
        rate = source_bytes / seconds if source_bytes is not None else None
        record |= {"seconds": seconds, "source_bytes": source_bytes, "source_bytes_per_s": rate}
    more = []
    for notice in packed.notices:
        click.echo(f"tpiedge: {label}: {notice}", err=True)
    if quality:
        record["quality"] = quality.to_json()
        more = ["SQNR exact"]
        if quality.total.noise:
            more = [rounding(quality.total), f"SQNR {quality.total.sqnr_db:.1f} dB"]
    _tell(packed, flags, more, record)


def _checkpoint_of(name: str, cache: Path | None) -> Checkpoint:
    found = find_model(name, cache)
    if found.kind == "pack":
        raise UserError(f"{name} is a pack already, {found.path}: give what it was made from (tpiedge ls)")
    if found.kind == "GGUF file":
        refuse_gguf(Path(name))
    return Checkpoint.open(found.path)


def _pack_preset(
    preset_name: str,
    distinct_layers: int | None,
    seed: int,
    storage_of: Callable[[Storage, bool], Storage],
    cache: Path | None,
    out: Path | None,
    name: str | None,
) -> PackedModel:
    spec = model_spec(ModelConfig.from_huggingface(preset(preset_name), f"preset {preset_name}"))
    layers = f"-k{distinct_layers}" if distinct_layers is not None else ""
    storage = storage_of(Storage.of(Precision.BF16, tied=spec.tied), spec.tied)
    label = storage.label(tied=spec.tied)
    folder = packs_folder(cache) / f"random-{preset_name}-{label}{layers}-s{seed}"
    check_free(folder, None if out else name)
    request = PackRequest(spec, seed, storage, out or folder, distinct_layers)
    report = run_packing(request, f"packing random {preset_name} as {label}")
    stem, stored = f"random-{preset_name}", storage.layers.value
    called = None if out else name_pack(folder, stem, stored, "random numbers", name)
    return PackedModel(report, called, (), ())


@click.command("import-gguf")
@click.argument("file", type=Location())
@precision_option("Precision of the layers.  [default: keep the file's]")
@_result_options
def import_gguf(
    file: Path, out: Path | None, precision: str | None, name: str | None, cache: Path | None, **flags: Any
) -> None:
    """Convert a model in a GGUF FILE to a pack, with its tokenizer.

    Without --precision, every matrix keeps its type. These are rounded to q8, and the command says so: types that
    kernels lack (Q2_K, Q3_K, IQ4_XS), row-parallel matrices whose heads cut blocks, and, beside quantised layers, F32,
    F16 and BF16 matrices of layers and a head in F32 or F16. An untied embedding in F32 or F16 becomes bf16. Norms and
    biases are never rounded. `run` and `master` also take FILE. They import FILE into the cache the first time."""
    _check_name(name, out)
    if not file.exists() and (found := find_model(str(file), cache)).kind == "GGUF file":
        file = found.path
    model = GgufModel.open(file)
    storage = model.storage(Precision(precision) if precision else None)
    imported = pack_model(model, storage, cache, out, name)
    for notice in imported.notices:
        click.echo(f"tpiedge: {file.name}: {notice}", err=True)
    parts = {"layers": storage.layers, "embedding": storage.embedding, "head": storage.head}
    record = {
        "precision": {part: stored.value for part, stored in parts.items()},
        "tensors": dict(sorted(Counter(tensor.kind for tensor in model.tensors.values()).items())),
        "notices": list(imported.notices),
        "exact": not imported.losses,
    }
    _tell(imported, flags, [], record)


@click.command()
@click.argument("model_name", metavar="MODEL", type=MODEL)
@click.argument("out", type=Location())
@cache_option
def unpack(model_name: str, out: Path, cache: Path | None) -> None:
    path = the_pack_of(model_name, cache)
    found = Pack.open(path)
    config = config_of_pack(found)
    files = export_safetensors(found, out)
    if found.precision.quantised:
        click.echo(
            "note: quantised matrices are exported in f32, as the numbers that they stand for", err=True
        )
    if unused := [*unused_keys(config)]:
        shown = f"{unused[0]} to {unused[-1]}"
        click.echo(f"note: no layer uses {shown}: a checkpoint may have them, but no pack", err=True)
    text = path / TEXT_FOLDER
    if text.is_dir():
        keep_text_files(text, out)
    click.echo(f"{out} ({len(files)} file{'s' if len(files) > 1 else ''} of tensors)")


def _check_name(name: str | None, out: Path | None) -> None:
    if name is not None:
        if out is not None:
            raise UserError("give either --name or --out: a pack outside of the cache is called by its path")
        check_name(name)


def _tell(
    packed: PackedModel, flags: Mapping[str, Any], more: list[str], record: Mapping[str, object]
) -> None:
    report, name = packed.report, packed.name
    if flags["chat_template"]:
        names = "chat_template.jinja", f"{ADDITIONAL_TEMPLATES}/tool_use.jinja"
        write_files(report.path / TEXT_FOLDER, dict.fromkeys(names, flags["chat_template"].encode()))
    if flags["verify"]:
        verify_pack(Pack.open(report.path))
    if flags["as_json"]:
        same = {"path": str(report.path), "name": name, "bytes": report.nbytes, "reused": report.reused}
        click.echo(json.dumps(same | {"verified": flags["verify"]} | dict(record)))
        return
    done = "already there" if report.reused else "written"
    notes = [format_bytes(report.nbytes), done, *(["verified"] if flags["verify"] else []), *more]
    click.echo(f"{report.path} ({', '.join(notes)})")
    if name is not None:
        has_text = (report.path / TEXT_FOLDER / "tokenizer.json").is_file()
        prompt = "" if has_text else " --prompt-ids 1,2,3  (it has no tokenizer)"
        click.echo(f"called {name}: tpiedge run {name}{prompt}", err=True)
