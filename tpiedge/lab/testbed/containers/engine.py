"""A docker engine, here or elsewhere: the only place that knows docker-py, an extra (`pip install 'tpiedge[docker]'`).

Every call has a deadline, and fails with an error of ours in one line.
"""

import contextlib
import io
import math
import os
import socket
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpiedge.errors import ResourceError, UserError
from tpiedge.lab.testbed.containers.plan import ContainerSpec

_CONNECT_S = 5.0
_CALL_S = 60.0
_STATUS_S = 10.0
_POLL_S = 0.02
_USUAL_SOCKET = "/var/run/docker.sock"
_INSTALL = "pip install 'tpiedge[docker]'"


@dataclass(frozen=True)
class Container:
    """`status` is the engine's word: created, running, exited, ... `pid` is that of its first process on the engine's
    computer, 0 where none runs; `started` orders containers by when they were started last."""

    id: str
    labels: Mapping[str, str]
    status: str
    pid: int
    started: tuple[str, str]
    cpus_limited: bool

    @property
    def running(self) -> bool:
        return self.status == "running"


@dataclass(frozen=True)
class Ended:
    """How a command in a container ended."""

    status: int
    out: str
    err: str


class ContainerEngine:
    """Close it, or use it as a context manager. Methods raise ResourceError where nothing else is said."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._api = client.api

    @staticmethod
    def connect(timeout_s: float = _CALL_S) -> "ContainerEngine":
        """The one that DOCKER_HOST or docker's own settings name; no call may take longer. Raises UserError where it
        cannot be used."""
        path = _socket_path()
        if path is not None and not _listens(path):
            raise UserError(
                f"no docker engine listens at {path}: start it, or say in DOCKER_HOST where one does"
            )
        try:
            import docker
        except ImportError:
            raise UserError(f"containers need the Python package docker: {_INSTALL}") from None
        try:
            client = docker.from_env(timeout=min(_CONNECT_S, timeout_s))
        except (docker.errors.DockerException, OSError) as error:
            raise UserError(
                f"no docker engine answers ({_reason(error)}): start it, or say in DOCKER_HOST where it is"
            ) from None
        client.api.timeout = timeout_s
        return ContainerEngine(client)

    def __enter__(self) -> "ContainerEngine":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    @property
    def processors(self) -> int:
        """Processors of the engine's computer."""
        with _translated("ask the docker engine"):
            return int(self._api.info()["NCPU"])

    def require_image(self, image: str) -> None:
        """Raises UserError where it is not there: nothing is downloaded."""
        with _translated("ask the docker engine"):
            there = self._api.images(name=image)
        if not there:
            raise UserError(
                f"the docker engine has no image {image[:120]}: build it (docker build -f docker/Dockerfile "
                f"-t {image[:120]} .), or name another with --image"
            )

    def found(self, label: str) -> list[Container]:
        """All containers with the label ("key" or "key=value"), running or not."""
        with _translated("list containers"):
            listed = self._api.containers(all=True, filters={"label": label})
        seen = (self._inspected(each["Id"]) for each in listed)
        return [container for container in seen if container is not None]

    def create(self, spec: ContainerSpec) -> tuple[str, list[str]]:
        """(id, what the engine warns of). Raises UserError where the name is taken."""
        host = self._api.create_host_config(**_host_settings(spec))
        with _translated(f"make the container {spec.name}"):
            made = self._api.create_container(
                spec.image,
                name=spec.name,
                hostname=spec.hostname,
                user=spec.user or None,
                labels=dict(spec.labels),
                entrypoint=list(spec.command),
                host_config=host,
                healthcheck={"test": ["NONE"]},  # the image's asks for a master or a worker
            )
        return made["Id"], list(made.get("Warnings") or ())

    def start(self, container: str) -> Container:
        with _translated("start a container"):
            self._api.start(container)
        started = self._inspected(container)
        if started is None or not started.running:
            raise ResourceError(f"a container ended as soon as it was started: {self.log(container)[-300:]}")
        return started

    def status(self, container: str) -> str:
        """Empty where it is gone."""
        found = self._inspected(container)
        return found.status if found is not None else ""

    def log(self, container: str) -> str:
        """Standard output and error of its command."""
        with _translated("read the log of a container"):
            written: bytes = self._api.logs(container)
        return written.decode(errors="replace")

    def put(self, container: str, path: str, content: bytes) -> None:
        """A file, in a container that need not run."""
        folder, _, name = path.rpartition("/")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o600
            archive.addfile(entry, io.BytesIO(content))
        with _translated(f"write {path} into a container"):
            self._api.put_archive(container, folder or "/", packed.getvalue())

    def run(self, container: str, command: Sequence[str]) -> Ended:
        """Runs `command` in a running container and blocks until it ends."""
        with _translated(f"run {command[0]} in a container"):
            made = self._api.exec_create(container, list(command))["Id"]
            out, err = self._api.exec_start(made, demux=True)
        status = self.status_of_command(made, _STATUS_S)
        return Ended(status, (out or b"").decode(errors="replace"), (err or b"").decode(errors="replace"))

    @contextlib.contextmanager
    def open(
        self, container: str, command: Sequence[str], terminal: bool
    ) -> Iterator[tuple[str, socket.socket]]:
        """(id, connection). The command runs on its own from here on; the connection is its standard input, output and
        error. At a terminal both outputs are one."""
        with _translated(f"run {command[0]} in a container"):
            made = self._api.exec_create(container, list(command), stdin=True, tty=terminal)["Id"]
            stream = self._api.exec_start(made, tty=terminal, socket=True)
        with contextlib.closing(stream):
            # Over TLS and ssh it is a connection; otherwise a file that only reads from one.
            own = stream if hasattr(stream, "sendall") else socket.socket(fileno=os.dup(stream.fileno()))
            with contextlib.closing(own):
                own.settimeout(None)
                yield made, own

    def remove(self, container: str) -> None:
        """Removes the container with all that runs in it. Does nothing where it is gone."""
        import docker

        with _translated("remove a container"), contextlib.suppress(docker.errors.NotFound):
            self._api.remove_container(container, force=True, v=True)

    def _inspected(self, container: str) -> Container | None:
        import docker

        with _translated("look at a container"):
            try:
                record = self._api.inspect_container(container)
            except docker.errors.NotFound:
                return None
        state = record["State"]
        second, _, fraction = str(state["StartedAt"]).rstrip("Z").partition(".")
        return Container(
            record["Id"],
            record["Config"]["Labels"] or {},
            state["Status"],
            int(state["Pid"]),
            (second, fraction),
            bool(record["HostConfig"]["CpuQuota"]),
        )

    def status_of_command(self, made: str, timeout_s: float = math.inf) -> int:
        """Blocks until the command ends, which may be after its last output."""
        deadline = time.monotonic() + timeout_s
        while True:
            with _translated("ask how a command ended"):
                record = self._api.exec_inspect(made)
            if record["ExitCode"] is not None and not record["Running"]:
                return int(record["ExitCode"])
            if time.monotonic() > deadline:
                raise ResourceError("a command in a container closed its output and goes on")
            time.sleep(_POLL_S)

    def resize(self, made: str, rows: int, columns: int) -> None:
        with _translated("resize a terminal"):
            self._api.exec_resize(made, height=rows, width=columns)


