"""Writes docs/faults.md: every fault of tests/faults.toml, its tests, and their outcomes.

python tools/make_faults.py  # writes the file
"""

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PATH = ROOT / "docs" / "faults.md"
_CATALOGUE = ROOT / "tests" / "faults.toml"
_HEAD = """# Faults and attacks

This page lists, for users and developers who judge tpiedge's reliability, what can go wrong or be tried, what becomes
of it, and the command that shows it. `tools/make_faults.py` makes it from `tests/faults.toml` and from the tests marked
`fault`. A command is given without its beginning, `.venv/bin/python -m`. Where root or network namespaces are needed
and not there, the test is skipped and says so.
"""
_TABLE = "| | fault | outcome | command |\n|---|---|---|---|\n"


@dataclass(frozen=True)
class Reproduction:
    """A test that reproduces a fault. `test` is its id in pytest."""

    fault: str
    outcome: str
    test: str


def main() -> int:
    PATH.write_text(document())
    return 0


def documents() -> dict[Path, str]:
    """Returns path -> text of the file. Raises ValueError as `document`."""
    return {PATH: document()}


def document() -> str:
    """Returns the file's text. Raises ValueError for a mark of no fault, or a fault without a test or a reason."""
    found = defaultdict[str, list[Reproduction]](list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for one in reproductions(path.read_text(), path.relative_to(ROOT).as_posix()):
            found[one.fault].append(one)
    return page(tomllib.loads(_CATALOGUE.read_text()), found)


def page(
    catalogue: Mapping[str, Mapping[str, Mapping[str, str]]], found: Mapping[str, Sequence[Reproduction]]
) -> str:
    """Returns the text. `catalogue`: title -> fault -> entry. `found`: fault -> tests."""
    unknown = found.keys() - {fault for faults in catalogue.values() for fault in faults}
    if unknown:
        raise ValueError(f"marked, but not in {_CATALOGUE.name}: {', '.join(sorted(unknown))}")
    sections = (
        f"## {title}\n\n{_TABLE}"
        + "".join(row for fault, entry in faults.items() for row in _rows(fault, entry, found.get(fault, [])))
        for title, faults in catalogue.items()
    )
    return "\n".join([_HEAD, *sections])


def reproductions(source: str, path: str) -> Iterator[Reproduction]:
    """Yields the reproductions in a file of tests, from top to bottom."""
    return _of_body(ast.parse(source).body, path)


def _of_body(body: Sequence[ast.stmt], path: str) -> Iterator[Reproduction]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = f"{path}::{node.name}"
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                    fault, outcome = map(ast.literal_eval, mark.args)
                    yield Reproduction(fault, outcome, name)
            if isinstance(node, ast.ClassDef):
                yield from _of_body(node.body, name)


def _rows(fault: str, entry: Mapping[str, str], tests: Sequence[Reproduction]) -> Iterator[str]:
    if not tests and "untested" not in entry:
        raise ValueError(f"{fault} has no test, and {_CATALOGUE.name} does not say why")
    cells = [(one.outcome, f"`pytest {one.test}`") for one in tests]
    if "untested" in entry:
        cells.append((f"not tested: {entry['untested']}", ""))
    for number, (outcome, command) in enumerate(cells):
        first = (fault, entry["fault"]) if number == 0 else ("", "")
        yield f"| {' | '.join([*first, outcome, command])} |\n"


if __name__ == "__main__":
    sys.exit(main())
