"""Flag, environment, file, default: the real command takes them in this order and says where a bad value is from."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.process.command import COMMAND
from tpiedge.cli.main import cli
from tpiedge.host.private_file import replace_private

RUN = ("run", "--model", "demo", "--prompt-ids", "1")


@pytest.fixture
def settings(tmp_path):
    """Writes a file; gives back the arguments that name it."""

    def write(text):
        path = tmp_path / "t.toml"
        path.write_text(text)
        return "--config", path

    return write


@pytest.fixture
def refusal(here):
    """The line of a command that is refused."""

    def run(*words, **environment):
        ended = here(*words, **environment)
        assert (ended.status, ended.out) == (2, ""), ended
        (line,) = ended.err.splitlines()
        return line.removeprefix("tpiedge: ")

    return run


def test_the_order(settings, refusal):
    """Each of these numbers is refused, so the message tells which one counted."""
    file = settings("[run]\nnodes = -1\n")
    variable = {"TPIEDGE_RUN_NODES": "-2"}
    assert f"--nodes -1 is out of range: 1 to 64 (--nodes is from {file[1]}:2 [run] nodes)" == refusal(
        *RUN, *file
    )
    assert (
        refusal(*RUN, *file, **variable)
        == "--nodes -2 is out of range: 1 to 64 (--nodes is from TPIEDGE_RUN_NODES)"
    )
    assert refusal(*RUN, *file, "--nodes", -3, **variable) == "--nodes -3 is out of range: 1 to 64"


def test_settings_reach_the_work(tpiedge, tmp_path, settings):
    """A required flag, a common one, a size, a list and a switch, none of them on the command line."""
    file = settings(
        '[common]\ncache = "ignored"\n[run]\nmodel = "demo"\nprompt = "Once upon"\nmax-tokens = 3\nthreads = 1\n'
        'stop = ["no such text"]\njson = true\nmemory = "900MB"\nignore-eos = true\nlogprobs = 2\n'
    )
    ended = tpiedge("run", TPIEDGE_CONFIG=str(file[1]), TPIEDGE_RUN_TOP_K="1", TPIEDGE_RUN_LOGPROBS="1")
    assert ended.status == 0, ended.err
    record = json.loads(ended.out)
    assert len(record["token_ids"]) == 3
    assert [len(token) for token in record["logprobs"]] == [1, 1, 1]


@pytest.mark.parametrize("words", [(), ("approve", "x"), ("revoke", "x")], ids=" ".join)
def test_a_setting_of_a_group_is_one_of_its_subcommands(tmp_path, words):
    """Unless they have their own."""
    note = tmp_path / "master" / "admin.json"
    replace_private(note, {"url": 1})
    own = {"TPIEDGE_NODES_STATE": str(tmp_path)}
    elsewhere = {f"TPIEDGE_{'_'.join(('nodes', *words[:1])).upper()}_STATE": str(tmp_path / "elsewhere")}
    for environment, said in (
        (own, f"{note} is damaged"),
        (own | elsewhere, "start one with 'tpiedge master"),
    ):
        assert said in str(CliRunner().invoke(cli, ["nodes", *words], env=environment).exception)


@pytest.mark.thin
def test_show_names_every_source(here, settings):
    file = settings('[run]\nnodes = 3\nstop = ["a b", "c"]\n')
    ended = here("config", "show", "run", "--json", *file, TPIEDGE_RUN_THREADS="2", TPIEDGE_CACHE="/c")
    found = json.loads(ended.out)["run"]
    assert found["nodes"] == {"value": 3, "source": f"{file[1]}:2 [run] nodes"}
    assert found["stop"]["value"] == ["a b", "c"]
    assert found["threads"] == {"value": "2", "source": "TPIEDGE_RUN_THREADS"}
    assert found["cache"] == {"value": "/c", "source": "TPIEDGE_CACHE"}
    assert found["max-tokens"] == {"value": None, "source": "default"}
    assert found["shares"] == {"value": None, "source": "default"}


def test_show_for_people(here, refusal):
    ended = here("config", "show", "bench", TPIEDGE_BENCH_DECODE_TOKEN="3")
    assert ended.status == 0
    assert "bench decode --prompt-tokens" in ended.out
    assert "bench allreduce --rounds" in ended.out
    assert ended.err == "not used: TPIEDGE_BENCH_DECODE_TOKEN; did you mean TPIEDGE_BENCH_DECODE_TOKENS?\n"
    assert "there is no verb 'runn'; did you mean run?" in refusal("config", "show", "runn")


def test_a_value_that_the_flag_refuses(tpiedge, settings, refusal):
    file = settings('[run]\nprecision = "q5"\n')
    line = refusal(*RUN, *file)
    assert line.startswith(
        f"{file[1]}:2 [run] precision: --precision: 'q5' is not one of 'f32', 'bf16', 'q8', 'q4'"
    )
    assert line == refusal("config", "check", file[1])
    line = refusal(*RUN, TPIEDGE_RUN_MEMORY="lots")
    assert line.startswith("TPIEDGE_RUN_MEMORY: --memory: not a size: 'lots'")
    named = tpiedge("run", "demo", "--prompt-ids", "1", "--max-tokens", 1, TPIEDGE_RUN_MODEL="no-such-model")
    assert named.status == 0, named.err
    assert "TPIEDGE_RUN_IGNORE_EOS" in refusal(*RUN, TPIEDGE_RUN_IGNORE_EOS="perhaps")


def test_check_says_every_problem(here, settings):
    _, path = settings('[run]\nnodez = 3\nthreads = "x"\n[runn]\n')
    ended = here("config", "check", path)
    assert ended.status == 2
    assert [line.split(": ")[1] for line in ended.err.splitlines()] == [
        f"{path}:{number}" for number in (2, 3, 4)
    ]
    path.write_text("[run]\nnodes = 3\n")
    assert here("config", "check", path).out == f"{path} is in order\n"


def test_help_works_with_a_broken_file(here, settings, refusal):
    file = settings("[run")
    assert here("run", "--help", TPIEDGE_CONFIG=str(file[1])).status == 0
    line = refusal(*RUN, TPIEDGE_CONFIG=str(file[1]))
    assert line.startswith(f"TPIEDGE_CONFIG: the settings file {file[1]} is not valid TOML")


def test_the_current_folder_is_not_searched(here, tmp_path, monkeypatch):
    """A model's folder that came from elsewhere changes nothing."""
    monkeypatch.chdir(tmp_path)
    for name in ("tpiedge.toml", "config.toml"):
        (tmp_path / name).write_text("[run]\nnodes = 3\n")
    ended = here("config", "show", "run", "--json")
    assert json.loads(ended.out)["run"]["nodes"] == {"value": 1, "source": "default"}


