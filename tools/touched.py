"""Prints which tests `make test-all` runs, as an expression of pytest's marks: all but the parts of which nothing has
changed since the commit that .ci/passed names, where all tests passed.

A part's tests are about its folders, every module that a file there imports, what all tests share, and what they read
or are built by. What those modules import in turn has tests of its own, which always run.
`python -m tools.touched --passed COMMIT` writes down that all tests passed on that commit, which is HEAD still.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PASSED: Final = PurePosixPath(".ci/passed")
BUILT_BY: Final = ("Makefile", "MANIFEST.in", "constraints.txt", "pyproject.toml", "setup.py")
SHARED: Final = re.compile(r"\.ci/|tests/([^/]*|(.*/)?conftest)\.py$")
_IMPORTED: Final = ("tpiedge", "tests", "tools")
_SHOWN: Final = 5


@dataclass(frozen=True)
class Part:
    """A part: the files with one of `folders` in their path, and the files whose path begins with `read`."""

    folders: frozenset[str]
    read: re.Pattern[str]

    def has(self, path: str) -> bool:
        folders = PurePosixPath(path).parent.parts
        known = path in BUILT_BY or SHARED.match(path) or self.read.match(path)
        return bool(known or not self.folders.isdisjoint(folders)) and path != str(PASSED)


#: By the mark of its tests, which tests/conftest.py gives to what lies in its folders.
PARTS: Final[Mapping[str, Part]] = {
    "lab": Part(
        frozenset({"lab", "tools"}), re.compile(r"(configs|docker)/|tpiedge/(.*/native|model/demo)/")
    ),
    "native": Part(frozenset({"native"}), re.compile(r"tpiedge/kernels/")),
    "page": Part(frozenset({"page", "browsing"}), re.compile(r"tpiedge/(answers|api|master|tracing)/")),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--passed", metavar="COMMIT", help="all tests passed on this one: write that down")
    passed = parser.parse_args().passed
    if passed is not None:
        return _write_down(passed)
    changed = _changed_since_passed()
    if changed is None:
        print(f"{PASSED} names no commit of this history: all tests run", file=sys.stderr)
    untouched = [
        mark for mark, part in PARTS.items() if changed is not None and not _touched(mark, part, changed)
    ]
    print(" and ".join(f"not {mark}" for mark in untouched) or "lab or not lab")
    return 0


def _touched(mark: str, part: Part, changed: set[str]) -> bool:
    touched = sorted(changed & about(part, ROOT, changed))
    more = f" and {len(touched) - _SHOWN} more" if len(touched) > _SHOWN else ""
    words = f"changed are {', '.join(touched[:_SHOWN])}{more}" if touched else "untouched: not tested again"
    print(f"{mark}: {words}", file=sys.stderr)
    return bool(touched)


def about(part: Part, root: Path, changed: Iterable[str]) -> set[str]:
    """Returns a part's files: its modules in `root`, where modules that they import would be, and `changed` files."""
    own = [
        path.relative_to(root).as_posix()
        for folder in _IMPORTED
        for path in (root / folder).rglob("*.py")
        if part.has(path.relative_to(root).as_posix())
    ]
    modules = {module for path in own for module in _imports((root / path).read_text("utf-8"))}
    imported = {path for module in modules for path in _files_of(module)}
    return {*own, *imported, *filter(part.has, changed)}


def _imports(text: str) -> Iterable[str]:
    """Yields imported modules, and names imported from them, which may be modules, too."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield module
                yield from (f"{module}.{one.name}" for one in names)
            case ast.Import(names=names):
                yield from (one.name for one in names)


def _files_of(module: str) -> Iterable[str]:
    """Yields the possible files of a module, and its packages; nothing if the module is not ours."""
    parts = module.split(".")
    if parts[0] in _IMPORTED:
        yield "/".join(parts) + ".py"
        yield from ("/".join([*parts[:count], "__init__.py"]) for count in range(1, len(parts) + 1))


def _changed_since_passed() -> set[str] | None:
    """Returns names of changed files, also uncommitted ones; None if the commit in PASSED is not known."""
    try:
        commit = (ROOT / PASSED).read_text("ascii").strip()
        there = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
        differing = _git("diff", "--name-only", "--no-renames", there.strip())
    except (OSError, subprocess.CalledProcessError):
        return None
    return {*differing.splitlines(), *_git("ls-files", "--others", "--exclude-standard").splitlines()}


def _write_down(commit: str) -> int:
    changed = [line for line in _git("status", "--porcelain").splitlines() if line[3:] != str(PASSED)]
    if changed or _git("rev-parse", "HEAD").strip() != commit:
        print(
            f"{PASSED} stays as it was: the tests ran on what is no commit",
            *changed,
            sep="\n",
            file=sys.stderr,
        )
        return 1
    (ROOT / PASSED).write_text(f"{commit}\n", "ascii")
    return 0


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
