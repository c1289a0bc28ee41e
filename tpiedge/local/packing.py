"""Writes packs from checkpoints and GGUF files."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.kernels.quantise import QuantisationError
from tpiedge.local.catalogue import check_free, load_label, name_pack, packs_folder, save_label, write_files
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.config import MAX_CONFIG_BYTES, POOLING_FILE, POOLING_FOLDER, text_fields
from tpiedge.model.folder import TEXT_FILES, ConfigFields, has_file, list_files, read_bytes, read_json
from tpiedge.model.gguf.model import GgufModel
from tpiedge.model.quantisation import QUANTISATION_KEY, rounded_matrices
from tpiedge.model.source import DEMO, pulled_name, resolve_model
from tpiedge.model.spec import model_spec
from tpiedge.model.template import ADDITIONAL_TEMPLATES
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.pack.layout import Storage
from tpiedge.pack.manifest import TEXT_FOLDER
from tpiedge.pack.panel_writer import load_quality
from tpiedge.pack.process import PackRequest, run_pack_child
from tpiedge.pack.writer import PackReport
from tpiedge.progress import ByteProgress
from tpiedge.units import format_bytes

Source = Checkpoint | GgufModel


@dataclass(frozen=True)
class PackedModel:
    """`name` is None outside the cache. `losses` are differences from the source. `notices` are lines for users."""

    report: PackReport
    name: str | None
    losses: tuple[str, ...]
    notices: tuple[str, ...]


def cached_pack(source: Source, storage: Storage, cache: Path | None) -> Path:
    stem, label = source.label, storage.label(tied=source.config.tie_word_embeddings)
    if isinstance(source, GgufModel):
        name = "".join(mark if mark.isalnum() or mark in "-_." else "-" for mark in source.stem)
        stem = name.strip(".-")[:80] or "model"
    return packs_folder(cache) / f"{stem}-{label}-{source.fingerprint[:16]}"


def pack_model(
    source: Source, storage: Storage, cache: Path | None, out: Path | None = None, name: str | None = None
) -> PackedModel:
    """Packs `source` in a child process, into `out` or the cache. Blocks. Raises UserError, DiskFull, ReadFault."""
    spec, target = model_spec(source.config), out or cached_pack(source, storage, cache)
    if isinstance(source, Checkpoint):
        source.check(spec)
    if out is None:
        check_free(target, name)
    request = PackRequest(spec, source.tensors, storage, target)
    report = run_packing(request, f"packing {source.label} as {storage.label(tied=spec.tied)}")
    quantisation = source.quantisation if isinstance(source, Checkpoint) else None
    losses = [*rounded_matrices(source.tensors, spec, storage, load_quality(target), quantisation)]
    if isinstance(source, Checkpoint):
        notices = losses
        _keep_text(source, target / TEXT_FOLDER)
        owner, mark, stem = source.label.partition("--")
        origin = f"{owner}/{stem}" if mark else str(source.folder.absolute())
        if source.folder == resolve_model(DEMO):
            origin = DEMO
    else:
        costs = _cost(source, report) if losses else ()
        notices = [*losses, *costs, *_write_text(source, target / TEXT_FOLDER)]
        stem, origin = source.stem, str(pulled_name(source.path.parent) or source.path.absolute())
    if out is None:
        name = name_pack(target, stem or source.label, storage.layers.value, origin, name)
        if losses:
            save_label(target, replace(load_label(target), rounded="; ".join(losses)))
    return PackedModel(report, name, tuple(losses), tuple(notices))


def _keep_text(checkpoint: Checkpoint, text: Path) -> None:
    keep_text_files(checkpoint.folder, text)
    saved = ConfigFields("config.json", read_json(text, "config.json", MAX_CONFIG_BYTES))
    config = dict(text_fields(saved).values)  # an export of the pack has the names of a model of text alone
    if checkpoint.quantisation:
        config.pop(QUANTISATION_KEY, None)  # and plain numbers
    if config != saved.values:
        write_files(text, {"config.json": json.dumps(config, indent=2).encode()})


def run_packing(request: PackRequest, label: str) -> PackReport:
    progress, written = ByteProgress(label), 0
    try:
        report = run_pack_child(request, progress)
        written = 0 if report.reused else report.nbytes
        return report
    finally:
        progress.finish(written)


def keep_text_files(source: Path, target: Path) -> None:
    found = {name: read_bytes(source, name, 64_000_000) for name in TEXT_FILES if has_file(source, name)}
    for inner, suffix in ((ADDITIONAL_TEMPLATES, ".jinja"), (POOLING_FOLDER, POOLING_FILE)):
        for name in list_files(source, inner, suffix):
            found[f"{inner}/{name}"] = read_bytes(source, name, 64_000_000, inner)
    write_files(target, found)


def rounding(error: QuantisationError) -> str:
    return f"rounding changes the weights by {100 * 10 ** (-error.sqnr_db / 20):.2g} %"


def _cost(model: GgufModel, report: PackReport) -> Iterator[str]:
    quality = load_quality(report.path)
    if quality is not None and quality.total.noise:
        yield (
            f"{rounding(quality.total)} ({quality.total.sqnr_db:.0f} dB), because q8 and q4 store "
            "one scale for 32 weights and the file stores more"
        )
    whole = sum(math.prod(tensor.shape) for tensor in model.tensors.values()) * 4
    had = sum(file.stat().st_size for file in {tensor.file for tensor in model.tensors.values()})
    yield (
        f"{format_bytes(had)} became {format_bytes(report.nbytes)}; --precision f32 would lose nothing and take "
        f"{format_bytes(whole)}"
    )


def _write_text(model: GgufModel, folder: Path) -> Iterator[str]:
    files, notice = model.text()
    write_files(folder, files)
    if not notice:
        try:
            Tokenizer.open(folder)
        except UserError as error:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                (folder / name).unlink(missing_ok=True)
            notice = f"the tokenizer cannot be used ({error})"
    if notice:
        yield f"{notice}: the pack takes token ids only (--prompt-ids)"
