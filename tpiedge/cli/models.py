"""`tpiedge ls`, `show`, `rm` and `pull` manage this computer's models, `tpiedge shards` the shards that it keeps as a
worker."""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from tpiedge.cli.listing import ListingGroup, json_option, print_table, screen_columns, wrapped
from tpiedge.cli.model_names import HUB_MODEL, MODEL
from tpiedge.cli.options import cache_option, state_option, together
from tpiedge.cli.pulling import pull_shown
from tpiedge.errors import UserError
from tpiedge.host.private_file import PAGES, worker_state
from tpiedge.kernels.panels import PanelShape
from tpiedge.kv.page_folder import PageFolder
from tpiedge.local import catalogue
from tpiedge.model.config import ModelConfig
from tpiedge.model.folder import has_file
from tpiedge.model.gguf.model import GgufModel
from tpiedge.model.presets import Alias, aliases, find_alias, preset, unsupported
from tpiedge.model.source import HubCache, HubName, parse_hub_name
from tpiedge.model.spec import config_of_pack, model_spec
from tpiedge.pack.layout import Storage, storage_of
from tpiedge.pack.reader import Pack, remove_packs
from tpiedge.pack.specs import CHOICES, BlobKey, BlobSpec, Precision
from tpiedge.pack.store import ShardStore, write_limit
from tpiedge.planner.needs import NODE_BASE_BYTES
from tpiedge.sanitise import quote, sanitised_line
from tpiedge.units import format_age, format_bytes, parse_bytes

_usual_options = together(json_option, cache_option)
_CONTEXT = 4096
_MEMORY = (
    f"memory: all weights and {_CONTEXT} tokens of context, on one machine or divided among several. With less, "
    'weights are read from disk for every token; experts must be in memory ("no disk").'
)


