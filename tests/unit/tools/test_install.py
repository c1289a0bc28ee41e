"""`make setup` and `make dev` say what they do; the virtual environment's Python is a script that installs nothing."""

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tools import install
from tools.install import CUDA_MB, TORCH_MB

ROOT = Path(__file__).parents[3]
INDEX = "https://index.invalid/cpu"
#: It writes down its arguments, and fails at arguments that contain FAILS.
INTERPRETER = """#!/bin/sh
echo "$*" >> asked
case "$*" in *"$FAILS"*) test -z "$FAILS" || { echo "the cause" >&2; exit 1; };; esac
case "$*" in
*"config list") echo "$SETTINGS";;
*"index versions"*) sed -n "s/^torch==/torch /p" constraints.txt;;
*--editable*) touch tpiedge/kernels/_native.cpython-311-x86_64-linux-gnu.so;;
esac
"""
SAID = [
    "setup: torch comes from pip's own find-links (2700 MB if only a CUDA build is there)",
    "setup: downloading about 240 MB (1 min at 50 Mbit/s), less if pip finds some on this computer; "
    "unpacking and compiling take 1 or 2 min more",
    "setup: meanwhile compiling the native kernels and installing tpiedge: about 1 min",
    "setup: installing the packages that serving uses: about 2 min",
    "setup: starting tpiedge once: less than 1 min",
]

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="software: make is not there")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile and the files that its `setup` looks at."""
    (tmp_path / "tpiedge" / "kernels").mkdir(parents=True)
    (tmp_path / "tools").mkdir()
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt", "tools/install.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    interpreter = tmp_path / ".venv" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text(INTERPRETER)
    interpreter.chmod(0o755)
    return tmp_path


def make(
    checkout: Path, target: str, *, fails: str = "", settings: str = "global.find-links='/opt/wheels'"
) -> subprocess.CompletedProcess[str]:
    """Runs make as if no other make had started this test, and there were no CUDA card."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment = {**inherited, "FAILS": fails, "SETTINGS": settings, "LC_ALL": "C", "SHELL": "/bin/bash"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    return subprocess.run(
        ["make", target, f"PYTHON={sys.executable}", f"TORCH_INDEX={INDEX}"],
        cwd=checkout, env=environment, capture_output=True, text=True, timeout=50,
    )  # fmt: skip


def asked(checkout: Path) -> list[str]:
    """Returns the installing commands of pip since the last call, sorted."""
    lines = (checkout / "asked").read_text().splitlines()
    (checkout / "asked").unlink()
    return sorted(line for line in lines if line.startswith("-m pip install"))


@needs_make
def test_setup_installs_what_serves_and_dev_the_rest(checkout: Path) -> None:
    ended = make(checkout, "setup")
    assert (ended.returncode, ended.stderr) == (0, "")
    *parts, done, _, _, path, first = ended.stdout.splitlines()
    assert parts == SAID
    assert re.fullmatch(r"setup: done after \d+ min \d+ s", done)
    assert (path, first) == (f'  export PATH={checkout}/.venv/bin:"$PATH"', "  tpiedge run demo")
    tpiedge, packages = asked(checkout)
    assert tpiedge.endswith(" --constraint constraints.txt --quiet --no-deps --editable .")
    assert " --quiet torch>=2.6 " in packages
    assert packages.endswith(" llguidance>=1.9 zeroconf>=0.154")
    assert "Nothing to be done" in make(checkout, "setup").stdout

    assert make(checkout, "dev").returncode == 0
    [packages] = asked(checkout)
    assert {"pytest>=8", "matplotlib>=3.9"} <= {*packages.split()}
    assert "Nothing to be done" in make(checkout, "dev").stdout
    (checkout / ".venv" / ".setup-done").unlink()
    assert make(checkout, "dev").returncode == 0
    assert len(asked(checkout)) == 2, "only what setup installs"


@needs_make
def test_torch_alone_is_installed_from_its_index(checkout: Path) -> None:
    ended = make(checkout, "setup", settings="")
    said = ended.stdout.splitlines()
    assert said[0] == f"setup: torch is the build for CPUs, from {INDEX}"
    assert said[3] == "setup: installing torch: about 2 min"
    _, torch, others = asked(checkout)
    assert torch.endswith(f" --quiet --no-deps --index-url {INDEX} torch")
    assert "--index-url" not in others


@needs_make
@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ("numpy", "not all dependencies were installed, as pip says above: make setup tries again"),
        ("--editable", "tpiedge was not installed, as pip says above: make setup tries again"),
        ("import tpiedge", "tpiedge is installed but does not start, as Python says above: rm -r .venv, make setup"),
    ],
)  # fmt: skip
def test_failed_installation_error_follows_its_cause(checkout: Path, fails: str, said: str) -> None:
    ended = make(checkout, "setup", fails=fails)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[:-1] == ["the cause", f"setup: {said}"]
    assert not (checkout / ".venv" / ".setup-done").exists()
    assert make(checkout, "setup").returncode == 0, "the next one succeeds"


