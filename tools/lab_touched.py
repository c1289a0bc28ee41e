"""Says whether tests of the laboratory and of tools are to run: it exits with 3 where nothing that they are about has
changed since the commit that .ci/lab-passed names, where they passed. With any other status they are to run.

They are about the laboratory, tools, their tests, every module that one of these imports, what all tests share, and
what they read or are built by. What those modules import in turn has tests of its own, which always run. `make check`
asks.
`python -m tools.lab_touched --passed COMMIT` writes down that they passed on that commit, which is HEAD still.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PASSED: Final = PurePosixPath(".ci/lab-passed")
FOLDERS: Final = ("lab", "tools")
"""Whatever has one of these folders in its path belongs to it."""
BUILT_BY: Final = ("Makefile", "MANIFEST.in", "constraints.txt", "pyproject.toml", "setup.py")
READ: Final = re.compile(
    r"(\.ci|configs|docker)/|tpiedge/(.*/native|model/demo)/|tests/([^/]*|(.*/)?conftest)\.py$"
)
"""Other files that they read or share."""
UNTOUCHED: Final = 3
"""The exit status by which they need not run: no error has it."""
_IMPORTED: Final = ("tpiedge", "tests", "tools")
_SHOWN: Final = 5


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--passed", metavar="COMMIT", help="they passed on this one: write that down")
    passed = parser.parse_args().passed
    if passed is not None:
        return _write_down(passed)
    changed = _changed_since_passed()
    touched = None if changed is None else sorted(changed & about(ROOT, changed))
    if touched == []:
        print(f"laboratory and tools: nothing has changed since {PASSED}, their tests need not run")
        return UNTOUCHED
    if touched is None:
        print(f"laboratory and tools: {PASSED} names no commit of this history, their tests run")
    else:
        more = f" and {len(touched) - _SHOWN} more" if len(touched) > _SHOWN else ""
        print(f"laboratory and tools: changed are {', '.join(touched[:_SHOWN])}{more}: their tests run")
    return 0


def about(root: Path, changed: Iterable[str]) -> set[str]:
    """Returns what the tests are about: files in `root`, where modules would be, and those among `changed`."""
    own = [
        path.relative_to(root).as_posix()
        for folder in _IMPORTED
        for path in (root / folder).rglob("*.py")
        if _belongs(path.relative_to(root).as_posix())
    ]
    modules = {module for path in own for module in _imports((root / path).read_text("utf-8"))}
    imported = {path for module in modules for path in _files_of(module)}
    return {*own, *imported, *filter(_belongs, changed)}


def _belongs(path: str) -> bool:
    folders = PurePosixPath(path).parent.parts
    known = path in BUILT_BY or READ.match(path) is not None or not set(FOLDERS).isdisjoint(folders)
    return known and path != str(PASSED)


def _imports(text: str) -> Iterable[str]:
    """Yields modules, and what is imported from them, which may be modules, too."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield module
                yield from (f"{module}.{one.name}" for one in names)
            case ast.Import(names=names):
                yield from (one.name for one in names)


def _files_of(module: str) -> Iterable[str]:
    """Yields where the module would be, and the packages that it is in; nothing for one that is not ours."""
    parts = module.split(".")
    if parts[0] in _IMPORTED:
        yield "/".join(parts) + ".py"
        yield from ("/".join([*parts[:count], "__init__.py"]) for count in range(1, len(parts) + 1))


def _changed_since_passed() -> set[str] | None:
    """Returns names of files, those that are not committed yet, too; None where that commit is not known."""
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
