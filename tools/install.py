"""Does the work of `make setup` and, with --dev, of `make dev`, on the bare interpreter: nothing is installed yet.

Size and time are said before anything is fetched. pip shows its progress on a terminal; in a pipe it is quiet.
"""

import argparse
import ctypes
import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
BIN: Final = ROOT / ".venv" / "bin"
PIP: Final = (str(BIN / "python"), "-m", "pip")
#: A tenth of the modules is ever imported: compiling them all would take a minute.
INSTALL: Final = (
    *PIP,
    "install",
    "--no-compile",
    "--disable-pip-version-check",
    "--constraint",
    "constraints.txt",
)
#: The extras that serving uses; linters, tests and plots are for `make dev`.
SERVING: Final = ("grammar", "mdns")
#: Megabytes of wheels, for x86-64 and Python 3.11: torch alone, with the wheels of CUDA, and all other packages.
TORCH_MB, CUDA_MB, OTHERS_MB, DEV_MB = 190, 2700, 50, 100
#: pip's settings of where packages come from.
_SOURCES: Final = ("index-url", "extra-index-url", "find-links", "no-index")
_PROBE_S: Final = 10.0
_IMPORTED: Final = "import tpiedge.cli.master, tpiedge.cli.worker, tpiedge.node.process, torch"


class SetupError(Exception):
    """A part of the setup failed; the message says what to type."""


@dataclass(frozen=True)
class TorchSource:
    """A place to take torch from: `index`, or pip's usual places if None."""

    index: str | None
    megabytes: int
    words: str


def choose_torch(
    settings: Sequence[str], has_card: Callable[[], bool], index: str, has_torch: Callable[[str], bool]
) -> TorchSource:
    """Chooses the source of torch; pip's own `settings` win, then a CUDA card, then `index` if it has torch."""
    if settings:
        names = ", ".join(settings)
        words = f"torch comes from pip's own {names} ({CUDA_MB} MB if only a CUDA build is there)"
        return TorchSource(None, TORCH_MB, words)
    if has_card():
        return TorchSource(None, CUDA_MB, "torch is the build for CUDA, as this computer has a CUDA card")
    if not index:
        return TorchSource(None, CUDA_MB, "torch comes from pip's usual index, as TORCH_INDEX is empty")
    if has_torch(index):
        return TorchSource(index, TORCH_MB, f"torch is the build for CPUs, from {index}")
    words = f"{index} cannot be reached or lacks this torch, which comes from pip's usual index, perhaps with CUDA"
    return TorchSource(None, CUDA_MB, words)


