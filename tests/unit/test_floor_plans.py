"""A package's docstring is its floor plan: it names every module, so that a reader finds the file by what it does."""

import ast
import re
from pathlib import Path

import pytest

import tpiedge

ROOT = Path(tpiedge.__file__).parent
PACKAGES = sorted(path.parent for path in ROOT.rglob("__init__.py") if path.parent != ROOT)


def verbs(folder: Path) -> set[str]:
    """The modules of the command line that are verbs: named after them, not in the floor plan."""
    return {path.stem for path in folder.glob("*.py") if "@click." in path.read_text(encoding="utf-8")}


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_package_docstring_names_every_module(folder: Path) -> None:
    plan = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    if folder.name in ("cli", "verbs"):
        modules -= verbs(folder)
    named = set(re.findall(r"`([a-z]\w*)`", plan))
    assert modules <= named
    assert named - {"cli"} <= {path.stem for path in folder.iterdir()}, "a name that stands for no module"
