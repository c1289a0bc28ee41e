"""--parallel, --kv-tokens and --speculate, from wherever they are set."""

import copy
import json
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from tpiedge.cli.configured import ConfiguredGroup
from tpiedge.cli.master import master
from tpiedge.cli.run import run
from tpiedge.wire.control import SPECULATE_AUTO


def group() -> ConfiguredGroup:
    """`tpiedge master` and `tpiedge run` with bodies that only tell their flags."""
    root = ConfiguredGroup("tpiedge")
    for command in map(copy.copy, (master, run)):
        command.callback = lambda **values: click.echo(
            json.dumps([values.get(name) for name in ("parallel", "kv_tokens", "speculate")])
        )
        root.add_command(command)
    return root


def invoke(verb: str, *arguments: object, **environment: str) -> Result:
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(group(), [verb, "--model", "m", *words], env=environment)


def test_without_a_word_sixteen_answer_at_once_with_as_many_guesses_as_pay() -> None:
    assert json.loads(invoke("master").output) == [16, None, SPECULATE_AUTO]
    assert json.loads(invoke("run").output) == [None, None, SPECULATE_AUTO]


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        ([], {}, [4, 20_000, 3]),
        ([], {"TPIEDGE_MASTER_PARALLEL": "8", "TPIEDGE_MASTER_KV_TOKENS": "9000"}, [8, 9000, 3]),
        (["--speculate", "off"], {"TPIEDGE_MASTER_SPECULATE": "5"}, [4, 20_000, 0]),
        ([], {"TPIEDGE_MASTER_SPECULATE": "auto"}, [4, 20_000, SPECULATE_AUTO]),
        (["--parallel", 64, "--kv-tokens", 8, "--speculate", 15], {}, [64, 8, 15]),
    ],
)
def test_the_nearest_word_counts(
    tmp_path: Path, flags: list[object], environment: dict[str, str], expected: list[int]
) -> None:
    path = tmp_path / "t.toml"
    path.write_text("[master]\nparallel = 4\nkv-tokens = 20000\nspeculate = 3\n")
    assert json.loads(invoke("master", "--config", path, *flags, **environment).output) == expected


def test_a_file_may_say_a_word_or_a_number(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text('[run]\nspeculate = "off"\n')
    assert json.loads(invoke("run", "--config", path).output)[2] == 0
    path.write_text("[run]\nspeculate = true\n")
    assert "speculate in [run] must be a word in quotes or an integer" in str(
        invoke("run", "--config", path).exception
    )


@pytest.mark.parametrize("word", ["16", "0", "-1", "on", "1.5", "\N{SUPERSCRIPT TWO}", "9" * 5000, ""])
def test_what_is_no_number_of_guesses_is_refused_with_what_there_is(word: str) -> None:
    answer = invoke("master", "--speculate", word)
    assert answer.exit_code == 2
    assert "is none of 'auto', 'off' or a number from 1 to 15" in " ".join(answer.output.split())
    assert len(answer.output) < 400


@pytest.mark.parametrize("number", [0, 65])
def test_how_many_may_answer_at_once_is_limited(number: int) -> None:
    answer = invoke("master", "--parallel", number)
    assert answer.exit_code == 2
    assert "is not in the range 1<=x<=64" in answer.output


def test_a_cache_that_is_smaller_than_the_context_is_refused_before_anything_starts() -> None:
    root = ConfiguredGroup("tpiedge")
    root.add_command(master)
    answer = CliRunner().invoke(root, ["master", "no-model", "--context", "100", "--kv-tokens", "99"])
    assert "--kv-tokens 99 is less than the context of 100 tokens" in str(answer.exception)


@pytest.mark.parametrize(("begun", "words"), [("", ["auto", "off"]), ("o", ["off"]), ("x", [])])
def test_a_shell_completes_the_words(begun: str, words: list[str]) -> None:
    shell = ShellComplete(group(), {}, "tpiedge", "_TPIEDGE_COMPLETE")
    found = shell.get_completions(["run", "--speculate"], begun)
    assert [item.value for item in found] == words
