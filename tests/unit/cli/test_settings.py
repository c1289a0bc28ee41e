"""Settings of verbs: a variable counts before the file, the verb's own before what is common to all; unknown names and
wrong types are told with their place and with what was meant; secrets are never shown."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from tpiedge.cli.config import config
from tpiedge.cli.configured import (
    ConfiguredGroup,
    check_settings,
    check_variables,
    problems,
    resolve,
    unused_variables,
)
from tpiedge.cli.options import MEMORY
from tpiedge.cli.settings_file import find_settings, parse_settings, read_settings
from tpiedge.errors import UserError

PATH = Path("t.toml")


def verb(*options, **repeatable):
    """A command with these options, each "name" or ("name", type)."""
    made = [(one, None) if isinstance(one, str) else one for one in options]
    params = [click.Option([f"--{name}"], type=kind) for name, kind in made]
    return click.Command(
        "verb",
        params=[*params, *(click.Option([f"--{name}"], multiple=True) for name in repeatable)],
    )


RUN = verb(
    ("nodes", int), "model", ("memory", MEMORY), ("top-p", float), "cache", ("max-tokens", int), stop=True
)
RUN.params.append(click.Option(["--ignore-eos"], is_flag=True))
DECODE = verb(("tokens", int), ("prompt-tokens", int), "cache", stop=True)
VERBS = {"run": RUN, "bench.decode": DECODE}
FILE = parse_settings(PATH, '[common]\ncache = "/common"\n[bench.decode]\nprompt-tokens = 3\nstop = ["x"]\n')
GROUP = {"nodes": verb("json"), "nodes.revoke": verb("state")}
TOKENS = "TPIEDGE_BENCH_DECODE_PROMPT_TOKENS"


def test_every_value_has_its_line():
    file = parse_settings(
        Path("/etc/t.toml"),
        '[run]\n\nnodes = 3\n"shares" = "1,2,3"\n[ bench . decode ]\ntokens = 5 # few\n',
    )
    assert file.tables == {"run": {"nodes": 3, "shares": "1,2,3"}, "bench.decode": {"tokens": 5}}
    places = {("run", "shares"): ":4", ("bench.decode", "tokens"): ":6", ("bench.decode",): ":5", ("no",): ""}
    assert {words: file.place(*words) for words in places} == {
        words: f"/etc/t.toml{line}" for words, line in places.items()
    }


def test_dotted_keys_are_tables_and_an_empty_table_is_seen():
    file = parse_settings(PATH, "run.nodes = 3\nbench.decode.tokens = 5\n[runn]\n")
    assert file.tables == {"run": {"nodes": 3}, "bench.decode": {"tokens": 5}, "runn": {}}
    assert file.place("bench.decode", "tokens") == "t.toml:2"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"[run\nx = 1", "line 1"),
        (b"[run]\nnodes = 1\nnodes = 2\n", "line 3"),
        (b"\xff", "UTF-8"),
        (b"#" * 2**21, "1 MiB"),
    ],
    ids=["unclosed", "twice", "binary", "large"],
)
def test_what_is_no_settings_file(tmp_path, content, expected):
    path = tmp_path / "t.toml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=expected) as caught:
        read_settings(path)
    assert str(path) in str(caught.value)


def test_which_file_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("tpiedge.cli.settings_file.user_config_path", lambda _: tmp_path / "home")
    assert find_settings(None, {}) is None
    named, own, given = tmp_path / "named.toml", tmp_path / "home" / "config.toml", tmp_path / "given.toml"
    own.parent.mkdir()
    for path in (named, own, given):
        path.write_text("")
    assert find_settings(None, {}).path == own
    assert find_settings(None, {"TPIEDGE_CONFIG": str(named)}).path == named
    assert find_settings(given, {"TPIEDGE_CONFIG": str(named)}).path == given
    with pytest.raises(UserError, match=r"^cannot read the settings file .*: No such file"):
        find_settings(tmp_path / "no.toml", {})
    with pytest.raises(UserError, match=r"^TPIEDGE_CONFIG: cannot read"):
        find_settings(None, {"TPIEDGE_CONFIG": str(tmp_path / "no.toml")})


def values(environment, file=FILE):
    found = resolve("bench.decode", DECODE, environment, file)
    return {key: (item.value, item.origin) for key, item in found.items()}


OF_FILE = {
    "prompt-tokens": (3, "t.toml:4 [bench.decode] prompt-tokens"),
    "stop": (["x"], "t.toml:5 [bench.decode] stop"),
    "cache": ("/common", "t.toml:2 [common] cache"),
}
OWN, COMMON, STOP = "TPIEDGE_BENCH_DECODE_CACHE", "TPIEDGE_CACHE", "TPIEDGE_BENCH_DECODE_STOP"


@pytest.mark.parametrize(
    ("environment", "changed"),
    [
        ({}, {}),
        ({TOKENS: "7"}, {"prompt-tokens": ("7", TOKENS)}),
        ({TOKENS: ""}, {}),
        ({COMMON: "/c"}, {"cache": ("/c", COMMON)}),
        ({COMMON: "/c", OWN: "/o"}, {"cache": ("/o", OWN)}),
        ({"TPIEDGE_STOP": "y"}, {}),
        ({STOP: "one text"}, {"stop": (["one text"], STOP)}),
        ({STOP: ' ["a b", "c"]'}, {"stop": (["a b", "c"], STOP)}),
        ({STOP: "[]"}, {"stop": ([], STOP)}),
    ],
)
def test_which_value_counts(environment, changed):
    assert values(environment) == OF_FILE | changed
    assert values(environment, None) == changed


def test_the_verbs_own_table_counts_before_the_common_one():
    specific = parse_settings(PATH, '[common]\ncache = "/c"\n[bench.decode]\ncache = "/o"\n')
    assert values({}, specific)["cache"][0] == "/o"


def test_a_broken_list_in_a_variable():
    with pytest.raises(UserError, match="TPIEDGE_BENCH_DECODE_STOP is not a list"):
        values({STOP: "[a"})


def test_variables_that_set_nothing():
    environment = {"TPIEDGE_BENCH_DECODE_CASH": "x", STOP: "x", "PATH": "/bin"}
    assert unused_variables(VERBS, environment) == ["TPIEDGE_BENCH_DECODE_CASH"]
    subcommand = {"TPIEDGE_NODES_JSON": "1", "TPIEDGE_NODES_REVOKE_STATE": "/s", "TPIEDGE_NODES_JSN": "1"}
    assert unused_variables(GROUP, subcommand) == ["TPIEDGE_NODES_JSN"]


def test_a_misspelt_variable_is_refused_like_a_misspelt_key():
    with pytest.raises(UserError, match="RUN_MAX_TOKNS sets nothing; did you mean TPIEDGE_RUN_MAX_TOKENS"):
        check_variables("run", VERBS, {"TPIEDGE_RUN_MAX_TOKNS": "3"})


def test_a_variable_like_none_is_told_by_the_verb_that_it_seems_to_belong_to():
    environment = {"TPIEDGE_NODES_REVOKE_PORT_7070_TCP": "tcp://10.0.0.1:7070", "TPIEDGE_RUN_MAX_TOKENS": "3"}
    assert check_variables("nodes", GROUP, environment) == []
    assert check_variables("nodes.revoke", GROUP, environment) == ["TPIEDGE_NODES_REVOKE_PORT_7070_TCP"]
    assert check_variables("run", VERBS, environment) == []


TEXT, INTEGER = "must be a text in quotes, not an integer", "must be an integer, not"
LIST = "stop in [run] must be a list, each of it a text in quotes, not a"


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
        ("[run]\nnodes = '3'", f"t.toml:2: nodes in [run] {INTEGER} a text"),
        ("[run]\nnodes = 3.5", f"t.toml:2: nodes in [run] {INTEGER} a number"),
        ("[run]\nnodes = true", f"t.toml:2: nodes in [run] {INTEGER} true or false"),
        ("[run]\nmodel = 3", f"t.toml:2: model in [run] {TEXT}"),
        ("[run]\nignore-eos = 1", "t.toml:2: ignore-eos in [run] must be true or false, not an integer"),
        ("[run]\nstop = 'a'", f"t.toml:2: {LIST} text"),
        ("[run]\nstop = ['a', 1]", f"t.toml:2: {LIST} list"),
        ("[common]\ncache = 1", f"t.toml:2: cache in [common] {TEXT}"),
        (
            '[common]\ncache = "/c"\nstate = "/s"\n[run]\nnodes = 3\nmodel = "demo"\nmemory = "4GB"\ntop-p = 1\n'
            'ignore-eos = true\nstop = ["a", "b"]\n[bench.decode]\ntokens = 4\n',
            "",
        ),
        ("[run]\nmemory = 4000000\n", ""),
    ],
)
def test_problems_of_a_file(text, expected):
    found = "\n".join(problems(parse_settings(PATH, text), VERBS))
    assert found.startswith(expected)
    assert "\n" not in found
    assert bool(found) == bool(expected)


def test_the_first_of_several_is_raised_with_their_number():
    file = parse_settings(PATH, "[run]\nnode = 1\nmodel = 3\n[rum]\n")
    with pytest.raises(UserError, match=r"has no key node.* \(and 2 more: tpiedge config check t.toml\)"):
        check_settings(file, VERBS)


def test_no_secret_is_quoted():
    (line,) = problems(parse_settings(PATH, "[master]\napi-key = 31337\n"), {"master": verb("api-key")})
    assert "31337" not in line


@pytest.fixture
def group(monkeypatch):
    """A group with verbs of its own: `invoke` runs it in an environment, `seen` is that of the last `master`."""
    seen = {}

    @click.command()
    @click.option("--model", "model_name", required=True)
    @click.option("--min-workers", type=click.IntRange(1), default=1)
    @click.option("--api-key", envvar="TPIEDGE_API_KEY")
    @click.option("--insecure/--secure", default=False)
    @click.option("-v", "--verbose", count=True)
    @click.option("--state", type=click.Path())
    def master(**values):
        seen.update(os.environ)
        if values["model_name"] == "bad":
            raise UserError("--model bad cannot be served")
        click.echo(json.dumps(values))

    @click.command(hidden=True)
    @click.option("--orders", type=int, default=0)
    def inner(orders):
        click.echo(orders)

    root = ConfiguredGroup("tpiedge")
    for command in (master, inner, config):
        root.add_command(command)

    def invoke(*arguments, **environment):
        return CliRunner().invoke(root, [str(argument) for argument in arguments], env=environment)

    return SimpleNamespace(invoke=invoke, seen=seen)


def test_every_kind_of_flag(group, tmp_path):
    path = tmp_path / "t.toml"
    path.write_text(
        '[common]\nstate = "/s"\n[master]\nmodel = "m"\nmin-workers = 3\ninsecure = true\nverbose = 2\n'
    )
    expected = {
        "model_name": "m",
        "min_workers": 3,
        "api_key": None,
        "insecure": True,
        "verbose": 2,
        "state": "/s",
    }
    assert json.loads(group.invoke("master", "--config", path).output) == expected
    changed = group.invoke("master", "--config", path, "--secure", TPIEDGE_MASTER_MIN_WORKERS="4").output
    assert json.loads(changed) == expected | {"insecure": False, "min_workers": 4}


def test_secrets_are_starred(group, tmp_path):
    path = tmp_path / "t.toml"
    path.write_text('[master]\napi-key = "hush"\n')
    shown = group.invoke("config", "show", "--config", path)
    assert "***" in shown.output
    assert "hush" not in shown.output
    assert "hush" not in group.invoke("config", "show", "--json", TPIEDGE_MASTER_API_KEY="hush").output
    assert json.loads(group.invoke("config", "show", "--json").output)["master"]["api-key"]["value"] is None


def test_the_origin_of_a_value_that_the_verb_refuses(group):
    error = group.invoke("master", TPIEDGE_MASTER_MODEL="bad").exception
    assert str(error) == "--model bad cannot be served (--model is from TPIEDGE_MASTER_MODEL)"
    assert str(group.invoke("master", "--model", "bad").exception) == "--model bad cannot be served"
    error = group.invoke("master", TPIEDGE_MASTER_MIN_WORKERS="0").exception
    assert isinstance(error, UserError)
    assert str(error).startswith("TPIEDGE_MASTER_MIN_WORKERS: --min-workers: 0 is not in the range")


def test_what_is_for_processes_alone_cannot_be_set(group, tmp_path):
    """A hidden command neither shows nor takes settings."""
    path = tmp_path / "t.toml"
    path.write_text("[inner]\norders = 1\n")
    assert "inner" not in group.invoke("config", "show").output
    assert "there is no table [inner]" in str(group.invoke("config", "check", path).exception)
    assert group.invoke("inner", TPIEDGE_INNER_ORDERS="3").output == "0\n"


@pytest.mark.parametrize("name", ["TPIEDGE_MASTER_API_KEY", "TPIEDGE_API_KEY"])
def test_a_secret_leaves_the_environment_once_it_was_read(group, name):
    """No process that is started from now on can read it, whether settings or click found it."""
    kept = {"TPIEDGE_MASTER_MODEL": "m", "HF_TOKEN": "t"}
    secrets = {"TPIEDGE_CHAT_API_KEY": "k-3", name: "k-1"}
    assert json.loads(group.invoke("master", **kept, **secrets).output)["api_key"] == "k-1"
    assert group.seen.keys() & {*kept, *secrets} == kept.keys()