def _card(name: str, cache: Path | None) -> dict[str, Any]:
    """Returns a model's facts. The fact `path` is None if this computer lacks the model's files. Raises UserError."""
    hub_name, kept = parse_hub_name(name), None
    alias = find_alias(name) or next(
        filter(lambda one: parse_hub_name(one.name) == hub_name, aliases().values()), None
    )
    try:
        found = catalogue.find_model(name, cache)
    except UserError:
        if alias is None:
            raise
        config, path, packs = ModelConfig.from_huggingface(preset(alias.shape)), None, []
    else:
        path, packs = found.path, catalogue.packs_of(name, cache)
        if found.kind == "pack" or os.path.isfile(name):
            hub_name = alias = None
        if found.kind == "checkpoint":
            config = ModelConfig.open(path)
        elif found.kind == "GGUF file":
            gguf = GgufModel.open(path)
            config, kept = gguf.config, gguf.storage(None)
        else:
            config, name = config_of_pack(Pack.open(path)), catalogue.load_label(path).name
    spec = model_spec(config)
    layers, sizes = dict[str, int](), dict[str, int]()
    for stored in [*([kept] if kept else []), *(storage_of(one, spec) for one in CHOICES)]:
        label = "keep" if stored is kept else stored.layers.value
        nbytes = {key: _nbytes(stored, key, blob) for key, blob in spec.blobs.items()}
        sizes[label] = sum(nbytes.values())
        layers[label] = sizes[label] - nbytes["embedding"] - nbytes["head"]
    shape = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size")
    return {
        "model": name,
        "repo": hub_name.repo if hub_name else None,
        "revision": hub_name.revision if hub_name else None,
        "quant": hub_name.quant if hub_name else None,
        "pull_bytes": _pull_bytes(alias) if alias else None,
        "gated": alias.gated if alias else None,
        "licence": alias.licence if alias else None,
        "note": alias.note if alias else "",
        "model_type": config.model_type,
        **{field: getattr(config, field) for field in (*shape, "vocab_size")},
        "experts": next((dataclasses.asdict(one.experts) for one in config.layers if one.experts), None),
        "context_tokens": config.max_position_embeddings,
        "dtype": config.dtype,
        "parameters": sum(map(_numbers, (*spec.layers, spec.embedding, spec.head))),
        "nbytes": sizes,
        "layer_bytes_per_node": {
            one: {str(nodes): nbytes // nodes for nodes in (1, 2, 4, 8)} for one, nbytes in layers.items()
        },
        "path": str(path) if path else None,
        "packs": [str(pack) for pack in packs],
    }


def _card_lines(card: dict[str, Any]) -> Iterator[tuple[str, str]]:
    place = HubName(card["repo"], card["revision"], card["quant"]) if card["repo"] else ""
    yield "model", f"{card['model']} ({place})" if place else card["model"]
    size = f" ({format_bytes(card['pull_bytes'])})" if card["pull_bytes"] else ""
    yield "where", card["path"] or f"not on this computer: tpiedge pull {card['model']}{size}"
    for path in card["packs"]:
        found = catalogue.stored_pack(Path(path))
        size = "damaged" if found.nbytes is None else format_bytes(found.nbytes)
        words = [f"{found.precision or '?'}, {size}, of {sanitised_line(found.source)}"]
        yield "pack", ", ".join(words if path == card["path"] else [found.name, *words, path])
    if card["licence"] is not None:
        gate = ", gated: accept it on the model's page and set HF_TOKEN" if card["gated"] else ""
        yield "licence", card["licence"] + gate
    if card["note"]:
        yield "note", card["note"]
    yield "layers", "{num_layers}, {hidden_size} wide, FFN {intermediate_size}".format_map(card)
    if card["experts"]:
        yield "experts", "{count} of {columns} columns, {chosen} for a token".format_map(card["experts"])
    yield "heads", "{num_heads}, KV heads {num_kv_heads}, head size {head_dim}".format_map(card)
    yield "vocabulary", str(card["vocab_size"])
    yield "context", f"{card['context_tokens']} tokens"
    count = card["parameters"]
    yield "parameters", f"{count / 1e9:.2f} billion" if count >= 5e8 else f"{count / 1e6:.1f} million"
    for precision, nbytes in card["nbytes"].items():
        parts = [
            f"{format_bytes(share)} on each of {nodes}"
            for nodes, share in card["layer_bytes_per_node"][precision].items()
            if nodes != "1"
        ]
        yield f"as {precision}", f"{format_bytes(nbytes)}; layers: {', '.join(parts)} nodes"


def _numbers(blob: BlobSpec) -> int:
    return sum(count * matrix.rows * matrix.cols for matrix, count in blob.counted_matrices) + sum(
        vector.length for vector in blob.vectors
    )


def _nbytes(storage: Storage, key: BlobKey, blob: BlobSpec, *, of_token: bool = False) -> int:
    """Returns the bytes of numbers and scales, without padding of units. `of_token`: without the experts that a token
    does not use."""
    nbytes = sum(vector.length for vector in blob.vectors) * storage.of_blob(key).of_vectors.bits // 8
    for matrix, count in blob.counted_matrices:
        stored = storage.of_matrix(key, matrix)
        count = min(count, blob.experts.chosen) if of_token and blob.experts else count
        if stored.quantised:
            nbytes += count * PanelShape(stored.format, *matrix.source_shape).nbytes
        else:
            nbytes += count * matrix.rows * matrix.cols * stored.bits // 8
    return nbytes


def _pull_bytes(alias: Alias) -> int:
    """Estimates, from the model's shape, how many bytes a pull fetches."""
    return _needs(alias)["nbytes"]


def _needs(alias: Alias) -> dict[str, int]:
    """Estimates, from the model's shape, the bytes of a pull, those that one token reads, the memory of one machine
    that reads nothing from disk, and the part of it that may not be on disk."""
    config = ModelConfig.from_huggingface(preset(alias.shape))
    spec = model_spec(config)
    # A tied head is stored once, with the embedding.
    precision = {"": Precision.BF16, "Q4_K_M": Precision.Q4_K}.get(alias.quant, Precision.Q8)
    stored = Storage(precision, precision, precision)
    if alias.experts:  # a pack rounds the layers' other matrices to q8
        own = {one.source for blob in spec.layers if blob.experts for one in blob.experts.matrices}
        as_stored = dict.fromkeys(own, Precision(alias.experts))
        stored = Storage(Precision.Q8, precision, precision, kept=as_stored)
    rows = {"inputs_embedding", *(() if spec.tied else ("embedding",))}  # read one by one
    read = tuple(one for one in spec.embedding.matrices if one.name not in rows)
    held = {**spec.blobs, "embedding": replace(spec.embedding, matrices=read)}
    kept = [one.attention for one in config.layers if one.attention.keys_of is None]
    kv_bytes = 2 * 2 * _CONTEXT * sum(one.kv_heads * one.width for one in kept)  # keys and values in bf16
    of_experts = {key: replace(blob, matrices=(), vectors=()) for key, blob in spec.blobs.items()}
    return {
        "nbytes": sum(_nbytes(stored, key, blob) for key, blob in spec.blobs.items()),
        "token_bytes": sum(_nbytes(stored, key, blob, of_token=True) for key, blob in held.items()),
        "memory_bytes": sum(_nbytes(stored, key, blob) for key, blob in held.items())
        + kv_bytes
        + NODE_BASE_BYTES,
        "expert_bytes": sum(_nbytes(stored, key, blob) for key, blob in of_experts.items()),
    }


@click.command()
@click.option("--all", "with_aliases", is_flag=True, help="Also list aliases that can be pulled.")
@_usual_options
def ls(with_aliases: bool, as_json: bool, cache: Path | None) -> None:
    pulled, packs = HubCache(cache).pulled(), catalogue.stored_packs(cache)
    offered = list(aliases().values()) if with_aliases else []
    if as_json:
        record = {
            "models": [
                {
                    "model": str(one.name),
                    "path": str(one.folder),
                    "commit": one.folder.name,
                    "nbytes": one.nbytes,
                }
                | dataclasses.asdict(one.name)
                for one in pulled
            ],
            "packs": [dataclasses.asdict(pack) | {"path": str(pack.path)} for pack in packs],
        }
        if with_aliases:
            record["aliases"] = [dataclasses.asdict(alias) | _needs(alias) for alias in offered]
        click.echo(json.dumps(record))
        return
    rows, of_alias = [], [""] * (2 * with_aliases)
    for pack in packs:
        size = "damaged: tpiedge rm it" if pack.nbytes is None else format_bytes(pack.nbytes)
        used = format_age(time.time() - pack.used_s)
        rows.append([pack.name, pack.precision or "", size, *of_alias, sanitised_line(pack.source), used])
    for one in pulled:
        alias = next((alias for alias in aliases() if parse_hub_name(alias) == one.name), None)
        source = f"{one.name}, the hub" if alias else "the hub"
        kind = one.name.quant or "checkpoint"
        rows.append([alias or str(one.name), kind, format_bytes(one.nbytes), *of_alias, source, ""])
    here = {one.name for one in pulled}
    for known in offered:
        if parse_hub_name(known.name) not in here:
            terms, needs = f"to pull, {known.licence}{', gated' if known.gated else ''}", _needs(known)
            sizes = [format_bytes(needs[name]) for name in ("nbytes", "token_bytes", "memory_bytes")]
            sizes[2] += ", no disk" if needs["expert_bytes"] else ""
            rows.append([known.name, known.quant or "checkpoint", *sizes, terms, ""])
    if rows:
        more = ["a token reads", "memory"] if with_aliases else []
        print_table(["name", "precision", "size", *more, "source", "last use"], rows)
        if with_aliases:
            click.echo("\n".join(("", *wrapped(_MEMORY, screen_columns()))))
        for pack in packs:
            if pack.rounded:
                click.echo(f"{pack.name}: {sanitised_line(pack.rounded)}")
    else:
        click.echo("no models yet: 'tpiedge ls --all' lists models to pull", err=True)


@click.command()
@click.argument("model_name", metavar="MODEL", type=HUB_MODEL)
@_usual_options
def show(model_name: str, as_json: bool, cache: Path | None) -> None:
    card = _card(model_name, cache)
    if as_json:
        click.echo(json.dumps(card))
        return
    lines = [*_card_lines(card)]
    width = max(len(label) for label, _ in lines)
    for label, value in lines:
        click.echo(f"{label.ljust(width)}  {value}")


@click.command()
@click.argument("model_names", metavar="MODEL...", type=MODEL, nargs=-1, required=True)
@click.option("--packs-only", is_flag=True, help="Keep the pulled checkpoint.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cache_option
def rm(model_names: tuple[str, ...], packs_only: bool, yes: bool, cache: Path | None) -> None:
    """Delete each MODEL and its packs from the cache. Your own folders are never deleted."""
    hub = HubCache(cache)
    packs: dict[Path, None] = {}
    entries: dict[Path, HubName] = {}  # revisions share a folder
    for name in model_names:
        found, hub_name = catalogue.packs_of(name, cache), parse_hub_name(name)
        if any(catalogue.load_label(pack).name.lower() == name.lower() for pack in found):
            hub_name = None  # a pack's own name: a pull that could have it stays
        for pack in found:
            if pack.resolve().parent != catalogue.packs_folder(cache).resolve():
                raise UserError(f"{pack} is not in the cache: delete the folder yourself")
        pulled = hub_name is not None and not packs_only and hub.entry(hub_name).is_dir()
        if not found and not pulled:
            raise UserError(f"nothing of {quote(name)} is in the cache: tpiedge ls lists what is")
        packs |= dict.fromkeys(found)
        entries |= {hub.entry(hub_name): hub_name} if hub_name is not None and pulled else {}
    for path in [*packs, *entries]:
        click.echo(f"delete {path}", err=True)
    try:
        if not yes and not click.confirm("Sure?", err=True):
            click.echo("nothing was deleted", err=True)
            return
    except click.Abort:  # end of input, or Ctrl-C
        click.echo(err=True)
        if sys.stdin.isatty():
            raise
        raise UserError("standard input is closed: give --yes to delete without asking") from None
    remove_packs([*packs])  # first: it refuses packs in use
    for pulled_name in entries.values():
        hub.remove(pulled_name)


@click.command()
@click.argument("model_name", metavar="MODEL", type=HUB_MODEL)
@_usual_options
def pull(model_name: str, as_json: bool, cache: Path | None) -> None:
    """Fetch MODEL from the hub: an alias (`tpiedge ls --all`), org/name, or org/name:Q4_K_M for a GGUF file.

    A pull of a GGUF file fetches this file alone. A pull of another model fetches safetensors weights, configs,
    tokenizers and chat templates. An interrupted pull resumes. @REVISION after the name selects a branch, tag or
    commit. Set HF_TOKEN for gated models, and HF_ENDPOINT for another hub."""
    name = parse_hub_name(model_name)
    if name is None:
        words = "is not a model on the hub: give org/name, org/name:Q4_K_M or an alias (tpiedge ls --all)"
        more = catalogue.suggestion(model_name, cache)
        raise UserError(unsupported(model_name) or f"{quote(model_name)} {words}{more}")
    report = pull_shown(name, cache)
    fetched = report.fetched
    if not name.quant and not has_file(report.folder, "tokenizer.json"):
        click.echo(f"{name} has no tokenizer.json: it takes --prompt-ids, not text", err=True)
    if as_json:
        found = {"path": str(report.folder), "model": str(name), "commit": report.folder.name}
        click.echo(json.dumps(found | {"fetched_bytes": fetched}))
    else:
        done = f"{format_bytes(fetched)} fetched" if fetched else "already there"
        click.echo(f"{report.folder} ({done})")


@click.group(cls=ListingGroup)
def shards() -> None:
    """Manage the shards that this computer keeps as a worker: list, remove, limit."""


@shards.command("ls")
@_usual_options
@state_option
def shards_ls(as_json: bool, cache: Path | None, state: Path | None) -> None:
    """List the packs with shards here, and the size of the shards and of the KV pages."""
    usage = ShardStore(catalogue.shards_folder(cache)).usage()
    page_bytes = sum(one.nbytes for one in PageFolder(worker_state(state) / PAGES).usage())
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(usage) | {"page_bytes": page_bytes}))
        return
    rows = []
    for pack in usage.packs:
        used = datetime.fromtimestamp(pack.used_at).strftime("%Y-%m-%d %H:%M")
        sizes = [format_bytes(pack.held_bytes), format_bytes(pack.full_bytes)]
        when = "in use" if pack.in_use else used
        rows.append([pack.id[:12], str(pack.layers), pack.precision, *sizes, when])
    if rows:
        print_table(["pack", "layers", "precision", "here", "of", "last used"], rows)
    of = "" if usage.limit_bytes is None else f" of {format_bytes(usage.limit_bytes)}"
    click.echo(f"{format_bytes(usage.held_bytes)}{of} used", err=True)
    if page_bytes:
        click.echo(f"KV pages take {format_bytes(page_bytes)}: tpiedge cache ls", err=True)


@shards.command("rm")
@click.argument("name", metavar="PACK")
@cache_option
def shards_rm(name: str, cache: Path | None) -> None:
    """Remove PACK (the start of its id) from this computer; a worker fetches its shards again if needed."""
    removed = ShardStore(catalogue.shards_folder(cache)).remove(name)
    click.echo(f"removed {removed[:12]}")


@shards.command("limit")
@click.argument("size")
@cache_option
def shards_limit(size: str, cache: Path | None) -> None:
    """Limit the shards to SIZE (like 20GB), or "none"; the least recently used pack is removed first."""
    most = None if size == "none" else parse_bytes(size)
    write_limit(catalogue.shards_folder(cache), most)
    words = "all that the disk has" if most is None else f"at most {format_bytes(most)}"
    click.echo(f"shards may take {words}", err=True)
