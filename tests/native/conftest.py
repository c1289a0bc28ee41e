"""The driver, built once for each purpose. Where a tool is missing the tests are skipped, and say what to install."""

import shutil
from pathlib import Path

import pytest

from tests.native.builds import Checksums, build, host_compiler, report, run

_SANITIZERS = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_CROSS_COMPILER = "aarch64-linux-gnu-g++"
_EMULATOR = "qemu-aarch64-static"


@pytest.fixture(scope="session")
def compiler() -> str:
    found = host_compiler()
    if found is None:
        pytest.skip("compiler: no C++ compiler: apt-get install g++")
    return found


@pytest.fixture(scope="session")
def sanitized_driver(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sanitized")
    empty = folder / "empty.cpp"
    empty.write_text("int main() { return 0; }\n")
    commands: list[list[str | Path]] = [
        [compiler, *_SANITIZERS, empty, "-o", folder / "empty"],
        [folder / "empty"],
    ]
    for command in commands:
        done = run(command)
        if done.returncode:
            pytest.skip(
                f"compiler: {compiler} has no address and undefined-behaviour sanitizers here: {done.stderr[-500:]}"
            )
    return build(compiler, _SANITIZERS)


@pytest.fixture(scope="session")
def host_checksums(sanitized_driver: Path) -> Checksums:
    return report(sanitized_driver)


@pytest.fixture(scope="session")
def emulator() -> str:
    found = shutil.which(_EMULATOR)
    if found is None:
        pytest.skip(f"compiler: no {_EMULATOR}: apt-get install qemu-user-static")
    return found


@pytest.fixture(scope="session")
def arm_driver(emulator: str) -> Path:
    found = shutil.which(_CROSS_COMPILER)
    if found is None:
        pytest.skip(f"compiler: no {_CROSS_COMPILER}: apt-get install g++-aarch64-linux-gnu")
    return build(found, ("-O3", "-static"))
