"""`tpiedge import-gguf`: a pack from a GGUF file."""

import json
from collections import Counter
from pathlib import Path

import click

from tpiedge.cli.pack_names import name_option, say_name, wanted_name
from tpiedge.cli.path_options import cache_option
from tpiedge.cli.types import Location
from tpiedge.local.gguf_import import ImportedGguf, import_gguf_file
from tpiedge.model.gguf.model import GgufModel
from tpiedge.pack.layout import Precision
from tpiedge.pack.reader import Pack, verify_pack
from tpiedge.pack.storage import Storage
from tpiedge.units import format_bytes


@click.command("import-gguf")
@click.argument("file", type=Location())
@click.option("--out", type=Location(), help="Folder to write.  [default: in the cache]")
@click.option(
    "--precision",
    type=click.Choice([precision.value for precision in Precision]),
    help="Of the layers.  [default: what holds the file's weights as they are; q8]",
)
@name_option
@click.option("--verify", is_flag=True, help="Read everything back and compare with the hashes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
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
    wanted = wanted_name(name, out)
    model = GgufModel.open(file)
    storage = model.storage(Precision(precision) if precision else None)
    imported = import_gguf_file(model, storage, cache, out=out, name=wanted)
    if verify:
        verify_pack(Pack.open(imported.report.path))
    for notice in imported.notices:
        click.echo(f"tpiedge: {file.name}: {notice}", err=True)
    if as_json:
        click.echo(json.dumps(_record(model, storage, imported, verify)))
        return
    report = imported.report
    done = "already there" if report.reused else "written"
    click.echo(f"{report.path} ({format_bytes(report.nbytes)}, {done}{', verified' if verify else ''})")
    say_name(imported.name)


def _record(model: GgufModel, storage: Storage, imported: ImportedGguf, verified: bool) -> dict[str, object]:
    kinds = Counter(tensor.kind for tensor in model.tensors.values())
    return {
        "path": str(imported.report.path),
        "name": imported.name,
        "bytes": imported.report.nbytes,
        "reused": imported.report.reused,
        "verified": verified,
        "precision": {
            "layers": storage.layers.value,
            "embedding": storage.embedding.value,
            "head": storage.head.value,
        },
        "tensors": dict(sorted(kinds.items())),
        "notices": list(imported.notices),
        "exact": not imported.losses,
    }
