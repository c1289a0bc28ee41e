import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.process.command import COMMAND


@pytest.fixture
def settings(tmp_path):
    def write(text):
        path = tmp_path / "t.toml"
        path.write_text(text)
        return "--config", path

    return write


def test_settings_from_file_and_environment_take_effect(tpiedge, tmp_path, settings):
    file = settings(
        '[common]\ncache = "ignored"\n[run]\nmodel = "demo"\nprompt = "Once upon"\nmax-tokens = 3\nthreads = 1\n'
        'stop = ["no such text"]\njson = true\nmemory = "900MB"\nignore-eos = true\nlogprobs = 2\n'
    )
    ended = tpiedge("run", TPIEDGE_CONFIG=str(file[1]), TPIEDGE_RUN_TOP_K="1", TPIEDGE_RUN_LOGPROBS="1")
    assert ended.status == 0, ended.err
    record = json.loads(ended.out)
    assert len(record["token_ids"]) == 3
    assert [len(token) for token in record["logprobs"]] == [1, 1, 1]


LOADED = {
    "bash": "source {}; complete -p tpiedge >/dev/null; COMP_WORDS=(tpiedge nodes approve --st) COMP_CWORD=3; "
    "_tpiedge_completion tpiedge; echo ${{COMPREPLY[@]}}",
    "zsh": "autoload -U compinit; compinit -D; source {}; print -r -- ${{_comps[tpiedge]:+--state}}",
    "fish": "source {}; complete -C 'tpiedge nodes approve --st' | string split -f 1 \t",
}


@pytest.mark.parametrize("shell", LOADED)
def test_shell_completion_script_loads_and_completes(tpiedge, tmp_path, shell):
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
