"""Where an answer appears."""

import os
from types import SimpleNamespace

import pytest

from tpiedge.cli.terminal import Screen


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    """Standard output is a terminal of so many columns."""
    number: int = request.param
    terminal = SimpleNamespace(isatty=lambda: True, fileno=lambda: 1)
    monkeypatch.setattr("tpiedge.cli.terminal.sys", SimpleNamespace(stdout=terminal))
    monkeypatch.setattr(os, "get_terminal_size", lambda _fd: os.terminal_size((number, 0)))
    return number


@pytest.mark.parametrize(("columns", "lines"), [(0, 3), (80, 3), (20, 10)], indirect=["columns"])
def test_a_terminal_that_does_not_know_its_size_has_80_columns(
    columns: int, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Screen()
    for _ in range(30):
        screen.show("words ")
    assert len(capsys.readouterr().out.splitlines()) == lines


def test_a_file_gets_the_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().show("a\x1b[2J" + "b " * 100 + "\n")
    assert capsys.readouterr().out == "a [2J" + "b " * 100 + "\n"
