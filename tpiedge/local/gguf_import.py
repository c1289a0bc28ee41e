"""Makes the pack of a GGUF file: its weights, its text files, its name, and what rounding cost."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.local.catalogue import check_free, name_pack
from tpiedge.local.packing import run_packing
from tpiedge.local.paths import packs_folder
from tpiedge.local.text_folder import write_files
from tpiedge.model.gguf.model import GgufModel
from tpiedge.model.pooling import POOLING_FILE, POOLING_FOLDER, pooling_config
from tpiedge.model.spec import model_spec
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.pack.manifest import TEXT_FOLDER
from tpiedge.pack.storage import Storage
from tpiedge.pack.writing.child import CheckpointTensors, PackRequest
from tpiedge.pack.writing.quality import load_quality
from tpiedge.pack.writing.writer import PackReport
from tpiedge.units import format_bytes

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_LABEL_LENGTH = 80
_F32_BYTES = 4


@dataclass(frozen=True)
class ImportedGguf:
    """A pack that is there. `name` is None outside the cache; `losses` says what the pack holds otherwise than the
    file, `notices` the same and what else a user should know, a line each."""

    report: PackReport
    name: str | None
    losses: tuple[str, ...]
    notices: tuple[str, ...]


def import_gguf_file(
    model: GgufModel,
    storage: Storage,
    cache: Path | None,
    *,
    out: Path | None = None,
    name: str | None = None,
) -> ImportedGguf:
    """Writes the pack into the cache, or as the folder `out`, with progress; blocks. `name` is as in name_pack.

    Raises UserError, DiskFull, ReadFault.
    """
    losses = tuple(model.losses(storage))
    label = storage.label(tied=model.config.tie_word_embeddings)
    target = out or cached_gguf_pack(model, storage, cache)
    if out is None:
        check_free(target, name)
    request = PackRequest(model_spec(model.config), CheckpointTensors(model.tensors), storage, target)
    report = run_packing(request, f"packing {model.path.name} as {label}")
    told = [
        *losses,
        *(_cost(model, report) if losses else ()),
        *_write_text(model, report.path / TEXT_FOLDER),
    ]
    if out is None:
        source = str(model.path.absolute())
        name = name_pack(report.path, model.path.stem, storage.layers.value, source, name)
    return ImportedGguf(report, name, losses, tuple(told))


def cached_gguf_pack(model: GgufModel, storage: Storage, cache: Path | None) -> Path:
    """The folder of a file's pack; it differs for another file or storage."""
    label = storage.label(tied=model.config.tie_word_embeddings)
    stem = "".join(mark if mark.isalnum() or mark in "-_." else "-" for mark in model.path.stem)
    name = stem.strip(".-")[:_LABEL_LENGTH] or "model"
    return packs_folder(cache) / f"{name}-{label}-{model.fingerprint[:16]}"


def _cost(model: GgufModel, report: PackReport) -> Iterator[str]:
    """What rounding did to the file's weights and to their size, and what would lose nothing."""
    quality = load_quality(report.path)
    if quality is not None and quality.total.noise:
        part = 100 * 10 ** (-quality.total.sqnr_db / 20)
        yield (
            f"rounding changes the weights by {part:.1g} % ({quality.total.sqnr_db:.0f} dB): q8 and q4 have one scale "
            "for 32 weights, the file's types say more of each block"
        )
    whole = sum(math.prod(tensor.shape) for tensor in model.tensors.values()) * _F32_BYTES
    yield (
        f"{format_bytes(model.path.stat().st_size)} became {format_bytes(report.nbytes)}; --precision f32 would lose "
        f"nothing and take {format_bytes(whole)}"
    )


def _write_text(model: GgufModel, folder: Path) -> Iterator[str]:
    """Put the text files beside the weights. Gives why there is no tokenizer, if there is none."""
    made: dict[str, Mapping[str, object]] = {"config.json": model.huggingface}
    if model.generation:
        made["generation_config.json"] = model.generation
    configs = {name: json.dumps(dict(values), indent=2).encode() for name, values in made.items()}
    write_files(folder, configs | dict(model.text.files))
    if model.pooling is not None:
        pooling = json.dumps(dict(pooling_config(model.pooling)), indent=2).encode()
        write_files(folder / POOLING_FOLDER, {POOLING_FILE: pooling})
    notice = model.text.notice or _unusable_tokenizer(folder)
    if notice:
        yield f"{notice}: the pack takes token ids only (--prompt-ids)"


def _unusable_tokenizer(folder: Path) -> str:
    """Why the tokenizer cannot be used, which is then removed; empty where it can."""
    try:
        Tokenizer.open(folder)
    except UserError as error:
        for name in _TOKENIZER_FILES:
            (folder / name).unlink(missing_ok=True)
        return f"the tokenizer cannot be used ({error})"
    return ""
