"""The name of a class or of a type alias means one thing in the whole tree."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import tpiedge

ROOT = Path(tpiedge.__file__).parent


#: How classes and aliases are written; constants and functions are not.
CAPITALISED = re.compile(r"_*[A-Z]\w*[a-z]\w*")


def types(path: Path) -> Iterator[str]:
    """Names of the classes and type aliases at the top level of a module, private ones included."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if CAPITALISED.fullmatch(name):
                    yield name


def twice(paths: Iterator[Path]) -> dict[str, list[str]]:
    """Name of a type -> the files that define it, where there are several."""
    found = defaultdict(list)
    for path in sorted(paths):
        for name in types(path):
            found[name].append(path.name)
    return {name: files for name, files in found.items() if len(files) > 1}


def test_the_name_of_a_type_exists_once() -> None:
    assert not twice(ROOT.rglob("*.py"))


def test_a_name_that_exists_twice_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Plan: ...\n")
    (tmp_path / "two.py").write_text("Plan = int\nLIMIT = 1\nclass _Other: ...\n")
    (tmp_path / "three.py").write_text("Plan: TypeAlias = str\nLIMIT = 2\n")
    assert twice(tmp_path.glob("*.py")) == {"Plan": ["one.py", "three.py", "two.py"]}
