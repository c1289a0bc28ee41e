"""`tpiedge import-gguf`: a pack from a GGUF file."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import click

from tpiedge.cli.path_options import cache_option
from tpiedge.cli.types import Location
from tpiedge.errors import UserError
from tpiedge.local.paths import packs_folder
from tpiedge.local.prepare import TEXT_FOLDER, run_packing
from tpiedge.model.gguf.model import GgufModel
from tpiedge.model.spec import model_spec
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.pack.layout import Precision
from tpiedge.pack.reader import Pack, verify_pack
from tpiedge.pack.storage import Storage
from tpiedge.pack.writing.child import CheckpointTensors, PackRequest
from tpiedge.pack.writing.writer import PackReport
from tpiedge.units import format_bytes

__all__ = ["import_gguf"]

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_LABEL_LENGTH = 80


@click.command("import-gguf")
@click.argument("file", type=Location())
@click.option("--out", type=Location(), help="Folder to write.  [default: in the cache]")
@click.option(
    "--precision",
    type=click.Choice([precision.value for precision in Precision]),
    help="Of the layers.  [default: what holds the file's weights as they are; q8]",
)
@click.option("--verify", is_flag=True, help="Read everything back and compare with the hashes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@cache_option
def import_gguf(
    file: Path, out: Path | None, precision: str | None, verify: bool, as_json: bool, cache: Path | None
) -> None:
    """Write the Llama or Qwen model in the GGUF FILE in the form that nodes read, with its tokenizer.

    A file of one type stays as it is where that is Q4_0, Q8_0, BF16, F16 or F32, unless --precision says otherwise.
    Other types, and others beside that of most layers, may be rounded, which is told. Norms and biases never are.
    """
    model = GgufModel.open(file)
    storage = model.storage(Precision(precision) if precision else None)
    losses = list(model.losses(storage))
    report = _pack(model, storage, out or _cached(model, storage, cache))
    notices = [*losses, *_write_text(model, report.path / TEXT_FOLDER)]
    if verify:
        verify_pack(Pack.open(report.path))
    for notice in notices:
        click.echo(f"tpiedge: {file.name}: {notice}", err=True)
    if as_json:
        click.echo(json.dumps(_record(model, storage, report, verify, notices) | {"exact": not losses}))
    else:
        done = "already there" if report.reused else "written"
        click.echo(f"{report.path} ({format_bytes(report.nbytes)}, {done}{', verified' if verify else ''})")


def _pack(model: GgufModel, storage: Storage, out: Path) -> PackReport:
    request = PackRequest(model_spec(model.config), CheckpointTensors(model.tensors), storage, out)
    label = storage.label(tied=model.config.tie_word_embeddings)
    return run_packing(request, f"packing {model.path.name} as {label}")


def _cached(model: GgufModel, storage: Storage, cache: Path | None) -> Path:
    """Another file or storage has another folder."""
    stem = "".join(mark if mark.isalnum() or mark in "-_." else "-" for mark in model.path.stem)
    name = stem.strip(".-")[:_LABEL_LENGTH] or "model"
    label = storage.label(tied=model.config.tie_word_embeddings)
    return packs_folder(cache) / f"{name}-{label}-{model.fingerprint[:16]}"


def _write_text(model: GgufModel, folder: Path) -> list[str]:
    """Put the text files beside the weights. Returns why there is no tokenizer, if there is none."""
    made: dict[str, Mapping[str, object]] = {"config.json": model.huggingface}
    if model.generation:
        made["generation_config.json"] = model.generation
    configs = {name: json.dumps(dict(values), indent=2).encode() for name, values in made.items()}
    _write_files(configs | dict(model.text.files), folder)
    notices = [model.text.notice] if model.text.notice else []
    if not notices:
        try:
            Tokenizer.open(folder)
        except UserError as error:
            for name in _TOKENIZER_FILES:
                (folder / name).unlink(missing_ok=True)
            notices = [f"the tokenizer cannot be used ({error})"]
    return [f"{notice}: the pack takes token ids only (--prompt-ids)" for notice in notices]


def _write_files(files: Mapping[str, bytes], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        partial = folder / f".{name}.{os.getpid()}.partial"  # another command may do the same
        try:
            partial.write_bytes(data)
            partial.replace(folder / name)
        finally:
            partial.unlink(missing_ok=True)


def _record(
    model: GgufModel, storage: Storage, report: PackReport, verified: bool, notices: list[str]
) -> dict[str, object]:
    kinds = Counter(tensor.kind for tensor in model.tensors.values())
    return {
        "path": str(report.path),
        "bytes": report.nbytes,
        "reused": report.reused,
        "verified": verified,
        "precision": {
            "layers": storage.layers.value,
            "embedding": storage.embedding.value,
            "head": storage.head.value,
        },
        "tensors": dict(sorted(kinds.items())),
        "notices": notices,
    }
