"""Any verb that is added to the group can be set from outside; secrets are never shown."""

import json
import os

import click
import pytest
from click.testing import CliRunner

from tpiedge.cli.config import config
from tpiedge.cli.configured import ConfiguredGroup
from tpiedge.errors import UserError


@click.command()
@click.option("--model", "model_name", required=True)
@click.option("--min-workers", type=click.IntRange(1), default=1)
@click.option("--api-key")
@click.option("--insecure/--secure", default=False)
@click.option("-v", "--verbose", count=True)
@click.option("--state", type=click.Path())
def master(**values):
    if values["model_name"] == "bad":
        raise UserError("--model bad cannot be served")
    click.echo(json.dumps(values))


@click.command(hidden=True)
@click.option("--orders", type=int, default=0)
def inner(orders):
    click.echo(orders)


@pytest.fixture
def invoke(monkeypatch):
    """Run the group with an environment of its own."""
    root = ConfiguredGroup("tpiedge")
    monkeypatch.setattr(master, "params", list(master.params))
    root.add_command(master)
    root.add_command(inner)
    root.add_command(config)

    def run(*arguments, **environment):
        return CliRunner().invoke(root, [str(argument) for argument in arguments], env=environment)

    return run


def test_every_kind_of_flag(invoke, tmp_path):
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
    assert json.loads(invoke("master", "--config", path).output) == expected
    changed = json.loads(
        invoke("master", "--config", path, "--secure", TPIEDGE_MASTER_MIN_WORKERS="4").output
    )
    assert changed == expected | {"insecure": False, "min_workers": 4}


def test_secrets_are_starred(invoke, tmp_path):
    path = tmp_path / "t.toml"
    path.write_text('[master]\napi-key = "hush"\n')
    shown = invoke("config", "show", "--config", path)
    assert "***" in shown.output
    assert "hush" not in shown.output
    assert "hush" not in invoke("config", "show", "--json", TPIEDGE_MASTER_API_KEY="hush").output
    assert json.loads(invoke("config", "show", "--json").output)["master"]["api-key"]["value"] is None


def test_the_origin_of_a_value_that_the_verb_refuses(invoke):
    error = invoke("master", TPIEDGE_MASTER_MODEL="bad").exception
    assert str(error) == "--model bad cannot be served (--model is from TPIEDGE_MASTER_MODEL)"
    assert str(invoke("master", "--model", "bad").exception) == "--model bad cannot be served"


def test_what_is_for_processes_alone_cannot_be_set(invoke, tmp_path):
    """A hidden command neither shows nor takes settings."""
    path = tmp_path / "t.toml"
    path.write_text("[inner]\norders = 1\n")
    assert "inner" not in invoke("config", "show").output
    assert "there is no table [inner]" in str(invoke("config", "check", path).exception)
    assert invoke("inner", TPIEDGE_INNER_ORDERS="3").output == "0\n"


def test_range_of_the_flag(invoke):
    error = invoke("master", TPIEDGE_MASTER_MIN_WORKERS="0").exception
    assert isinstance(error, UserError)
    assert str(error).startswith("TPIEDGE_MASTER_MIN_WORKERS: --min-workers: 0 is not in the range")


def test_a_verb_by_itself(invoke):
    """As other tests and tools call it, without the group."""
    found = CliRunner().invoke(master, ["--model", "m"], env={"TPIEDGE_STATE": "/s"})
    assert json.loads(found.output)["state"] == "/s"


def test_a_secret_leaves_the_environment_once_it_was_read(invoke, monkeypatch):
    """Of no process that is started from now on it can be read."""
    kept = {"TPIEDGE_MASTER_MODEL": "m", "HF_TOKEN": "t"}
    secrets = {"TPIEDGE_MASTER_API_KEY": "k-1", "TPIEDGE_API_KEY": "k-2", "TPIEDGE_CHAT_API_KEY": "k-3"}
    found = {}
    callback = master.callback

    def look(**values):
        found.update(os.environ)
        return callback(**values)

    monkeypatch.setattr(master, "callback", look)
    ended = invoke("master", **kept, **secrets)
    assert json.loads(ended.output)["api_key"] == "k-1"
    assert found.keys() & {*kept, *secrets} == kept.keys()


def test_a_secret_that_click_reads_itself_leaves_the_environment_too(monkeypatch):
    """As TPIEDGE_API_KEY, which several verbs have in common."""
    monkeypatch.setenv("TPIEDGE_API_KEY", "k-2")
    found = {}

    @click.command()
    @click.option("--api-key", "api_keys", envvar="TPIEDGE_API_KEY", multiple=True)
    def chat(api_keys):
        found.update(os.environ, keys=api_keys)

    root = ConfiguredGroup("tpiedge")
    root.add_command(chat)
    assert CliRunner().invoke(root, ["chat"]).exit_code == 0
    assert found["keys"] == ("k-2",)
    assert "TPIEDGE_API_KEY" not in found
