"""Packs this installation for other machines: a wheel for machines like this one, and the sources for all others.

Both have the same version: this installation's version and a digest of its files. So pip replaces an earlier
installation."""

import base64
import hashlib
import os
import platform
import re
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

import tpiedge
from tpiedge.errors import InternalError
from tpiedge.native_code import find_library
from tpiedge.pack.files import replacing

#: PyTorch's builds for CPUs. The usual builds bring gigabytes for graphics cards.
TORCH_INDEX: Final = "https://download.pytorch.org/whl/cpu"
INSTALL: Final = "install"  # the folder in a master's state
_PACKAGE: Final = Path(tpiedge.__file__).parent
_OF_SOURCES: Final = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in")
_LIBRARIES: Final = ("kernels", "transport", "lab/testbed")


@dataclass(frozen=True)
class Installer:
    """Files in `folder` that pip installs. `sources` is "" if this installation has no sources."""

    folder: Path
    wheel: str
    sources: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.wheel, self.sources)))

    def address(self, name: str) -> str:
        """Returns a file's name with its SHA-256, as pip takes it."""
        return f"{name}#sha256={_hashed(self.folder / name)[0]}"


def find_installer(folder: Path) -> Installer | None:
    """Returns what `make_installer` wrote into `folder` last; None without a wheel."""
    wheel, sources = (next((path.name for path in folder.glob(kind)), "") for kind in ("*.whl", "*.zip"))
    return Installer(folder, wheel, sources) if wheel else None


def make_installer(folder: Path, package: Path = _PACKAGE) -> Installer:
    """Writes the files into `folder` unless they are there, and deletes all other files there. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    installed, sources = dict(_installed(package)), dict(_sources(package.parent))
    version = f"{tpiedge.__version__}+{_digest(installed | sources)}"
    native = any(name.endswith(".so") for name in installed)
    tag = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_') if native else 'any'}"
    wheel = f"tpiedge-{version}-{tag}.whl"
    made = Installer(folder, wheel, f"tpiedge-{version}.zip" if sources else "")
    for path in folder.iterdir():
        if path.name not in made.names:
            path.unlink()
    if not (folder / wheel).is_file():
        _write(folder / wheel, _wheel_members(installed, version, tag))
    if sources and not (folder / made.sources).is_file():
        _write(folder / made.sources, _source_members(sources, version))
    return made


def shell_lines(made: Installer, url: str, connect: str, token: str) -> list[str]:
    """Returns lines for a shell of another machine. They install tpiedge from `url` and start a worker."""
    torch = metadata.version("torch").partition("+")[0]
    kind, needs = f"{platform.system()} {platform.machine()}", " ".join(_hashed(made.folder / made.wheel)[1])
    if made.sources:
        other = (
            f"f='{made.address(made.sources)}'; command -v g++ >/dev/null || "
            "{ echo 'This machine compiles tpiedge: install g++ and the headers of Python first.'; f=; }"
        )
    else:
        other = (
            "echo 'The master has no files for this kind of machine: install tpiedge from its sources.'; f="
        )
    return [
        f"case \"$(uname -sm)\" in '{kind}') f='{made.address(made.wheel)}' ;; *) f= ;; esac",
        # The system's libraries name the versions that they have.
        f"for v in {needs}; do find -L /lib /lib64 /usr/lib /usr/lib64 -maxdepth 2 -name 'lib[cms]*.so.6' \\",
        '  -exec grep -qF "$v" {} \\; -print 2>/dev/null | grep -q . || f=; done',
        f'[ "$f" ] || {{ {other}; }}',
        f'[ "$f" ] && python3 -m venv ~/tpiedge && p=~/tpiedge/bin/python i={TORCH_INDEX} &&',
        # pip would ask an index that does not answer five times for every package.
        'if "$p" -m pip -vv index versions torch -i $i --timeout 5 --retries 0 2>&1 | grep -q "fetch URL $i"; then',
        '  echo "$i does not answer: torch comes from pip\'s usual index, perhaps with CUDA"; i=; fi &&',
        f'"$p" -m pip install ${{i:+--extra-index-url=$i}} torch=={torch} "tpiedge @ {url}/$f" &&',
        # The shell finds `tpiedge` from then on, and its own python3 as before: pasted again, the lines upgrade.
        f"PATH=$PATH:~/tpiedge/bin && ~/tpiedge/bin/tpiedge worker --connect {connect} --token {token}",
    ]


@cache
def _hashed(path: Path) -> tuple[str, list[str]]:
    """Returns a file's SHA-256, and the latest versions of the C and C++ libraries that its native code names. A file's
    name tells its content."""
    content, latest = path.read_bytes(), dict[str, tuple[int, ...]]()
    for name, version in set(re.findall(rb"(?<=\0)(GLIBC(?:XX)?)_(\d[\d.]*)(?=\0)", content)):
        number = tuple(map(int, version.decode().split(".")))
        latest[name.decode()] = max(number, latest.get(name.decode(), ()))
    versions = [f"{name}_{'.'.join(map(str, number))}" for name, number in sorted(latest.items())]
    return hashlib.sha256(content).hexdigest(), versions


def _installed(package: Path) -> Iterator[tuple[str, bytes]]:
    """Yields (name in the wheel, content)."""
    libraries = {find_library(package / folder) for folder in _LIBRARIES}
    for path in _files(package):
        name = f"tpiedge/{path.relative_to(package).as_posix()}"
        if path.suffix != ".so":
            yield name, path.read_bytes()
        elif path in libraries:
            # A name that suits any Python.
            yield f"{name.rpartition('/')[0]}/_native.so", path.read_bytes()
    if not (package / "configs").is_dir():  # of a checkout
        for path in _configs(package.parent):
            yield f"tpiedge/{path.relative_to(package.parent).as_posix()}", path.read_bytes()


def _sources(checkout: Path) -> Iterator[tuple[str, bytes]]:
    if not (checkout / "setup.py").is_file():
        return
    named = (checkout / name for name in _OF_SOURCES)
    for path in (*named, *_configs(checkout), *_files(checkout / "tpiedge")):
        if path.suffix != ".so":
            yield path.relative_to(checkout).as_posix(), path.read_bytes()


def _configs(checkout: Path) -> list[Path]:
    """Returns the files that tpiedge reads. Other files in configs/ are the user's settings, with secrets."""
    return sorted((checkout / "configs").glob("*/*.toml"))


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]