def has_cuda_card() -> bool:
    """Asks NVIDIA's driver, if there is one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def index_has(version: str, index: str, pip: Sequence[str] = PIP, timeout_s: float = _PROBE_S) -> bool:
    """Asks pip, which knows proxies and certificates, whether `index` has that torch for this Python."""
    command = [*pip, "index", "versions", "torch", "--index-url", index, "--timeout", "5", "--retries", "0"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return False
    return version in {one.partition("+")[0] for one in re.findall(r"[\w.+]+", ended.stdout)}


def source_settings(listed: str) -> list[str]:
    """Returns the names of `_SOURCES` in what `pip config list` prints; values may hold passwords."""
    keys = [line.partition("=")[0].rpartition(".") for line in listed.splitlines()]
    read = {name for section, _, name in keys if section in ("global", "install", ":env:")}
    return [name for name in _SOURCES if name in read]


def requirements(project: Mapping[str, Any], extras: Iterable[str]) -> list[str]:
    """Returns the dependencies of tpiedge and of `extras`, apart from tpiedge."""
    optional = project["optional-dependencies"]
    lists = [project["dependencies"], *(optional[extra] for extra in extras)]
    return [one for some in lists for one in some if not one.startswith("tpiedge[")]


def missing(wanted: Iterable[str], pins: Mapping[str, str], installed: Mapping[str, str]) -> set[str]:
    """Returns the names of `wanted` that are not installed at their pinned version; "+cpu" and the like are ignored."""
    names = {normalised(re.split(r"[<>=!~\[; ]", one, maxsplit=1)[0]) for one in wanted}
    return {name for name in names if installed.get(name, "").partition("+")[0] != pins.get(name)}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(text: str) -> dict[str, str]:
    pairs = [line.partition("==") for line in text.splitlines() if "==" in line]
    return {normalised(name): version for name, _, version in pairs}


def announcement(megabytes: int) -> str:
    if not megabytes:
        return "every package is here already: nothing is downloaded"
    size = f"{megabytes} MB" if megabytes < 1000 else f"{megabytes / 1000:.1f} GB"
    return (
        f"downloading about {size} ({_minutes(megabytes)} min at 50 Mbit/s), less if pip finds some on this computer; "
        "unpacking and compiling take 1 or 2 min more"
    )


def _minutes(megabytes: int) -> int:
    return max(1, round(megabytes * 8 / 50 / 60))


def closing(binaries: Path, found: str | None, shell: str) -> list[str]:
    """Returns the last lines of a setup; `found` is the `tpiedge` that the PATH of `shell` leads to, if any."""
    first = "  tpiedge run demo"
    if found is not None and Path(found).resolve() == (binaries / "tpiedge").resolve():
        return ["This tells a first story:", "", first]
    folder = shlex.quote(str(binaries))
    line, file = f'export PATH={folder}:"$PATH"', "~/.profile"
    match Path(shell).name:
        case "bash" | "zsh" as name:
            file = f"~/.{name}rc"
        case "fish":
            line, file = f"fish_add_path {folder}", ""
        case "csh" | "tcsh":
            line, file = f'setenv PATH {folder}:"$PATH"', "~/.cshrc"
    where = f" (the first line also into {file}, for every terminal)" if file else ""
    return [f"Type this{where}:", "", f"  {line}", first]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dev", action="store_true", help="tests and linters, too")
    parser.add_argument(
        "--torch-index", default="", metavar="URL", help="an index with torch's builds for CPUs"
    )
    given = parser.parse_args()
    started = time.monotonic()
    try:
        _make_environment()
        if given.dev:
            _install_dev()
        else:
            _install_serving(given.torch_index)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted: make setup goes on", file=sys.stderr)
        return 130
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    _say(f"done after {minutes} min {seconds} s")
    if given.dev:
        print("'make test' runs the tests, 'make check' the whole gate")
    else:
        print(*closing(BIN, shutil.which("tpiedge"), os.environ.get("SHELL", "")), sep="\n")
    return 0


def _say(words: str) -> None:
    print(f"setup: {words}", flush=True)


def _make_environment() -> None:
    if Path(PIP[0]).exists() and not _ended([*PIP, "--version"]).returncode:
        return
    _say(f"creating the virtual environment .venv with {sys.executable}")
    if _ended([sys.executable, "-m", "venv", str(BIN.parent)]).returncode:
        raise SetupError(
            f"'{sys.executable} -m venv .venv' failed (Debian, Ubuntu: apt install python3-venv; run it to see why)"
        )


def _install(words: str, megabytes: int, *arguments: str) -> bool:
    _say(f"installing {words}: {f'about {_minutes(megabytes) + 1} min' if megabytes else 'a few seconds'}")
    quiet = () if sys.stdout.isatty() else ("--quiet",)
    return subprocess.call([*INSTALL, *quiet, *arguments], cwd=ROOT) == 0


def _ended(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _missing(wanted: Iterable[str], pins: Mapping[str, str]) -> set[str]:
    paths = [str(path) for path in BIN.parent.glob("lib/python3*/site-packages")]
    found = importlib.metadata.distributions(path=paths)
    return missing(wanted, pins, {normalised(one.name): one.version for one in found})


def _install_serving(torch_index: str) -> None:
    wanted, pins = requirements(_project(), SERVING), read_pins((ROOT / "constraints.txt").read_text())
    lacking = _missing(wanted, pins)
    source = TorchSource(None, 0, "torch is here")
    if "torch" in lacking:
        settings = source_settings(_ended([*PIP, "config", "list"]).stdout)
        source = choose_torch(
            settings, has_cuda_card, torch_index, lambda index: index_has(pins["torch"], index)
        )
        _say(source.words)
    others_mb = OTHERS_MB * bool(lacking - {"torch"})
    _say(announcement(source.megabytes + others_mb))
    _say("meanwhile compiling the native kernels and installing tpiedge: about 1 min")
    with subprocess.Popen([*INSTALL, "--quiet", "--no-deps", "--editable", "."], cwd=ROOT) as compiling:
        installed, rest_mb = True, others_mb + source.megabytes
        if source.index is not None:
            index = ("--no-deps", "--index-url", source.index)
            installed, rest_mb = _install("torch", source.megabytes, *index, "torch"), others_mb
        installed = installed and _install("the packages that serving uses", rest_mb, *wanted)
    if compiling.returncode:
        raise SetupError("tpiedge was not installed, as pip says above: make setup tries again")
    if not installed:
        raise SetupError("not all dependencies were installed, as pip says above: make setup tries again")
    if not list((ROOT / "tpiedge" / "kernels").glob("_native*.so")):
        lost = "no q8, no q4, slower f32 and bf16"
        message = f"setup: the native kernels did not compile (is there a C++ compiler?): {lost}"
        print(message, file=sys.stderr)
    _say("starting tpiedge once: less than 1 min")
    if subprocess.call([str(BIN / "python"), "-c", _IMPORTED], cwd=ROOT):
        raise SetupError(
            "tpiedge is installed but does not start, as Python says above: rm -r .venv, make setup"
        )


def _install_dev() -> None:
    project = _project()
    wanted = requirements(project, project["optional-dependencies"])
    pins = read_pins((ROOT / "constraints.txt").read_text())
    megabytes = DEV_MB * bool(_missing(wanted, pins))
    _say(announcement(megabytes))
    if not _install("tests and linters", megabytes, *wanted):
        raise SetupError("tests and linters were not installed, as pip says above: make dev tries again")


if __name__ == "__main__":
    sys.exit(main())
