"""--collective and --wire of a master, from wherever they are set."""

import copy
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tpiedge.cli.configured import ConfiguredGroup
from tpiedge.cli.master import master


def invoke(*arguments: object, **environment: str) -> Result:
    """The flags of `tpiedge master` with a body that only tells them."""
    command = copy.copy(master)
    command.callback = lambda **values: click.echo(json.dumps([values["collective"], values["wire"]]))
    root = ConfiguredGroup("tpiedge")
    root.add_command(command, "master")
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(root, ["master", "--model", "m", *words], env=environment)


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        ([], {}, ["two-shot", "bf16"]),
        ([], {"TPIEDGE_MASTER_COLLECTIVE": "mesh"}, ["mesh", "bf16"]),
        (["--collective", "ring"], {"TPIEDGE_MASTER_COLLECTIVE": "mesh"}, ["ring", "bf16"]),
        (["--wire", "int8"], {"TPIEDGE_MASTER_WIRE": "f32"}, ["two-shot", "int8"]),
    ],
)
def test_the_nearest_word_counts(
    tmp_path: Path, flags: list[str], environment: dict[str, str], expected: list[str]
) -> None:
    path = tmp_path / "t.toml"
    path.write_text('[master]\ncollective = "two-shot"\nwire = "bf16"\n')
    answer = invoke("--config", path, *flags, **environment)
    assert json.loads(answer.output) == expected


def test_without_a_word_links_decide_and_nothing_is_rounded() -> None:
    assert json.loads(invoke().output) == ["auto", "f32"]


@pytest.mark.parametrize(
    ("flags", "allowed"),
    [(["--collective", "gossip"], "'auto', 'star', 'mesh'"), (["--wire", "f16"], "'f32', 'bf16', 'int8'")],
)
def test_other_words_are_refused_with_those_that_there_are(flags: list[str], allowed: str) -> None:
    answer = invoke(*flags)
    assert answer.exit_code == 2
    assert allowed in answer.output
