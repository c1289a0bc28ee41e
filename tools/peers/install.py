"""The other software: pinned versions, installed into a work folder on the first run.

accelerate and AirLLM get an environment of their own that sees this one's packages, so that torch and transformers
are the same for all. llama.cpp is built from the sources inside the llama-cpp-python source package.
"""

import site
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tpiedge.errors import TpiedgeError

__all__ = ["VERSIONS", "NotInstalled", "build_llama", "checked", "make_environment"]

LlamaProgram = Literal["llama-bench", "ggml-rpc-server"]


VERSIONS = {
    "accelerate": "1.15.0",
    "airllm": "4.0.0",
    "llama-cpp-python": "0.3.36",
    "scipy": "1.17.1",  # these two are AirLLM's
    "sentencepiece": "0.2.3",
}

_CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
_SECONDS = 3600.0
_BUILD = "build-rpc"  # named by what is in it, so that one with other flags is not taken
_LINE = 200

_CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DGGML_RPC=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_OPENSSL=OFF",
)


class NotInstalled(TpiedgeError):
    """A peer, or what it needs, could not be made; the message says why, in one line."""


def make_environment(work: Path, *packages: str) -> Path:
    """The interpreter of the peers' environment, with `packages` in it. Raises NotInstalled."""
    folder = work / "venv"
    python = folder / "bin" / "python"
    if not (folder / "bin" / "pip").exists():
        checked([sys.executable, "-m", "venv", "--clear", str(folder)])
    # Not --system-site-packages: this interpreter may itself be one of a virtual environment.
    (_site_packages(folder) / "benchmark.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    missing = [name for name in packages if not _is_installed(folder, name)]
    if missing:
        wanted = [f"{name}=={VERSIONS[name]}" for name in missing]
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        checked([*pip, "--constraint", str(_CONSTRAINTS), *wanted])
    return python


def _is_installed(environment: Path, package: str) -> bool:
    return any(_site_packages(environment).glob(f"{package}-{VERSIONS[package]}.dist-info"))


def _site_packages(environment: Path) -> Path:
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def build_llama(work: Path, program: LlamaProgram = "llama-bench") -> Path:
    """llama.cpp's own benchmark, or its server for layers, built for this processor. Raises NotInstalled."""
    folder = work / "llama.cpp"
    built = folder / _BUILD / "bin" / program
    if not built.exists():
        sources = _llama_sources(folder)
        checked(["cmake", "-S", str(sources), "-B", str(folder / _BUILD), *_CMAKE_FLAGS])
        checked(["cmake", "--build", str(folder / _BUILD), "--target", program, "--parallel", "2"])
    return built


def _llama_sources(folder: Path) -> Path:
    """Fetched and unpacked."""
    name = f"llama_cpp_python-{VERSIONS['llama-cpp-python']}"
    sources = folder / name / "vendor" / "llama.cpp"
    archive = folder / f"{name}.tar.gz"
    if not archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        wanted = f"llama-cpp-python=={VERSIONS['llama-cpp-python']}"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        checked([*pip, "--no-binary", "llama-cpp-python", "--dest", str(folder), wanted])
    if not sources.exists():
        with tempfile.TemporaryDirectory(dir=folder) as partial, tarfile.open(archive) as packed:
            packed.extractall(partial, filter="data")
            (Path(partial) / name).rename(folder / name)
    return sources


def checked(command: Sequence[str]) -> None:
    """Run a step of an installation; its output is shown only where it fails. Raises NotInstalled."""
    print("+", " ".join(command), file=sys.stderr)
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except FileNotFoundError:
        raise NotInstalled(f"there is no program {command[0]} on this computer") from None
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{Path(command[0]).name} did not end within {_SECONDS:.0f} s") from None
    if ended.returncode:
        lines = (ended.stdout + ended.stderr).strip().splitlines() or ["it said nothing"]
        raise NotInstalled(f"{' '.join(command[:4])}: {lines[-1][:_LINE]}")
