"""Opens a model by name: its pack, which is made on first use, its tokenizer and its chat template."""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.kernels.kv_format import usual_kv
from tpiedge.local.paths import packs_folder
from tpiedge.local.usual_sampling import usual_sampling
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.folder import has_file, read_bytes, read_json
from tpiedge.model.hub.cache import folder_label
from tpiedge.model.int4_checkpoint import rounded_tensors
from tpiedge.model.quantisation import QUANTISATION_KEY
from tpiedge.model.source import resolve_model
from tpiedge.model.spec import config_of_pack, model_spec
from tpiedge.model.template import ChatTemplate
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.pack.layout import Precision
from tpiedge.pack.manifest import MANIFEST_NAME
from tpiedge.pack.reader import Pack
from tpiedge.pack.storage import Storage, storage_of
from tpiedge.pack.use import PackHold
from tpiedge.pack.writing.child import CheckpointTensors, PackRequest
from tpiedge.pack.writing.parent import run_pack_child
from tpiedge.pack.writing.quality import load_quality
from tpiedge.pack.writing.writer import PackReport
from tpiedge.planner.arithmetic import check_compute, usual_compute
from tpiedge.progress import ByteProgress, say
from tpiedge.wire.fields import Compute, KVPrecision
from tpiedge.wire.requests import Sampling

__all__ = [
    "TEXT_FOLDER",
    "Arithmetics",
    "PreparedModel",
    "cached_pack",
    "choose_arithmetics",
    "keep_text_files",
    "pack_checkpoint",
    "prepare",
    "run_packing",
    "source_precision",
]


TEXT_FOLDER = "text"

_MAX_TEXT_BYTES = 64_000_000
_TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


@dataclass(frozen=True)
class Arithmetics:
    """How weights are stored and how they are computed with."""

    precision: Precision
    compute: Compute


class PreparedModel:
    """A model that is ready to run. `folder` is its checkpoint; None where only a pack was given."""

    def __init__(
        self, name: str, pack: Pack, compute: Compute, folder: Path | None, kv: KVPrecision | None = None
    ) -> None:
        """`kv` is the precision of keys and values; None: the usual one for `compute`."""
        self.name = name
        self.pack = pack
        self.compute = compute
        self.kv = kv or usual_kv(compute)
        self.config = config_of_pack(pack)
        self._folder = folder
        self._hold = PackHold(pack.path)

    @property
    def context_tokens(self) -> int:
        """Positions that the model can use: RoPE scaling may reach beyond those it was trained on."""
        rope, limit = self.config.rope, self.config.max_position_embeddings
        match rope.kind:
            case "linear" | "dynamic":
                return int(limit * rope.factor)
            case "yarn":
                return max(limit, int(rope.original_positions * rope.factor))
        return limit

    def described(self) -> dict[str, str]:
        """The model's fields in every verb's --json."""
        return {
            "model": self.name,
            "precision": self.pack.precision.value,
            "compute": self.compute,
            "kv_precision": self.kv,
        }

    @property
    def has_tokenizer(self) -> bool:
        """Whether text can go in and come out; other models take token ids only."""
        return self._folder is not None and has_file(self._folder, "tokenizer.json")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Raises UserError where the model has none."""
        if self._folder is None:
            raise UserError(
                f"the pack {self.name} has no tokenizer: give --prompt-ids, or the checkpoint's folder"
            )
        return Tokenizer.open(self._folder)

    @cached_property
    def usual_sampling(self) -> Sampling:
        """The default of chats. Raises UserError for what the model's own file cannot mean."""
        return usual_sampling(self._folder)

    @cached_property
    def template(self) -> ChatTemplate:
        """Raises UserError where the model has none."""
        if self._folder is None:
            raise UserError(
                f"the pack {self.name} has no chat template: give --prompt-ids, or the checkpoint's folder"
            )
        return ChatTemplate.open(self._folder, self.tokenizer.special_tokens)


def prepare(
    name: str,
    precision: str | None,
    compute: Compute | None,
    cache: Path | None,
    kv: KVPrecision | None = None,
) -> PreparedModel:
    """Opens the model's pack, which it makes the first time, with progress on standard error; blocks."""
    given = Path(name)
    if os.path.isfile(given / MANIFEST_NAME):  # unlike Path.is_file, false for names too long
        return _prepare_pack(name, given, precision, compute, kv)
    folder = resolve_model(name, cache)
    checkpoint = Checkpoint.open(folder)
    choice = choose_arithmetics(source_precision(checkpoint), precision, compute)
    out = cached_pack(checkpoint, choice.precision, cache)
    if not (out / MANIFEST_NAME).is_file():
        pack_checkpoint(checkpoint, choice.precision, out)
    return PreparedModel(name, Pack.open(out), choice.compute, folder, kv)


def cached_pack(checkpoint: Checkpoint, precision: Precision | Storage, cache: Path | None) -> Path:
    """The folder of a checkpoint's pack; it differs for another checkpoint or storage."""
    name, spec = folder_label(checkpoint.folder), model_spec(checkpoint.config)
    stored = storage_of(precision, spec).label(tied=spec.tied)
    return packs_folder(cache) / f"{name}-{stored}-{checkpoint.fingerprint[:16]}"


def _prepare_pack(
    name: str, path: Path, precision: str | None, compute: Compute | None, kv: KVPrecision | None
) -> PreparedModel:
    pack = Pack.open(path)
    stored = pack.precision
    widened = precision == "f32" and stored is Precision.BF16
    if precision not in (None, stored.value) and not widened:
        raise UserError(
            f"the pack {name} is stored in {stored.value}: pack the checkpoint again with --precision {precision}"
        )
    choice = choose_arithmetics(stored, None if stored.value == precision else precision, compute)
    text = path / TEXT_FOLDER
    return PreparedModel(name, pack, choice.compute, text if text.is_dir() else None, kv)


def choose_arithmetics(source: Precision, precision: str | None, compute: Compute | None) -> Arithmetics:
    """Storage follows the source, and arithmetic is int8 for quantised weights and f32 for others, unless flags say
    otherwise. Raises UserError where they contradict each other.

    --precision f32 alone keeps a bf16 source in bf16, which f32 arithmetic widens exactly; with --compute f32 beside
    it the weights are stored in f32 too.
    """
    if precision == "f32" and compute is None and not source.quantised:
        return Arithmetics(source, "f32")
    stored = Precision(precision) if precision else source
    arithmetic = compute or usual_compute(stored)
    check_compute(stored, arithmetic)
    return Arithmetics(stored, arithmetic)


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


def _say_plain(folder: Path) -> None:
    """Removes GPTQ or AWQ from config.json: an export of the pack has plain numbers."""
    config = dict(read_json(folder, "config.json", _MAX_TEXT_BYTES))
    config.pop(QUANTISATION_KEY, None)
    partial = folder / f".config.json.{os.getpid()}.partial"
    partial.write_text(json.dumps(config, indent=2))
    partial.replace(folder / "config.json")


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


def keep_text_files(source: Path, target: Path) -> None:
    """Copies config, tokenizer and template, so that a pack is complete without its checkpoint."""
    target.mkdir(exist_ok=True)
    for name in _TEXT_FILES:
        if has_file(source, name):
            partial = target / f".{name}.{os.getpid()}.partial"  # another command may do the same
            try:
                partial.write_bytes(read_bytes(source, name, _MAX_TEXT_BYTES))
                partial.replace(target / name)
            finally:
                partial.unlink(missing_ok=True)
