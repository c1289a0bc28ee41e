"""A container engine, running or started for the occasion, and what the image is built from where there is no registry.

Everything that this computer needs to reach its package index (certificates, pip's settings) goes into an image of its
own, in which packages are installed, and into nothing else.
"""

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import docker
import pytest
from docker.errors import DockerException

ROOT = Path(__file__).parent.parent.parent

_BASE = "python:3.11-slim"
_PYTHON = "3.11"
_OWN_BASE = "tpiedge-test/base"
_BUILD_BASE = "tpiedge-test/build-base"
_START_S = 60.0
_STOP_S = 30.0
_POLL_S = 0.1
_SLOW_S = 900  # beside other work
_PIP_SETTINGS = ("index-url", "trusted-host", "proxy")


@dataclass(frozen=True)
class Engine:
    url: str

    @contextlib.contextmanager
    def client(self) -> Iterator[docker.DockerClient]:
        client = docker.DockerClient(base_url=self.url, timeout=_SLOW_S)
        try:
            yield client
        finally:
            client.close()

    @property
    def answers(self) -> bool:
        kind, _, path = self.url.partition("://")
        if kind == "unix" and not _listens(path):  # of a client that cannot connect a socket would stay open
            return False
        with contextlib.suppress(DockerException, OSError), self.client() as client:
            return bool(client.ping())
        return False


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


@contextlib.contextmanager
def running_engine(folder: Path) -> Iterator[Engine]:
    """Yields the running engine, or one in `folder` that is ended afterwards. Skips the test if neither works."""
    found = Engine(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
    if found.answers:
        yield found
    elif not shutil.which("dockerd"):
        pytest.skip("docker: no engine runs, and dockerd, which could be started, is not installed")
    elif os.geteuid() != 0:
        pytest.skip("docker: no engine runs, and only root can start one")
    else:
        yield from _own_engine(folder)


def _own_engine(folder: Path) -> Iterator[Engine]:
    engine = Engine(f"unix://{folder}/docker.sock")
    paths = [f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["dockerd", f"--host={engine.url}", *paths], stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + _START_S
        while not engine.answers:
            if process.poll() is not None or time.monotonic() > deadline:
                last = log.read_text(errors="replace").strip().rsplit("\n", 1)[-1]
                pytest.skip(f"docker: dockerd does not start here: {last}")
            time.sleep(_POLL_S)
        yield engine
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def base_image(engine: Engine, folder: Path) -> str:
    """Returns the base of the image: the default one, or Debian's packages with Python if no registry is reachable."""
    with engine.client() as client:
        with contextlib.suppress(DockerException):
            client.images.get(_BASE)
            return _BASE
        with contextlib.suppress(DockerException):
            client.images.pull(_BASE)
            return _BASE
        if not shutil.which("debootstrap") or os.geteuid() != 0:
            pytest.skip(
                f"downloads: {_BASE} cannot be pulled, and without debootstrap (and root) nothing replaces it"
            )
        client.api.import_image(_debian(folder / "debian"), repository=_OWN_BASE, tag="latest")
    return _OWN_BASE


def _debian(folder: Path) -> str:
    """The archive of a small root file system."""
    packages = "--include=ca-certificates,python3,python3-venv"
    made = _run(["debootstrap", "--variant=minbase", packages, "bookworm", str(folder)], check=False)
    if made.returncode:
        pytest.skip(f"downloads: debootstrap fails here: {made.stdout.strip().rsplit(chr(10), 1)[-1]}")
    archive = f"{folder}.tar"
    unneeded = ("./var/cache/apt/archives/*.deb", "./var/lib/apt/lists/*", "./usr/share/doc", "./proc/*")
    _run(["tar", "-C", str(folder), *(f"--exclude={path}" for path in unneeded), "-cf", archive, "."])
    shutil.rmtree(folder)
    return archive


def build_base(engine: Engine, base: str, folder: Path) -> tuple[str, str]:
    """(image, index of torch in it): `base` with this computer's certificates, pip's settings and torch's wheel."""
    context = folder / "build-base"
    index = context / "index" / "index" / "torch"
    index.mkdir(parents=True)
    certificates = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    (context / "certificates.pem").write_bytes(Path(certificates).read_bytes() if certificates else b"")
    (context / "pip.conf").write_text(_pip_settings(bool(certificates)))
    torch_index = os.environ.get("TORCH_INDEX", "")
    if not torch_index:
        wheel = _download_torch(index)
        (index / "index.html").write_text(f'<a href="{quote(wheel.name)}">{wheel.name}</a>\n')
        torch_index = "file:///opt/index"
    (context / "Dockerfile").write_text(
        f"FROM {base}\nCOPY certificates.pem index /opt/\nCOPY pip.conf /etc/pip.conf\n"
    )
    with engine.client() as client:
        client.images.build(path=str(context), tag=_BUILD_BASE, rm=True, forcerm=True)
    shutil.rmtree(context)
    return _BUILD_BASE, torch_index


def _download_torch(folder: Path) -> Path:
    options = ["--no-deps", "--only-binary=:all:", f"--python-version={_PYTHON}", f"--dest={folder}"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    done = _run([*pip, *options, f"--constraint={ROOT / 'constraints.txt'}", "torch"], check=False)
    if done.returncode:
        pytest.skip(f"downloads: torch cannot be downloaded: {done.stdout.strip().rsplit(chr(10), 1)[-1]}")
    return next(folder.glob("*.whl"))


def _pip_settings(own_certificates: bool) -> str:
    """Returns this computer's settings of package indexes; the environment wins."""
    settings = {"cert": "/opt/certificates.pem"} if own_certificates else {}
    for line in _run([sys.executable, "-m", "pip", "config", "list"]).stdout.splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name in _PIP_SETTINGS:
            settings[name] = value.strip("'\"")
    return "\n".join(["[global]", *(f"{name} = {value}" for name, value in settings.items()), ""])


def _run(command: list[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_SLOW_S, check=check
    )