def _digest(files: dict[str, bytes]) -> str:
    told = hashlib.sha256()
    for name, content in sorted(files.items()):
        told.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return told.hexdigest()[:8]


def _wheel_members(installed: dict[str, bytes], version: str, tag: str) -> Iterator[tuple[str, bytes]]:
    folder, about = f"tpiedge-{version}.dist-info", metadata.distribution("tpiedge")
    # Where the checkout itself is on the path, setuptools' older files are found first.
    told = about.read_text("METADATA") or about.read_text("PKG-INFO")
    entries = about.read_text("entry_points.txt")
    if told is None or entries is None:
        raise InternalError("the installation of tpiedge has no METADATA")
    wheel = f"Wheel-Version: 1.0\nGenerator: tpiedge\nRoot-Is-Purelib: false\nTag: {tag}\n"
    members = installed | {
        f"{folder}/METADATA": re.sub(r"(?m)^Version: .*$", f"Version: {version}", told, count=1).encode(),
        f"{folder}/entry_points.txt": entries.encode(),
        f"{folder}/WHEEL": wheel.encode(),
    }
    yield from members.items()
    lines = [f"{name},sha256={_urlsafe(content)},{len(content)}" for name, content in members.items()]
    yield f"{folder}/RECORD", "\n".join([*lines, f"{folder}/RECORD,,", ""]).encode()


def _urlsafe(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _source_members(sources: dict[str, bytes], version: str) -> Iterator[tuple[str, bytes]]:
    plain = f'version = "{tpiedge.__version__}"'.encode()
    for name, content in sources.items():
        if name == "pyproject.toml":
            content = content.replace(plain, f'version = "{version}"'.encode(), 1)
        yield f"tpiedge-{version}/{name}", content


def _write(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    """Writes a ZIP file whose bytes depend on the members alone."""
    # Durable, else a loss of power may leave an empty file of this name for good.
    with replacing(path) as partial, partial.open("wb") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:  # local networks are fast
            for name, content in members:
                entry = zipfile.ZipInfo(name)
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, content)
        file.flush()
        os.fsync(file.fileno())
