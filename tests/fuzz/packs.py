"""Packs, settings and testbeds."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.fuzz.forms import MANIFEST, TEXT
from tests.fuzz.parser import CONFIG, ROOT, Parser, Read, words_of
from tpiedge.errors import UserError


def _manifest(folder: Path) -> Read:
    from tpiedge.pack.layout import RowLayout  # noqa: F401  (imported here so that no input pays for it)
    from tpiedge.pack.manifest import load_manifest, manifest_text

    def read(data: bytes) -> None:
        (folder / "manifest.json").write_bytes(data)
        manifest_text(load_manifest(folder))

    return read


def _manifest_seeds() -> list[bytes]:
    from tpiedge.model.config import ModelConfig
    from tpiedge.model.spec import model_spec
    from tpiedge.pack.layout import Storage
    from tpiedge.pack.manifest import BlobIds, Manifest, manifest_text
    from tpiedge.pack.specs import Precision

    found = []
    for tied, precision in ((True, Precision.F32), (False, Precision.Q4)):
        config = ModelConfig.from_huggingface(CONFIG | {"tie_word_embeddings": tied, "num_hidden_layers": 2})
        storage = Storage.of(precision, tied=tied)
        blobs = BlobIds("a" * 64, ("b" * 64,) * 2, "c" * 64)
        manifest = Manifest.of(model_spec(config), storage, "demo", 2, blobs)
        found.append(manifest_text(manifest))
    return found


def _settings(folder: Path) -> Read:
    from tpiedge.cli.config import check_values
    from tpiedge.cli.main import cli
    from tpiedge.cli.settings import problems, read_settings, resolve, verbs_of

    verbs = verbs_of(cli)
    path = folder / "config.toml"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        file = read_settings(path)
        found = [*problems(file, verbs)] or [*check_values(cli, file)]
        if found:
            raise UserError(found[0])
        for table, command in list(verbs.items())[:3]:
            resolve(table, command, {}, file)

    return read


def _testbed(folder: Path) -> Read:
    from tpiedge.lab.testbed.description import parse_description

    return lambda data: parse_description(data.decode("utf-8", "replace"), "bed.toml")


_TOML_WORDS = words_of(
    "[ ] [[ ]] = == \" ' \"\"\" ''' # { } , . true false inf nan -inf 0x 1e999 1_0 1979-05-27T07:32:00Z 07:32:00 "
    "\\u0000 \\UFFFFFFFF \\ud800 [run] [master] [worker] [common] [bench.decode] [defaults] [[device]] [[router]] "
    'nodes=3 memory="4GB" latency="5ms" loss="1%" rate="1Gbit/s" name="a" uplink="a" cpus=0.5 swap="1MiB"'
)


def _files(pattern: str) -> Callable[[], list[bytes]]:
    return lambda: [path.read_bytes() for path in sorted(ROOT.glob(pattern))]


PARSERS: Final = (
    Parser(
        "manifest", _manifest, _manifest_seeds, form=MANIFEST,
        words=words_of("q8 q4 q6_k f32 bf16 kept precision embedding head layers version vectors_f32 transposed"),
    ),
    Parser("settings", _settings, _files("configs/*.toml"), form=TEXT, words=_TOML_WORDS),
    Parser("testbed", _testbed, _files("configs/testbeds/*.toml"), form=TEXT, words=_TOML_WORDS),
)  # fmt: skip