LOADED = {
    "bash": "source {}; complete -p tpiedge >/dev/null; COMP_WORDS=(tpiedge nodes approve --st) COMP_CWORD=3; "
    "_tpiedge_completion tpiedge; echo ${{COMPREPLY[@]}}",
    "zsh": "autoload -U compinit; compinit -D; source {}; print -r -- ${{_comps[tpiedge]:+--state}}",
    "fish": "source {}; complete -C 'tpiedge nodes approve --st' | string split -f 1 \t",
}


@pytest.mark.parametrize("shell", LOADED)
def test_the_shell_loads_its_script(tpiedge, tmp_path, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"software: {shell} is not on this computer")
    script = tmp_path / "script"
    script.write_text(tpiedge("completion", shell).out)
    strict = ["-euc"] if shell == "bash" else ["-c"]
    ended = subprocess.run(
        [shell, *strict, LOADED[shell].format(script)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=os.environ | {"PATH": f"{Path(COMMAND).parent}:{os.environ['PATH']}"},
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "--state\n", "")


def test_what_is_listed_for_programs_is_json_and_nothing_else(here, tmp_path):
    own = {"TPIEDGE_STATE": str(tmp_path / "state"), "TPIEDGE_CACHE": str(tmp_path / "cache")}
    for words in ("ls", "ls --all", "show demo", "shards ls", "token ls", "config show", "doctor"):
        ended = here(*words.split(), "--json", **own)
        json.loads(ended.out)
        assert ended.status == 0 or words == "doctor", ended.err


def test_completion_knows_verbs_and_flags_whatever_the_settings_say(tpiedge, settings):
    _, path = settings("[run")
    completing = {"_TPIEDGE_COMPLETE": "bash_complete", "TPIEDGE_CONFIG": str(path)}
    ended = tpiedge(COMP_WORDS="tpiedge do", COMP_CWORD="1", **completing)
    assert "plain,doctor" in ended.out.splitlines()
    ended = tpiedge(COMP_WORDS="tpiedge run --max", COMP_CWORD="2", **completing)
    assert "plain,--max-tokens" in ended.out.splitlines()
