import copy
import json

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


def invoke(verb: str, *arguments: str) -> Result:
    root = ConfiguredGroup("tpiedge")
    for command in map(copy.copy, (master, run)):
        command.callback = lambda **values: click.echo(json.dumps([values.get(name) for name in FLAGS]))
        root.add_command(command)
    return CliRunner().invoke(root, [verb, "--model", "m", *arguments])


def test_without_a_word_links_decide_nothing_is_rounded_and_there_are_as_many_guesses_as_pay() -> None:
    usual = [None, SPECULATE_AUTO, "auto", "f32"]
    assert json.loads(invoke("master").output) == [16, *usual]
    assert json.loads(invoke("run").output) == [None, *usual]
    words = ("--speculate", "off", "--wire", "int8")
    assert json.loads(invoke("run", *words).output) == [None, None, 0, "auto", "int8"]


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
    def flags(command: click.Command) -> set[str]:
        return {flag for param in command.params if isinstance(param, click.Option) for flag in param.opts}

    def commands(command: click.Command, words: tuple[str, ...]) -> None:
        for param in command.params:
            assert not isinstance(param.type, click.Path) or isinstance(param.type, Location), (words, param)
            assert not isinstance(param.type, click.FloatRange) or isinstance(param.type, Number), words
        children = command.commands if isinstance(command, click.Group) else {}
        shared = flags(command) - {"--all"} if words else set()  # `tpiedge nodes --all` lists
        for child in children.values():
            assert shared <= flags(child), words
        if words and words[0] not in ("config", "completion") and not command.hidden:
            configurable = any("--config" in param.opts for param in command.params)
            assert configurable or children, words
        for name, child in children.items():
            commands(child, (*words, name))

    cli.load()
    commands(cli, ())
