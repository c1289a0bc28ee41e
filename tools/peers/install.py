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

LlamaProgram = Literal["llama-bench", "llama-results", "llama-server", "ggml-rpc-server"]


VERSIONS = {
    "accelerate": "1.15.0",
    "airllm": "4.0.0",
    "llama-cpp-python": "0.3.36",
    "scipy": "1.17.1",  # these two are AirLLM's
    "sentencepiece": "0.2.3",
}

_CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
_SECONDS = 3600.0
_BUILD = "build-server"  # named by what is in it, so that one with other flags is not taken
_LINE = 200

_CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DGGML_RPC=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_OPENSSL=OFF",
)

_WITHOUT = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
_NO_AMX = (f"-DCMAKE_C_FLAGS={_WITHOUT}", f"-DCMAKE_CXX_FLAGS={_WITHOUT}")
_LOAD = "_tile_loadconfig(&tc);"
_BARRIER = '__asm__ volatile("" : : "r"(&tc) : "memory");'


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


def build_llama(work: Path, program: LlamaProgram = "llama-bench", *, amx: bool = True) -> Path:
    """llama.cpp's own benchmark, its HTTP server, or its server for layers, built for this processor.

    Without `amx` it does not use the processor's matrix tiles, if it has them. Raises NotInstalled."""
    folder = work / "llama.cpp"
    build = folder / (_BUILD if amx else f"{_BUILD}-noamx")
    built = build / "bin" / program
    if not built.exists():
        sources = _llama_sources(folder)
        _mend_tiles(sources)
        flags = _CMAKE_FLAGS if amx else (*_CMAKE_FLAGS, *_NO_AMX)
        checked(["cmake", "-S", str(sources), "-B", str(build), *flags])
        checked(["cmake", "--build", str(build), "--target", program, "--parallel", "2"])
    return built


def _mend_tiles(sources: Path) -> None:
    """GCC 12 takes eight bytes of the tiles' settings for all that the processor reads, and leaves others unwritten:
    llama.cpp would be killed at its first product. A barrier makes it write them."""
    path = sources / "ggml" / "src" / "ggml-cpu" / "amx" / "mmq.cpp"
    text = path.read_text(encoding="utf-8")
    if _BARRIER not in text:
        path.write_text(text.replace(_LOAD, f"{_BARRIER} {_LOAD}"), encoding="utf-8")


def _llama_sources(folder: Path) -> Path:
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
