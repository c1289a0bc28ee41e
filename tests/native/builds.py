"""Building the driver (main.cpp and what lies beside it) with the native sources of kernels and transport."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tpiedge.kernels.shared_library import ISAS

_DRIVER = Path(__file__).parent
_ROOT = _DRIVER.parents[1]
_PACKAGE = _ROOT / "tpiedge"
# As setup.py has them, but for what optimises.
_FLAGS = ("-std=c++17", "-Wall", "-Wextra", "-ffp-contract=off", "-pthread")
_COMPILE_TIMEOUT_S = 900.0
_RUN_TIMEOUT_S = 900.0

#: What the driver calls, in the package.
NATIVE = ("kernels/native", "transport/native")

#: The driver's argument with which it lets a kernel read beyond an array, on purpose.
BEYOND = "beyond"

#: The argument with which it multiplies and adds numbers that it reads, as the portable kernels do (fused.cpp).
FUSED = "fused"

#: Products of f32 and bf16 matrices, which every instruction set sums as it does it best. All else has the same bits.
ANY_BITS = {"project", "contract", "ffn"}

#: What becomes of some tokens in the layers of golden.cpp. Who changes it changes what models answer.
GOLDEN_STACK = "1b3dd805f5b10917"

Checksums = dict[str, dict[str, str]]
"""Operation -> instruction set -> checksum of all its results."""


def host_compiler() -> str | None:
    names = (os.environ.get("CXX", ""), "c++", "g++", "clang++")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def build(compiler: str, flags: Sequence[str]) -> Path:
    """The driver's path, made anew where a source, the compiler or a flag changed since the last one: it takes a minute
    of CPU. A source that does not compile raises with the compiler's words."""
    folders = [_DRIVER, *(_PACKAGE / part for part in NATIVE)]
    digest = hashlib.sha256(repr((run([compiler, "--version"]).stdout, _FLAGS, flags)).encode())
    for path in sorted(path for folder in folders for path in folder.iterdir() if path.is_file()):
        digest.update(f"{path.relative_to(_ROOT)}\n".encode() + path.read_bytes())
    driver = _ROOT / "build" / "native" / digest.hexdigest()[:16]
    if not driver.exists():
        driver.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=driver.parent) as made:  # on one disk: it is renamed
            _build(compiler, flags, Path(made)).replace(driver)
    return driver


def _build(compiler: str, flags: Sequence[str], folder: Path) -> Path:
    sources = [path for part in NATIVE for path in sorted((_PACKAGE / part).glob("*.cpp"))]
    sources += sorted(_DRIVER.glob("*.cpp"))
    objects = [folder / f"{source.parent.name}-{source.stem}-{at}.o" for at, source in enumerate(sources)]
    commands = [
        [compiler, *_FLAGS, *flags, "-c", str(source), "-o", str(made)]
        for source, made in zip(sources, objects, strict=True)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as at_once:
        list(at_once.map(_compile, commands))
    driver = folder / "driver"
    _compile([compiler, *_FLAGS, *flags, *map(str, objects), "-o", str(driver)])
    return driver


def run(
    command: Sequence[str | Path], env: Mapping[str, str] | None = None, text: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, **(env or {})},
        input=text,
        capture_output=True,
        text=True,
        timeout=_RUN_TIMEOUT_S,
        check=False,
    )


def report(driver: Path, launcher: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Checksums:
    done = run([*launcher, driver, *ISAS], env)
    if done.returncode:
        raise AssertionError(f"the driver ended with {done.returncode}:\n{done.stderr}")
    found: Checksums = {}
    for line in done.stdout.splitlines():
        operation, isa, checksum = line.split()
        found.setdefault(operation, {})[isa] = checksum
    return found


def _compile(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}:\n{done.stderr}")
