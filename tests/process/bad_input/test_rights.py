"""Files and folders that the user may not read or write."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.process.bad_input.refusal import USER, the_line
from tests.process.command import COMMAND

NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", COMMAND]


@pytest.fixture(scope="module")
def _nobody():
    """Skips where nobody cannot be had, or may not read what is tested (as in a folder of root's own)."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("root: needed to become nobody")
    ended = subprocess.run([*AS_NOBODY, "--version"], capture_output=True, check=False, cwd="/", timeout=50)
    if ended.returncode:
        pytest.skip(f"system: nobody cannot run {COMMAND}")


@pytest.fixture
def place():
    """A folder that everybody reaches, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture
def fails(place, _nobody):
    """Run the command as a user without rights; give back its one line."""
    home = place / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    own = {"HOME": str(home), "TPIEDGE_CACHE": str(home / "cache"), "TPIEDGE_STATE": str(home / "state")}
    own |= {"XDG_CONFIG_HOME": str(home / ".config"), "TPIEDGE_CONFIG": ""}

    def run(*arguments):
        ended = subprocess.run(
            [*AS_NOBODY, *map(str, arguments)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=50,
            check=False,
            env=os.environ | own,
            cwd="/",
        )
        assert (ended.returncode, ended.stdout) == (USER, ""), ended
        return the_line(ended.stderr)

    return run


@pytest.fixture
def closed(place):
    """A folder of somebody else."""
    folder = place / "closed"
    folder.mkdir(mode=0o700)
    return folder


def test_a_model_in_a_closed_folder(fails, closed, references):
    shutil.copytree(references("openllama").folder, closed / "model")
    for arguments in (("run", "--prompt-ids", "1", "--model", closed), ("show", closed), ("pack", closed)):
        assert "closed" in fails(*arguments)


def test_a_closed_file_of_weights(fails, place, references):
    shutil.copytree(references("openllama").folder, place / "model")
    (place / "model").chmod(0o755)
    (place / "model" / "model.safetensors").chmod(0)
    assert "model.safetensors cannot be read: Permission denied" in fails("show", place / "model")


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "--cache"),
        ("rm", "demo", "--yes", "--cache"),
        ("shards", "ls", "--cache"),
        ("shards", "limit", "5GB", "--cache"),
        ("token", "ls", "--state"),
        ("token", "create", "--state"),
        ("nodes", "--state"),
        ("worker", "--connect", "127.0.0.1:1", "--state"),
        ("worker", "--connect", "127.0.0.1:1", "--cache"),
        ("worker", "--connect", "127.0.0.1:1", "--model-dir"),
        ("worker", "--token-file"),
        ("master", "--model", "demo", "--state"),
        ("unpack",),
        ("config", "check"),
        ("ls", "--config"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("inside", [False, True])
def test_a_closed_folder(fails, closed, words, inside):
    path = closed / "inside" if inside else closed
    line = fails(*words, path, *(["out"] if words == ("unpack",) else []))
    assert str(closed) in line


@pytest.mark.parametrize("settings", ["a file", "a folder"])
def test_settings_that_only_somebody_else_reads(fails, place, settings):
    folder = place / "home" / ".config" / "tpiedge"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("")
    closed = folder / "config.toml" if settings == "a file" else folder
    closed.chmod(0)
    assert f"cannot read the settings file {folder / 'config.toml'}: Permission denied" in fails("ls")
