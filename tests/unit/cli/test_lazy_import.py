import pkgutil
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tpiedge.cli.main import VERBS, cli
from tpiedge.cli.settings import ConfiguredGroup

VERB = """
import click

@click.command()
@click.option("--much")
def {name}(much):
    "What {name} does."
    click.echo("{name} " + str(much))
"""
NAMES = ("lazy_walk", "lazy_talk")


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConfiguredGroup:
    monkeypatch.syspath_prepend(tmp_path)
    made = ConfiguredGroup("root")
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(VERB.format(name=name))
        monkeypatch.delitem(sys.modules, name, raising=False)
        made.add_lazy(name, f"{name}:{name}", f"What {name} does.")
    return made


def imported() -> list[str]:
    return [name for name in NAMES if name in sys.modules]


def test_help_lists_lazy_commands_without_importing_them(group: ConfiguredGroup) -> None:
    shown = CliRunner().invoke(group, ["--help"])
    assert "lazy_talk  What lazy_talk does." in shown.output
    assert "lazy_walk  What lazy_walk does." in shown.output
    assert imported() == []


def test_running_a_lazy_command_imports_only_that_command(group: ConfiguredGroup) -> None:
    for _ in range(2):
        done = CliRunner().invoke(group, ["lazy_walk", "--much", "3"])
        assert (done.exit_code, done.output) == (0, "lazy_walk 3\n")
    assert imported() == ["lazy_walk"]


@pytest.mark.parametrize("name", VERBS)
def test_listed_help_line_matches_the_commands_own_help(name: str) -> None:
    path, line = VERBS[name]
    command: click.Command = pkgutil.resolve_name(f"tpiedge.{path}")
    assert command.name == name
    assert isinstance(cli, ConfiguredGroup)
    cli.load(name)
    assert command.get_short_help_str(1000) == line
