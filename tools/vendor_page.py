"""Compares the libraries of the page and of its tests with what npm has of them; with --write, fetches them anew.

    python tools/vendor_page.py [--write]

manifest.json beside them names each library, its version, its licence and which file of npm's package each of its files
is, with what is appended to it. For another version, or another file, change that and say --write, which also writes
the hashes.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
VENDORED = (ROOT / "tpiedge" / "page" / "vendor", ROOT / "tests" / "browsing" / "vendor")
MANIFEST = "manifest.json"
_LIMIT_S = 120


def main() -> int:
    """Returns 1 if something differs or npm fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="what npm has in place of what is here")
    write = parser.parse_args().write
    try:
        differing = [file for folder in VENDORED for file in _compare(folder, write)]
    except (OSError, subprocess.SubprocessError) as error:
        print(f"npm could not fetch it: {error}", file=sys.stderr)
        return 1
    except KeyError as missing:
        print(f"a package has no file {missing}: correct {MANIFEST}", file=sys.stderr)
        return 1
    if differing:
        print(f"not as npm has it: {', '.join(differing)}", file=sys.stderr)
        return 1
    print("all libraries are as npm has them")
    return 0


def _compare(folder: Path, write: bool) -> list[str]:
    """Returns the files that differ; `write` replaces them first. Raises OSError, SubprocessError, KeyError."""
    libraries = json.loads((folder / MANIFEST).read_text())
    differing = []
    for library in libraries:
        contents = _files_of(f"{library['package']}@{library['version']}")
        for file in library["files"]:
            if not _same(folder, file, contents[file["from"]] + file.get("append", "").encode(), write):
                differing.append(file["path"])
    if write:
        (folder / MANIFEST).write_text(json.dumps(libraries, indent=2) + "\n")
    return differing


def _same(folder: Path, file: dict[str, Any], content: bytes, write: bool) -> bool:
    """Whether the file has `content`, and the manifest its hash; with `write`, makes both so first."""
    path = folder / file["path"]
    digest = hashlib.sha256(content).hexdigest()
    if write:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        file["sha256"] = digest
    return path.is_file() and path.read_bytes() == content and file.get("sha256") == digest


def _files_of(package: str) -> dict[str, bytes]:
    """Returns the files of npm's package by path."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--pack-destination", folder, package]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=_LIMIT_S)
        (archive,) = Path(folder).glob("*.tgz")
        found = {}
        with tarfile.open(archive) as opened:
            for member in opened:
                file = opened.extractfile(member)
                if file is not None:
                    found[member.name.partition("/")[2]] = file.read()
        return found


if __name__ == "__main__":
    sys.exit(main())
