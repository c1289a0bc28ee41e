"""The server answers requests as the golden tables say, to the byte."""

import difflib

import pytest

from tests.golden.tables import TABLES, table, written


@pytest.mark.parametrize("name", TABLES)
def test_server_answers_match_the_golden_tables(name: str) -> None:
    """An intended change is written with `python -m tools.make_golden`; read the difference."""
    had, has = table(name), written(name)
    if had != has:
        lines = difflib.unified_diff(had.splitlines(), has.splitlines(), name, "now", n=0, lineterm="")
        pytest.fail("\n".join(line[:500] for line, _ in zip(lines, range(40), strict=False)))
