"""Flags of masters and of `run`, from wherever they are set, and the types that they all have."""

import copy
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tpiedge.cli.main import cli
from tpiedge.cli.master import master
from tpiedge.cli.options import Location, Number
from tpiedge.cli.run import run
from tpiedge.cli.settings import ConfiguredGroup
from tpiedge.wire.control import SPECULATE_AUTO

FLAGS = ("parallel", "kv_tokens", "speculate", "collective", "wire")
FILE = '[master]\nparallel = 4\nkv-tokens = 20000\nspeculate = 3\ncollective = "two-shot"\nwire = "bf16"\n'
USUAL = (16, None, SPECULATE_AUTO, "auto", "f32")


def invoke(verb: str, *arguments: object, **environment: str) -> Result:
    """`tpiedge master` or `tpiedge run` with a body that only tells its flags."""
    root = ConfiguredGroup("tpiedge")
    for command in map(copy.copy, (master, run)):
        command.callback = lambda **values: click.echo(json.dumps([values.get(name) for name in FLAGS]))
        root.add_command(command)
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(root, [verb, "--model", "m", *words], env=environment)


@pytest.mark.parametrize(
    ("flags", "environment", "values"),
    [
        ("", {}, (4, 20_000, 3, "two-shot", "bf16")),
        ("", {"PARALLEL": "8", "SPECULATE": "auto"}, (8, 20_000, SPECULATE_AUTO, "two-shot", "bf16")),
        ("--speculate off --wire int8", {"SPECULATE": "5"}, (4, 20_000, 0, "two-shot", "int8")),
    ],
)
def test_the_nearest_word_counts(
    tmp_path: Path, flags: str, environment: dict[str, str], values: tuple[object, ...]
) -> None:
    path = tmp_path / "t.toml"
    path.write_text(FILE)
    variables = {f"TPIEDGE_MASTER_{name}": value for name, value in environment.items()}
    assert json.loads(invoke("master", "--config", path, *flags.split(), **variables).output) == list(values)
    # Without a word links decide, nothing is rounded, and there are as many guesses as pay.
    assert json.loads(invoke("master").output) == list(USUAL)
    assert json.loads(invoke("run").output) == [None, *USUAL[1:]]


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        *(
            ("--speculate", word, "is none of 'auto', 'off' or a number from 1")
            for word in ("16", "0", "\u00b2", "")
        ),
        ("--collective", "gossip", "'auto', 'star', 'mesh'"),
        ("--wire", "f16", "'f32', 'bf16', 'int8'"),
        ("--parallel", "0", "0 is not in the range 1<=x<="),
    ],
)
def test_other_words_are_refused_with_what_there_is(flag: str, value: str, words: str) -> None:
    answer = invoke("master", flag, value)
    assert answer.exit_code == 2
    assert words in " ".join(answer.output.split())


def test_every_verb_has_our_types_and_can_be_configured() -> None:
    """An empty path, and a number that is NaN, are refused by these types, and settings are read by --config."""

    def commands(command: click.Command, words: tuple[str, ...]) -> None:
        for param in command.params:
            assert not isinstance(param.type, click.Path) or isinstance(param.type, Location), (words, param)
            assert not isinstance(param.type, click.FloatRange) or isinstance(param.type, Number), words
        children = command.commands if isinstance(command, click.Group) else {}
        if words and words[0] not in ("config", "completion") and not command.hidden:
            configurable = any("--config" in param.opts for param in command.params)
            assert configurable or children, words
        for name, child in children.items():
            commands(child, (*words, name))

    cli.load_all()
    commands(cli, ())