def test_pip_shows_its_progress_on_a_terminal(checkout: Path) -> None:
    terminal, end = os.openpty()
    command = [sys.executable, "tools/install.py", "--dev"]
    ended = subprocess.run(command, cwd=checkout, stdout=end, timeout=50, check=True)
    os.close(end)
    os.close(terminal)
    assert ended.returncode == 0
    [packages] = asked(checkout)
    assert "--quiet" not in packages


def test_failed_virtual_environment_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "PIP", [str(tmp_path / "python")])
    monkeypatch.setattr(sys, "executable", "false")
    monkeypatch.setattr(sys, "argv", ["install.py"])
    assert install.main() == 1
    assert "apt install python3-venv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "card", "index", "found", "source"),
    [
        (["find-links"], False, INDEX, True, (None, TORCH_MB, "from pip's own find-links (")),
        (["index-url"], True, INDEX, True, (None, TORCH_MB, "from pip's own index-url (")),
        ([], True, INDEX, True, (None, CUDA_MB, "as this computer has a CUDA card")),
        ([], False, INDEX, True, (INDEX, TORCH_MB, f"the build for CPUs, from {INDEX}")),
        ([], False, INDEX, False, (None, CUDA_MB, f"{INDEX} cannot be reached or lacks this torch")),
        ([], False, "", True, (None, CUDA_MB, "TORCH_INDEX is empty")),
    ],
)
def test_torch_comes_from_settings_card_or_index(
    settings: list[str], card: bool, index: str, found: bool, source: tuple[str | None, int, str]
) -> None:
    chosen = install.choose_torch(settings, lambda: card, index, lambda _: found)
    assert (chosen.index, chosen.megabytes) == source[:2]
    assert source[2] in chosen.words


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """The address of an index that has one torch."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "torch-2.13.0+cpu-py3-none-any.whl").touch()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_pip_is_asked_what_an_index_has(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    pip = [sys.executable, "-m", "pip"]
    assert install.index_has("2.13.0", index, pip)
    assert not install.index_has("2.14.0", index, pip)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert not install.index_has("2.13.0", address, pip, timeout_s=0.5)
    assert not install.index_has("2.13.0", address, pip), "nothing listens any more"


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("", []),
        (":env:.cert='/etc/ssl'\nglobal.timeout='60'\n", []),
        (":env:.find-links='/opt/wheels'\n", ["find-links"]),
        ("global.index-url='https://me:secret@mirror/x'\ninstall.no-index='1'\n", ["index-url", "no-index"]),
        ("download.find-links='/opt/wheels'\n", []),
    ],
)  # fmt: skip
def test_settings_of_places_are_named_without_values(listed: str, names: list[str]) -> None:
    assert install.source_settings(listed) == names


def test_packages_of_another_version_are_missing() -> None:
    pins = install.read_pins("# why\ntorch==2.13.0\nprompt_toolkit==3.0.53\nJinja2==3.1.6\n")
    wanted = ["torch>=2.6", "prompt_toolkit>=3", "jinja2>=3.1.6"]
    assert install.missing(wanted, pins, {}) == {"torch", "prompt-toolkit", "jinja2"}
    installed = {"torch": "2.13.0+cpu", "prompt-toolkit": "3.0.53", "jinja2": "3.1.5"}
    assert install.missing(wanted, pins, installed) == {"jinja2"}


@pytest.mark.parametrize(
    ("megabytes", "begins"),
    [
        (0, "every package is here already"),
        (240, "downloading about 240 MB (1 min at"),
        (2750, "downloading about 2.8 GB (7 min at"),
    ],
)
def test_size_and_time_are_said(megabytes: int, begins: str) -> None:
    assert install.announcement(megabytes).startswith(begins)


@pytest.mark.parametrize(
    ("shell", "found", "line"),
    [
        ("/bin/bash", None, """  export PATH='/my code/.venv/bin':"$PATH\""""),
        ("/usr/bin/zsh", "/usr/bin/tpiedge", """  export PATH='/my code/.venv/bin':"$PATH\""""),
        ("/usr/bin/fish", None, "  fish_add_path '/my code/.venv/bin'"),
        ("/bin/tcsh", None, """  setenv PATH '/my code/.venv/bin':"$PATH\""""),
        ("", None, """  export PATH='/my code/.venv/bin':"$PATH\""""),
        ("/bin/bash", "/my code/.venv/bin/tpiedge", ""),
    ],
)
def test_last_lines_make_tpiedge_a_command(shell: str, found: str | None, line: str) -> None:
    lines = install.closing(Path("/my code/.venv/bin"), found, shell)
    assert lines[-2:] == [line, "  tpiedge run demo"]
