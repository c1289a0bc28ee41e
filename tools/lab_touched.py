"""Says whether tests of the laboratory and of tools are to run: exits with 0 where what they are about has changed
since the commit that .ci/lab-passed names, where they passed, and with 1 where nothing of it has.

They are about the laboratory, tools, their tests, every module that one of these imports, and what all is built by.
`make check` asks. `python -m tools.lab_touched --passed` writes down that they passed on this commit.
"""

import argparse
import ast
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
_IMPORTED: Final = ("tpiedge", "tests", "tools")
_SHOWN: Final = 5


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--passed", action="store_true", help="they passed on this commit: write that down")
    if parser.parse_args().passed:
        return _write_down()
    changed = _changed_since_passed()
    touched = None if changed is None else sorted(changed & about(ROOT, changed))
    if touched == []:
        print(f"laboratory and tools: nothing has changed since {PASSED}, their tests need not run")
        return 1
    if touched is None:
        print(f"laboratory and tools: {PASSED} names no commit of this history, their tests run")
    else:
        more = f" and {len(touched) - _SHOWN} more" if len(touched) > _SHOWN else ""
        print(f"laboratory and tools: changed are {', '.join(touched[:_SHOWN])}{more}: their tests run")
    return 0


def about(root: Path, changed: Iterable[str]) -> set[str]:
    """What the tests are about: names of files in `root`, and those of `changed` that are gone."""
    own = {path for path in _files(root) if _belongs(path)}
    imported = {
        module
        for path in own
        if path.endswith(".py")
        for module in _imports((root / path).read_text("utf-8"))
    }
    found = {path for path in map(_file_of, imported) if path and (root / path).exists()}
    return own | found | {path for path in changed if _belongs(path)}


def _belongs(path: str) -> bool:
    return path in BUILT_BY or any(part in FOLDERS for part in PurePosixPath(path).parent.parts)


def _files(root: Path) -> list[str]:
    return [
        path.relative_to(root).as_posix()
        for folder in _IMPORTED
        for path in (root / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ] + list(BUILT_BY)


def _imports(text: str) -> Iterable[str]:
    """Names of modules, and of what is imported from them, which may be modules, too."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield module
                yield from (f"{module}.{one.name}" for one in names)
            case ast.Import(names=names):
                yield from (one.name for one in names)


def _file_of(module: str) -> str:
    """The module's file; empty for one that is not ours."""
    parts = module.split(".")
    return "/".join(parts) + ".py" if parts[0] in _IMPORTED else ""


def _changed_since_passed() -> set[str] | None:
    """Names of files, those that are not committed yet, too; None where that commit is not known."""
    try:
        commit = (ROOT / PASSED).read_text("ascii").strip()
        there = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
        differing = _git("diff", "--name-only", "--no-renames", there.strip())
    except (OSError, subprocess.CalledProcessError):
        return None
    return {*differing.splitlines(), *_git("ls-files", "--others", "--exclude-standard").splitlines()}


def _write_down() -> int:
    if changed := _git("status", "--porcelain"):
        print(f"not committed yet, so {PASSED} stays as it was:\n{changed}", end="", file=sys.stderr)
        return 1
    (ROOT / PASSED).write_text(_git("rev-parse", "HEAD"), "ascii")
    return 0


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
