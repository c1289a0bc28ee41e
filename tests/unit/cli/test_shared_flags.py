import copy
import json
import re
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from tpiedge.cli.chat_client import chat
from tpiedge.cli.main import cli
from tpiedge.cli.master import master
from tpiedge.cli.options import Location, Number, usage_words
from tpiedge.cli.run import run
from tpiedge.cli.sampling_flags import sampling_of, sampling_options, with_usual
from tpiedge.cli.settings import ConfiguredGroup
from tpiedge.errors import UserError
from tpiedge.wire.control import SPECULATE_AUTO
from tpiedge.wire.requests import Sampling

FLAGS = ("parallel", "kv_tokens", "speculate", "collective", "wire")


def invoke(verb: str, *arguments: str) -> Result:
    root = ConfiguredGroup("tpiedge")
    for command in map(copy.copy, (master, run)):
        command.callback = lambda **values: click.echo(json.dumps([values.get(name) for name in FLAGS]))
        root.add_command(command)
    return CliRunner().invoke(root, [verb, "--model", "m", *arguments])


def test_collective_wire_and_speculate_have_their_defaults() -> None:
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
def test_invalid_flag_values_are_refused_with_the_allowed_ones(flag: str, value: str, words: str) -> None:
    answer = invoke("master", flag, value)
    assert answer.exit_code == 2
    assert words in " ".join(answer.output.split())


def test_every_command_uses_our_types_and_accepts_config() -> None:
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


_RUN = click.Command(
    "run",
    params=[
        click.Option(["--workers"], type=click.IntRange(0, 126)),
        click.Option(["--seed"], type=click.IntRange(min=1)),
        click.Option(["--temperature"], type=float),
        click.Option(["--top-p"], type=Number(0, 1)),
        click.Option(["--model"]),
        click.Option(["--nodes"]),
    ],
)
_CHAT = click.Command("chat", params=[click.Argument(["prompt_argument"])])
_SHELL = click.Argument(["shell"], type=click.Choice(["bash", "zsh"]))
_COMMANDS = [
    click.Command("complete", params=[_SHELL]),
    click.Command("ls", params=[click.Argument(["name"])]),
]
_GROUP = click.Group("tpiedge", commands=_COMMANDS)
_WORKERS = "is not a whole number: give one from 0 to 126"


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        (_RUN, "--workers x", f"Invalid value for '--workers': 'x' {_WORKERS}"),
        (_RUN, "--seed x", "Invalid value for '--seed': 'x' is not a whole number: give one from 1"),
        (_RUN, "--temperature hot", "Invalid value for '--temperature': 'hot' is not a number"),
        (_RUN, "--top-p x", "Invalid value for '--top-p': 'x' is not a number: give one from 0 to 1"),
        (_RUN, "--top-p nan", "Invalid value for '--top-p': nan is not a number"),
        (_RUN, "--modl x", "No such option '--modl'. Did you mean '--model'?"),
        (_RUN, "--zebra", "No such option '--zebra': 'tpiedge --help' lists what there is"),
        (_RUN, "x", "Got unexpected extra argument (x): 'tpiedge --help' lists what there is"),
        (_CHAT, "x y", "Got unexpected extra argument (y): put the prompt in quotes"),
        (_GROUP, "lss", "No such command 'lss'. Did you mean 'ls'?"),
        (_GROUP, "zebra", "No such command 'zebra': 'tpiedge --help' lists what there is"),
        (_GROUP, "complete", "Missing argument '{bash|zsh}'. Choose from: bash, zsh"),
        (_GROUP, "ls", "Missing argument 'NAME'."),
    ],
)
def test_usage_errors_say_what_is_allowed(command: click.Command, arguments: str, words: str) -> None:
    with pytest.raises(click.ClickException) as raised:
        command.main(arguments.split(), "tpiedge", standalone_mode=False)
    assert " ".join(usage_words(raised.value).split()) == words  # as they are printed


def test_flags_that_users_need_come_first() -> None:
    lines = invoke("run", "--help").output
    places = [lines.index(f"  {flag} ") for flag in ("--prompt", "--system", "--precision", "--memory")]
    rare = [lines.index(f"  {flag} ") for flag in ("--threads", "--nodes", "--collective", "--testbed")]
    assert places + rare == sorted(places + rare)


USUAL = Sampling(temperature=0.8, top_p=0.95)


def drawn(*flags: str) -> tuple[Sampling, Sampling]:
    found: list[Sampling] = []

    @click.command()
    @sampling_options
    def command(**values: Any) -> None:
        sampling = sampling_of(values)
        found.extend((sampling, with_usual(sampling, USUAL)))

    ended = CliRunner().invoke(command, flags)
    if ended.exception is not None:
        raise ended.exception
    return found[0], found[1]


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--temperature", "2.5", "--temperature is 2.5: give a number from 0.0 to 2.0"),
        ("--top-p", "0", "--top-p is 0.0: give a number from 1e-09 to 1.0"),
        ("--seed", str(2**64), f"--seed is {2**64}: give a number from 0 to {2**64 - 1}"),
    ],
)
def test_chat_and_run_have_the_same_ranges(flag: str, value: str, words: str) -> None:
    refused = CliRunner().invoke(chat, [flag, value]).exception
    assert str(refused) == words
    with pytest.raises(UserError, match=re.escape(words)):
        drawn(flag, value)


def test_seed_is_random_unless_given() -> None:
    seeds = {sampling.seed for _ in range(8) for sampling in drawn()}
    assert len(seeds) == 8, "a new one each time, also with what is usual for the model"
    assert {sampling.seed for sampling in drawn("--seed", "7")} == {7}
    assert {sampling.seed for sampling in drawn("--seed", "0")} == {0}


def test_model_sampling_defaults_fill_missing_flags() -> None:
    said, of_chat = drawn("--top-p", "0.5")
    assert (said.temperature, said.top_p) == (0.0, 0.5)
    assert (of_chat.temperature, of_chat.top_p) == (0.8, 0.5)