def _socket_path() -> str | None:
    """The path of the engine's socket; None where docker's own settings say it, or it is not a socket."""
    host = os.environ.get("DOCKER_HOST", "")
    if host:
        return host.removeprefix("unix://") if host.startswith("unix://") else None
    settings = os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
    return None if "DOCKER_CONTEXT" in os.environ or os.path.isdir(settings) else _USUAL_SOCKET


def _listens(path: str) -> bool:
    # docker-py would leave a socket open that it cannot connect.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            return probe.connect_ex(path) == 0
        except OSError:  # no path for a socket
            return False


def _host_settings(spec: ContainerSpec) -> dict[str, Any]:
    wanted: dict[str, Any] = {
        "network_mode": "none",
        "init": spec.init,
        "cpu_quota": spec.cpu_quota_us,
        "cpu_period": spec.cpu_period_us,
        "cpu_shares": spec.cpu_shares,
        "mem_limit": spec.memory_bytes,
        "memswap_limit": spec.memory_and_swap_bytes,
        "devices": list(spec.devices) or None,
        "security_opt": list(spec.security) or None,
        "log_config": {"Type": "json-file", "Config": {"max-size": "1m"}},  # one that can be read
    }
    if spec.capabilities is not None:
        wanted |= {"cap_drop": ["ALL"], "cap_add": list(spec.capabilities)}
    if spec.computers_processes:
        wanted |= {"pid_mode": "host", "userns_mode": "host"}
    return {key: value for key, value in wanted.items() if value is not None}


@contextlib.contextmanager
def _translated(doing: str) -> Iterator[None]:
    import docker

    try:
        yield
    except (docker.errors.DockerException, OSError) as error:
        if getattr(error, "status_code", None) == 409 and "in use" in str(error):
            raise UserError(f"cannot {doing}: the name is in use; is another command at work?") from None
        hint = "; load the kernel's module there: modprobe tun" if "/dev/net/tun" in str(error) else ""
        raise ResourceError(f"cannot {doing}: {_reason(error)}{hint}") from None


def _reason(error: Exception) -> str:
    """The error in one line."""
    said = getattr(error, "explanation", None) or error
    return " ".join(str(said).split())[:300] or type(error).__name__
