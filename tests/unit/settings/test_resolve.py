"""The environment before the file, the verb's own before what is common to all."""

from pathlib import Path

import pytest

from tpiedge.errors import UserError
from tpiedge.settings.file import parse_settings
from tpiedge.settings.resolve import check_variables, resolve, unused_variables
from tpiedge.settings.schema import Flag, Verb

DECODE = Verb(
    ("bench", "decode"),
    (Flag("prompt-tokens", "integer"), Flag("stop", "text", repeatable=True), Flag("cache")),
)
FILE = parse_settings(
    Path("t.toml"), '[common]\ncache = "/common"\n[bench.decode]\nprompt-tokens = 3\nstop = ["x"]\n'
)


RUN = Verb(("run",), (Flag("max-tokens", "integer"), Flag("memory")))


def values(environment, file=FILE):
    return {key: (item.value, item.origin) for key, item in resolve(DECODE, environment, file).items()}


def test_nothing_is_set():
    assert values({}, None) == {}


def test_the_file():
    assert values({}) == {
        "prompt-tokens": (3, "t.toml:4 [bench.decode] prompt-tokens"),
        "stop": (["x"], "t.toml:5 [bench.decode] stop"),
        "cache": ("/common", "t.toml:2 [common] cache"),
    }


def test_the_environment_comes_first():
    name = "TPIEDGE_BENCH_DECODE_PROMPT_TOKENS"
    assert values({name: "7"})["prompt-tokens"] == ("7", name)
    assert values({name: ""})["prompt-tokens"][0] == 3


def test_common_flags_have_a_common_variable():
    own, common = "TPIEDGE_BENCH_DECODE_CACHE", "TPIEDGE_CACHE"
    assert values({common: "/c"})["cache"] == ("/c", common)
    assert values({common: "/c", own: "/o"})["cache"] == ("/o", own)
    assert values({"TPIEDGE_STOP": "x"}, None) == {}
    specific = parse_settings(Path("t.toml"), '[common]\ncache = "/c"\n[bench.decode]\ncache = "/o"\n')
    assert values({}, specific)["cache"][0] == "/o"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("one text", ["one text"]), ('["a b", "c"]', ["a b", "c"]), (' ["a"]', ["a"]), ("[]", [])],
)
def test_lists_in_a_variable(text, expected):
    assert values({"TPIEDGE_BENCH_DECODE_STOP": text})["stop"][0] == expected


def test_a_broken_list_in_a_variable():
    with pytest.raises(UserError, match="TPIEDGE_BENCH_DECODE_STOP is not a list"):
        values({"TPIEDGE_BENCH_DECODE_STOP": "[a"})


def test_variables_that_set_nothing():
    environment = {"TPIEDGE_BENCH_DECODE_CASH": "x", "TPIEDGE_BENCH_DECODE_STOP": "x", "PATH": "/bin"}
    assert unused_variables([DECODE], environment) == ["TPIEDGE_BENCH_DECODE_CASH"]


def test_a_subcommands_variable_is_not_a_typing_error_of_its_group():
    group, child = Verb(("nodes",), (Flag("json", "boolean"),)), Verb(("nodes", "revoke"), (Flag("state"),))
    environment = {"TPIEDGE_NODES_JSON": "1", "TPIEDGE_NODES_REVOKE_STATE": "/s", "TPIEDGE_NODES_JSN": "1"}
    assert unused_variables([group, child], environment) == ["TPIEDGE_NODES_JSN"]


def test_a_misspelt_variable_is_refused_like_a_misspelt_key():
    with pytest.raises(
        UserError, match="TPIEDGE_RUN_MAX_TOKNS sets nothing; did you mean TPIEDGE_RUN_MAX_TOKENS"
    ):
        check_variables(RUN, [RUN], {"TPIEDGE_RUN_MAX_TOKNS": "3"})


def test_a_variable_like_none_is_told_by_the_verb_that_it_seems_to_belong_to():
    environment = {"TPIEDGE_NODES_REVOKE_PORT_7070_TCP": "tcp://10.0.0.1:7070", "TPIEDGE_RUN_MAX_TOKENS": "3"}
    group, child = Verb(("nodes",), (Flag("json", "boolean"),)), Verb(("nodes", "revoke"), (Flag("state"),))
    assert check_variables(group, [group, child], environment) == []
    assert check_variables(child, [group, child], environment) == ["TPIEDGE_NODES_REVOKE_PORT_7070_TCP"]
    assert check_variables(RUN, [RUN], environment) == []
