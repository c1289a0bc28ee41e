"""Flags of masters and of `run`, from wherever they are set, and the types that they all have."""

import copy
import json
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from tpiedge.cli.configured import ConfiguredGroup
from tpiedge.cli.main import cli
from tpiedge.cli.master import master
from tpiedge.cli.run import run
from tpiedge.cli.types import Location, Number
from tpiedge.wire.control import SPECULATE_AUTO

FLAGS = ("parallel", "kv_tokens", "speculate", "collective", "wire")
FILE = '[master]\nparallel = 4\nkv-tokens = 20000\nspeculate = 3\ncollective = "two-shot"\nwire = "bf16"\n'
OF_FILE = {
    "parallel": 4,
    "kv_tokens": 20_000,
    "speculate": 3,
    "collective": "two-shot",
    "wire": "bf16",
}


def invoke(verb: str, *arguments: object, **environment: str) -> Result:
    """`tpiedge master` or `tpiedge run` with a body that only tells its flags."""
    root = ConfiguredGroup("tpiedge")
    for command in map(copy.copy, (master, run)):
        command.callback = lambda **values: click.echo(json.dumps({name: values.get(name) for name in FLAGS}))
        root.add_command(command)
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(root, [verb, "--model", "m", *words], env=environment)


def test_without_a_word() -> None:
    """Links decide, nothing is rounded, and there are as many guesses as pay."""
    usual = {"speculate": SPECULATE_AUTO, "collective": "auto", "wire": "f32"}
    assert json.loads(invoke("master").output) == {"parallel": 16, "kv_tokens": None, **usual}
    assert json.loads(invoke("run").output) == {"parallel": None, "kv_tokens": None, **usual}


@pytest.mark.parametrize(
    ("flags", "environment", "changed"),
    [
        ([], {}, {}),
        ([], {"PARALLEL": "8", "KV_TOKENS": "9000"}, {"parallel": 8, "kv_tokens": 9000}),
        (["--speculate", "off"], {"SPECULATE": "5"}, {"speculate": 0}),
        (
            [],
            {"SPECULATE": "auto", "COLLECTIVE": "mesh"},
            {"speculate": SPECULATE_AUTO, "collective": "mesh"},
        ),
        (["--parallel", 64, "--speculate", 15], {}, {"parallel": 64, "speculate": 15}),
        (
            ["--collective", "ring", "--wire", "int8"],
            {"COLLECTIVE": "mesh", "WIRE": "f32"},
            {"collective": "ring", "wire": "int8"},
        ),
    ],
)
def test_the_nearest_word_counts(
    tmp_path: Path, flags: list[object], environment: dict[str, str], changed: dict[str, object]
) -> None:
    path = tmp_path / "t.toml"
    path.write_text(FILE)
    variables = {f"TPIEDGE_MASTER_{name}": value for name, value in environment.items()}
    found = invoke("master", "--config", path, *flags, **variables)
    assert json.loads(found.output) == OF_FILE | changed


def test_a_file_may_say_a_word_or_a_number(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text('[run]\nspeculate = "off"\n')
    assert json.loads(invoke("run", "--config", path).output)["speculate"] == 0
    path.write_text("[run]\nspeculate = true\n")
    wanted = "speculate in [run] must be a word in quotes or an integer"
    assert wanted in str(invoke("run", "--config", path).exception)


GUESSES = "is none of 'auto', 'off' or a number from 1 to 15"


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        *(
            ("--speculate", word, GUESSES)
            for word in ("16", "0", "-1", "on", "1.5", "\u00b2", "9" * 5000, "")
        ),
        ("--collective", "gossip", "'auto', 'star', 'mesh'"),
        ("--wire", "f16", "'f32', 'bf16', 'int8'"),
        ("--parallel", "0", "0 is not in the range 1<=x<="),
        ("--kv-tokens", "many", "is not a valid integer"),
    ],
)
def test_other_words_are_refused_with_what_there_is(flag: str, value: str, words: str) -> None:
    answer = invoke("master", flag, value)
    assert answer.exit_code == 2
    assert words in " ".join(answer.output.split())


def test_a_shell_is_offered_the_words() -> None:
    completions = ShellComplete(cli, {}, "tpiedge", "_TPIEDGE_COMPLETE").get_completions
    assert [item.value for item in completions(["master", "--speculate"], "")] == ["auto", "off"]


def test_every_verb_has_our_types_and_can_be_configured() -> None:
    """An empty path, and a number that is NaN, are refused by these types, and settings are read by --config."""

    def commands(command: click.Command, words: tuple[str, ...]) -> None:
        for param in command.params:
            assert not isinstance(param.type, click.Path) or isinstance(param.type, Location), (words, param)
            assert not isinstance(param.type, click.FloatRange) or isinstance(param.type, Number), (
                words,
                param,
            )
        children = command.commands if isinstance(command, click.Group) else {}
        if words and words[0] not in ("config", "completion") and not command.hidden:
            configurable = any("--config" in param.opts for param in command.params)
            assert configurable or children, words
        for name, child in children.items():
            commands(child, (*words, name))

    cli.load_all()
    commands(cli, ())
