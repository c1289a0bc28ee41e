"""Unknown names and wrong types, each with its place and what was meant."""

from pathlib import Path

import pytest

from tpiedge.errors import UserError
from tpiedge.settings.check import check_settings, problems
from tpiedge.settings.file import parse_settings
from tpiedge.settings.schema import Flag, Verb

RUN = Verb(
    ("run",),
    (
        Flag("nodes", "integer"), Flag("model"), Flag("memory", "size"), Flag("top-p", "number"),
        Flag("ignore-eos", "boolean"), Flag("stop", "text", repeatable=True), Flag("cache"),
    ),
)  # fmt: skip
DECODE = Verb(("bench", "decode"), (Flag("tokens", "integer"),))


def found(text):
    return list(problems(parse_settings(Path("t.toml"), text), [RUN, DECODE]))


def test_a_file_in_order():
    assert (
        found(
            '[common]\ncache = "/c"\nstate = "/s"\n[run]\nnodes = 3\nmodel = "demo"\nmemory = "4GB"\ntop-p = 1\n'
            'ignore-eos = true\nstop = ["a", "b"]\n[bench.decode]\ntokens = 4\n'
        )
        == []
    )
    assert found("[run]\nmemory = 4000000\n") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[rum]\nnodes = 1", "t.toml:1: there is no table [rum]; did you mean run?"),
        ("[bench]\ntokens = 1", "t.toml:1: there is no table [bench]"),
        ("[run]\nnode = 1", "t.toml:2: [run] has no key node; did you mean nodes?"),
        ("[run]\nzebra = 1", "t.toml:2: [run] has no key zebra"),
        ("[common]\ncash = 'x'", "t.toml:2: [common] has no key cash; did you mean cache?"),
        ("[common]\nnodes = 3", "t.toml:2: [common] has no key nodes"),
        ("nodes = 1", "t.toml:1: nodes stands before the first table: put it below one, like [run]"),
        ("run = 1", "t.toml:1: run is a table: write [run]"),
        ("[run]\nnodes = '3'", "t.toml:2: nodes in [run] must be an integer, not a text"),
        ("[run]\nnodes = 3.5", "t.toml:2: nodes in [run] must be an integer, not a number"),
        ("[run]\nnodes = true", "t.toml:2: nodes in [run] must be an integer, not true or false"),
        ("[run]\nmodel = 3", "t.toml:2: model in [run] must be a text in quotes, not an integer"),
        ("[run]\nignore-eos = 1", "t.toml:2: ignore-eos in [run] must be true or false, not an integer"),
        ("[run]\nstop = 'a'", "t.toml:2: stop in [run] must be a list, each of it a text in quotes, not a text"),
        ("[run]\nstop = ['a', 1]", "t.toml:2: stop in [run] must be a list, each of it a text in quotes, not a list"),
        ("[common]\ncache = 1", "t.toml:2: cache in [common] must be a text in quotes, not an integer"),
    ],
)  # fmt: skip
def test_one_problem(text, expected):
    (line,) = found(text)
    assert line.startswith(expected)


def test_the_first_of_several_is_raised_with_their_number():
    file = parse_settings(Path("t.toml"), "[run]\nnode = 1\nmodel = 3\n[rum]\n")
    with pytest.raises(UserError, match=r"has no key node.* \(and 2 more: tpiedge config check t.toml\)"):
        check_settings(file, [RUN])


def test_no_secret_is_quoted():
    verb = Verb(("master",), (Flag("api-key"),))
    (line,) = problems(parse_settings(Path("t.toml"), "[master]\napi-key = 31337\n"), [verb])
    assert "31337" not in line
