"""Writes packs of checkpoints into the cache or elsewhere, with progress."""

import json
from pathlib import Path

from tpiedge.local.catalogue import name_pack
from tpiedge.local.paths import packs_folder
from tpiedge.local.text_folder import keep_text_files, write_files
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.config import MAX_CONFIG_BYTES
from tpiedge.model.folder import read_json
from tpiedge.model.hub.cache import folder_label
from tpiedge.model.int4_checkpoint import rounded_tensors
from tpiedge.model.quantisation import QUANTISATION_KEY
from tpiedge.model.source import DEMO, resolve_model
from tpiedge.model.spec import model_spec
from tpiedge.pack.layout import Precision
from tpiedge.pack.manifest import TEXT_FOLDER
from tpiedge.pack.storage import Storage, storage_of
from tpiedge.pack.writing.child import CheckpointTensors, PackRequest
from tpiedge.pack.writing.parent import run_pack_child
from tpiedge.pack.writing.quality import load_quality
from tpiedge.pack.writing.writer import PackReport
from tpiedge.progress import ByteProgress, say


def cached_pack(checkpoint: Checkpoint, precision: Precision | Storage, cache: Path | None) -> Path:
    """The folder of a checkpoint's pack; it differs for another checkpoint or storage."""
    name, spec = folder_label(checkpoint.folder), model_spec(checkpoint.config)
    stored = storage_of(precision, spec).label(tied=spec.tied)
    return packs_folder(cache) / f"{name}-{stored}-{checkpoint.fingerprint[:16]}"


def name_checkpoint_pack(
    checkpoint: Checkpoint, precision: Precision | Storage, pack: Path, wanted: str | None = None
) -> str:
    """Labels a checkpoint's pack in the cache, as name_pack does, which raises UserError."""
    label = folder_label(checkpoint.folder)
    owner, mark, stem = label.partition("--")
    layers = precision.layers if isinstance(precision, Storage) else precision
    source = f"{owner}/{stem}" if mark else str(checkpoint.folder.absolute())
    if checkpoint.folder == resolve_model(DEMO):
        source = DEMO
    return name_pack(pack, stem or label, layers.value, source, wanted)


def source_precision(checkpoint: Checkpoint) -> Precision:
    """bf16 if every weight is bf16; for GPTQ and AWQ what holds their integers; else f32, which holds f16 exactly."""
    if checkpoint.quantisation:
        return checkpoint.quantisation.precision
    dtypes = {info.dtype for info in checkpoint.tensors.values()}
    return Precision.BF16 if dtypes == {"BF16"} else Precision.F32


def pack_checkpoint(checkpoint: Checkpoint, precision: Precision | Storage, out: Path) -> PackReport:
    """Writes the pack in a child process, with progress; blocks. Raises UserError, DiskFull, ReadFault."""
    spec = model_spec(checkpoint.config)
    checkpoint.check(spec)
    request = PackRequest(spec, CheckpointTensors(checkpoint.tensors), precision, out)
    label = storage_of(precision, spec).label(tied=spec.tied)
    report = run_packing(request, f"packing {folder_label(checkpoint.folder)} as {label}")
    keep_text_files(checkpoint.folder, out / TEXT_FOLDER)
    if checkpoint.quantisation:
        _say_plain(out / TEXT_FOLDER)
        layers = storage_of(precision, spec).layers
        for notice in rounded_tensors(checkpoint.tensors, checkpoint.quantisation, layers, load_quality(out)):
            say(f"tpiedge: {folder_label(checkpoint.folder)}: {notice}")
    return report


def run_packing(request: PackRequest, label: str) -> PackReport:
    """Runs the request in a child process with a progress line; blocks."""
    progress = ByteProgress(label)
    written = 0
    try:
        report = run_pack_child(request, progress)
        written = 0 if report.reused else report.nbytes
    finally:
        progress.finish(written)
    return report


def _say_plain(folder: Path) -> None:
    """Removes GPTQ or AWQ from config.json: an export of the pack has plain numbers."""
    config = dict(read_json(folder, "config.json", MAX_CONFIG_BYTES))
    config.pop(QUANTISATION_KEY, None)
    write_files(folder, {"config.json": json.dumps(config, indent=2).encode()})
