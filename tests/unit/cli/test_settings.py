import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tpiedge.cli import config, settings
from tpiedge.cli.main import cli
from tpiedge.cli.options import MEMORY
from tpiedge.errors import UserError

CONFIGS = Path(__file__).parents[3] / "configs"
COMMENTED = re.compile(r"^#(?=[a-z-]+ = )", re.MULTILINE)


def verb(*options: object) -> click.Command:
    """A command with these options, each "name" or ("name", type), and --stop, which can be repeated."""
    made = [one if isinstance(one, tuple) else (one, None) for one in options]
    params: list[click.Parameter] = [click.Option([f"--{name}"], type=kind) for name, kind in made]
    return click.Command("verb", params=[*params, click.Option(["--stop"], multiple=True)])


VERBS = {
    "run": verb(("nodes", int), "model", ("memory", MEMORY), "cache", ("max-tokens", int), ("json", bool)),
    "bench.decode": verb(("tokens", int), ("prompt-tokens", int), "cache"),
}


@pytest.fixture
def read(tmp_path: Path):  # type: ignore[no-untyped-def]
    def made(content: str | bytes) -> settings.SettingsFile:
        path = tmp_path / "t.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return settings.read_settings(path)

    return made


def test_settings_file_gives_the_line_of_each_value(read) -> None:  # type: ignore[no-untyped-def]
    file = read(
        '[run]\n\nnodes = 3\n"shares" = "1,2,3"\n[ bench . decode ]\ntokens = 5 # few\nx = true\n[runn]\n'
    )
    assert file.tables == {
        "run": {"nodes": 3, "shares": "1,2,3"},
        "bench.decode": {"tokens": 5, "x": True},
        "runn": {},
    }
    places = {("run", "shares"): ":4", ("bench.decode", "tokens"): ":6", ("bench.decode",): ":5", ("no",): ""}
    assert {words: file.place(*words) for words in places} == {
        words: f"{file.path}{line}" for words, line in places.items()
    }
    assert read("run.nodes = 3\nbench.decode.stop = [5]\n").tables["bench.decode"] == {"stop": [5]}


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"[run\nx = 1", "line 1"), (b"[run]\nnodes = 1\nnodes = 2\n", "line 3"), (b"\xff", "can't decode")],
)
def test_invalid_settings_file_is_refused(read, content: bytes, expected: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=f"settings file .*t.toml is not valid TOML: .*{expected}"):
        read(content)


def test_settings_files_are_tried_in_precedence_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpiedge.cli.settings.user_config_path", lambda _: tmp_path / "home")
    assert settings.find_settings(None, {}) is None
    named, own, given = tmp_path / "named.toml", tmp_path / "home" / "config.toml", tmp_path / "given.toml"
    own.parent.mkdir()
    for path in (named, own, given):
        path.write_text("")
    variable = {"TPIEDGE_CONFIG": str(named)}
    found = [
        settings.find_settings(None, {}),
        settings.find_settings(None, variable),
        settings.find_settings(given, variable),
    ]
    assert [file and file.path for file in found] == [own, named, given]
    with pytest.raises(UserError, match=r"^cannot read the settings file .*: No such file"):
        settings.find_settings(tmp_path / "no.toml", {})
    with pytest.raises(UserError, match=r"^TPIEDGE_CONFIG: cannot read"):
        settings.find_settings(None, {"TPIEDGE_CONFIG": str(tmp_path / "no.toml")})


OWN, COMMON = "TPIEDGE_BENCH_DECODE_CACHE", "TPIEDGE_CACHE"
STOP, TOKENS = "TPIEDGE_BENCH_DECODE_STOP", "TPIEDGE_BENCH_DECODE_PROMPT_TOKENS"


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
def test_environment_variables_override_the_settings_file(
    read, environment: dict[str, str], changed: dict[str, object]
) -> None:  # type: ignore[no-untyped-def]
    file = read('[common]\ncache = "/common"\n[bench.decode]\nprompt-tokens = 3\nstop = ["x"]\n')
    of_file = {
        "prompt-tokens": ("3", f"{file.path}:4 [bench.decode] prompt-tokens"),
        "stop": (["x"], f"{file.path}:5 [bench.decode] stop"),
        "cache": ("/common", f"{file.path}:2 [common] cache"),
    }
    for one, usual in ((file, of_file), (None, {})):
        found = settings.resolve("bench.decode", VERBS["bench.decode"], environment, one)
        assert {key: (item.value, item.origin) for key, item in found.items()} == usual | changed


