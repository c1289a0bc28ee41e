"""Files that call themselves pure import nothing by themselves that waits, watches the time or computes with torch."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tpiedge

ROOT = Path(tpiedge.__file__).parent
_WAITS = "asyncio concurrent multiprocessing psutil queue select signal socket ssl subprocess threading time"
IMPURE = frozenset([*_WAITS.split(), "torch", "zmq"])
_SAYS_SO = re.compile(
    r"\bpure\b|\bwithout (?:a )?(?:sockets?|threads?|clock)\b|\bno (?:socket|thread|clock)\b", re.IGNORECASE
)


def says_so(source: str) -> bool:
    # The search of the whole file spares most of them a syntax tree.
    return bool(_SAYS_SO.search(source) and _SAYS_SO.search(ast.get_docstring(ast.parse(source)) or ""))


def imported(source: str) -> Iterator[str]:
    """The top-level packages that a module imports itself, wherever the import stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module.partition(".")[0]


PURE = [path for path in sorted(ROOT.rglob("*.py")) if says_so(path.read_text(encoding="utf-8"))]


def test_at_least_30_files_declare_themselves_pure() -> None:
    assert len(PURE) >= 30


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_declared_pure_import_nothing_impure(path: Path) -> None:
    assert not IMPURE.intersection(imported(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("source", "pure"),
    [
        ('"""Numbers. Pure."""', True),
        ('"""A machine without sockets, threads or clock."""', True),
        ('"""Purely decorative: impure."""', False),
        ("x = 1", False),
    ],
)
def test_pure_declaration_is_recognised(source: str, pure: bool) -> None:
    assert says_so(source) == pure


@pytest.mark.parametrize(
    "source", ["import time", "from threading import Lock", "def f():\n    import torch.nn"]
)
def test_imports_are_found_anywhere(source: str) -> None:
    assert IMPURE.intersection(imported(source))
