import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "make_faults.py"
SOURCE = """
@pytest.mark.fault("A1", "said in one line")
@pytest.mark.slow
def test_first(): ...

class TestBoth:
    @pytest.mark.parametrize("n", [1, 2])
    @pytest.mark.fault("A1", "left out")
    @pytest.mark.fault("B2", "served")
    def test_second(self, n): ...

def test_unmarked(): ...

@pytest.mark.fault("B2", "in any order")
class TestMachine(Machine.TestCase): ...
"""
CATALOGUE = {"Wire": {"A1": {"fault": "Garbage"}}, "HTTP": {"B2": {"fault": "Floods", "untested": "rare"}}}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_faults", TOOL)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(tool: ModuleType) -> dict[str, list]:
    of: dict[str, list] = {}
    for one in tool.reproductions(SOURCE, "tests/test_a.py"):
        of.setdefault(one.fault, []).append(one)
    return of


def test_a_row_for_each_mark(tool: ModuleType) -> None:
    lines = tool.page(CATALOGUE, found(tool)).splitlines()
    assert [line for line in lines if line.startswith(("| A", "| B", "|  "))] == [
        "| A1 | Garbage | said in one line | `pytest tests/test_a.py::test_first` |",
        "|  |  | left out | `pytest tests/test_a.py::TestBoth::test_second` |",
        "| B2 | Floods | served | `pytest tests/test_a.py::TestBoth::test_second` |",
        "|  |  | in any order | `pytest tests/test_a.py::TestMachine` |",
        "|  |  | not tested: rare |  |",
    ]


def test_a_fault_has_a_test_or_a_reason(tool: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"A1 has no test, and faults\.toml does not say why"):
        tool.page(CATALOGUE, {})