def test_unused_variables_are_reported_with_similar_names() -> None:
    port = "TPIEDGE_RUN_PORT_7070_TCP"  # as container engines set them
    environment = {"TPIEDGE_RUN_MAX_TOKNS": "3", port: "x", STOP: "x", "PATH": "/bin"}
    found = settings.unused_variables(VERBS, environment)
    assert found == {"TPIEDGE_RUN_MAX_TOKNS": "TPIEDGE_RUN_MAX_TOKENS", port: ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[rum]\nnodes = 1", "1: there is no table [rum]; did you mean run?"),
        ("[bench]\ntokens = 1", "1: there is no table [bench]"),
        ("[run]\nnode = 1", "2: [run] has no key node; did you mean nodes?"),
        ("[common]\ncash = 'x'", "2: [common] has no key cash; did you mean cache?"),
        ("[common]\nnodes = 3", "2: [common] has no key nodes"),
        ("run = 1", "1: run is a table: write [run]"),
        ('["bench.dekode"]', "1: there is no table [bench.dekode]; did you mean bench.decode?"),
        ("[run]\nnodes = {a = 1}", "2: there is no table [run.nodes]"),
        ("[run]\nnodes = '3'", "2: nodes in [run] must be an integer"),
        ("[run]\njson = 'yes'", "2: json in [run] must be true or false"),
        ("[run]\nmodel = 2020-01-01", "2: model in [run] must be a text in quotes"),
        ("[run]\nmemory = true", "2: memory in [run] must be a text in quotes or an integer"),
        ("[run]\nstop = 'a'", "2: stop in [run] must be a list, each of it a text in quotes"),
        ("[run]\nstop = ['a', 1]", "2: stop in [run] must be a list, each of it a text in quotes"),
        ("[common]\ncache = 1", "2: cache in [common] must be a text in quotes"),
        ("nodes = 1", "1: nodes stands before the first table: put it below one, like [run]"),
        ('[common]\ncache = "/c"\nstate = "/s"\n[run]\nstop = ["a"]\n[bench.decode]\ntokens = 4\n', ""),
    ],
)
def test_unknown_names_and_wrong_types_are_reported(read, text: str, expected: str) -> None:  # type: ignore[no-untyped-def]
    file = read(text)
    found = "\n".join(settings.problems(file, VERBS))
    assert found.startswith(f"{file.path}:{expected}" if expected else "")
    assert (found == "") == (expected == "")
    assert "\n" not in found


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        *((f"window = {value}", "") for value in ("4", '"4"', '"500MB"')),
        ("window = 0", "0 blocks are out of range: 1 to 10000"),
        ("window = -1", "not a size: '-1'"),
        ("memory = -1", "not a size: '-1'"),
        ("memory = 5000000000", "5000000000 has no unit: did you mean 5.0GB?"),
        ("memory = 1500000", "1500000 has no unit: write it like 4GB"),
        ("memory = 4096", "4096 has no unit: did you mean 4096MB?"),
        ("ignore-eos = true", ""),
        ("temperature = 1", ""),
        ("speculate = 'off'", ""),
        ("speculate = 16", "'16' is none of 'auto', 'off' or a number from 1 to 15"),
    ],
)
def test_settings_values_are_checked_like_flags(read, setting: str, complaint: str) -> None:  # type: ignore[no-untyped-def]
    file = read(f"[run]\n{setting}\n")
    found = [*settings.problems(file, settings.verbs_of(cli)), *config.check_values(cli, file)]
    assert len(found) == bool(complaint)
    assert complaint in "".join(found)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.name)
def test_example_settings_files_are_valid(read, path: Path) -> None:  # type: ignore[no-untyped-def]
    verbs, text = settings.verbs_of(cli), path.read_text()
    assert set(re.findall(r"^#? ?\[([a-z.]+)\]", text, re.MULTILINE)) <= {*verbs, "common"}
    for one in (text, COMMENTED.sub("", text)):
        file = read(one)
        assert list(settings.problems(file, verbs)) == []
        # Folders of the examples are not on this computer.
        assert [line for line in config.check_values(cli, file) if "does not exist" not in line] == []


@click.command()
@click.option("--model", "model_name", required=True)
@click.option("--min-workers", type=click.IntRange(1), default=1)
@click.option("--api-key", envvar="TPIEDGE_API_KEY")
@click.option("--insecure/--secure", default=False)
@click.option("-v", "--verbose", count=True)
@click.option("--state", type=click.Path())
def master(**values: object) -> None:
    if values["model_name"] == "bad":
        raise UserError("--model bad cannot be served")
    click.echo(json.dumps(values))


def invoke(*arguments: object, **environment: str) -> Result:
    root = settings.ConfiguredGroup("tpiedge")
    for command in (master, config.config):
        root.add_command(command)
    return CliRunner().invoke(root, [str(argument) for argument in arguments], env=environment)


def test_settings_file_sets_every_kind_of_flag(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text(
        '[common]\nstate = "/s"\n[master]\nmodel = "m"\nmin-workers = 3\ninsecure = true\nverbose = 2\n'
    )
    values = {
        "model_name": "m",
        "min_workers": 3,
        "api_key": None,
        "insecure": True,
        "verbose": 2,
        "state": "/s",
    }
    assert json.loads(invoke("master", "--config", path).output) == values
    changed = invoke("master", "--config", path, "--secure", TPIEDGE_MASTER_MIN_WORKERS="4").output
    assert json.loads(changed) == values | {"insecure": False, "min_workers": 4}


def test_command_refuses_errors_in_another_commands_table(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text("[run]\nnodez = 3\n")
    ended = CliRunner().invoke(cli, ["show", "demo", "--config", str(path)])
    assert str(ended.exception) == f"{path}:2: [run] has no key nodez; did you mean nodes?"


def test_config_show_masks_secrets(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text('[master]\napi-key = "hush"\n')
    for shown in (
        invoke("config", "show", "--config", path).output,
        invoke("config", "show", "--json", TPIEDGE_MASTER_API_KEY="hush").output,
    ):
        assert "***" in shown
        assert "hush" not in shown
    assert json.loads(invoke("config", "show", "--json").output)["master"]["api-key"]["value"] is None


def test_refused_value_is_reported_with_its_origin() -> None:
    error = invoke("master", TPIEDGE_MASTER_MODEL="bad").exception
    assert str(error) == "--model bad cannot be served (--model is from TPIEDGE_MASTER_MODEL)"
    assert str(invoke("master", "--model", "bad").exception) == "--model bad cannot be served"
    error = invoke("master", TPIEDGE_MASTER_MIN_WORKERS="0").exception
    assert isinstance(error, UserError)
    assert str(error).startswith("TPIEDGE_MASTER_MIN_WORKERS: --min-workers: 0 is not in the range")
    error = invoke("master", TPIEDGE_MASTER_MIN_WORKER="1").exception
    assert str(error).endswith("sets nothing; did you mean TPIEDGE_MASTER_MIN_WORKERS?")
