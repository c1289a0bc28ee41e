"""Controls a docker engine through the command `docker`. Describes a testbed's containers.

Only labels of containers describe a testbed, so any command can remove a testbed, even after a crash. The labels of the
switch's container have the description and the maker. This container is made first and started last.
"""

import io
import json
import platform
import secrets
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tpiedge.errors import ResourceError, UserError
from tpiedge.lab.testbed.description import Device
from tpiedge.lab.testbed.isolation import cpu_quota_us
from tpiedge.lab.testbed.state import Owner

#: The image that deploy/compose builds.
DEFAULT_IMAGE = "tpiedge:demo"

#: On each container: the testbed's name.
LABEL = "org.tpiedge.lab.testbed"
#: On each container: the device's name, or SWITCH.
MEMBER = f"{LABEL}.member"
#: On the switch: the description in TOML, and the process that brings the testbed up.
TEXT = f"{LABEL}.text"
_MAKER = f"{LABEL}.maker"

SWITCH = "SWITCH"  # no device has a name in capital letters

#: Paths in the switch's container.
SOCKET, PLAN_FILE, LINKS_FILE = "/run/tpiedge-switch", "/run/tpiedge-plan.json", "/run/tpiedge-links.json"
_PYTHON = ("python", "-P", "-m")


@dataclass(frozen=True)
class ContainerSpec:
    """A container to be made. `flags`: flags of `docker create` for limits and rights."""

    name: str
    hostname: str
    command: tuple[str, ...]
    labels: Mapping[str, str]
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Maker:
    """The process that brings a testbed up, on the computer `node`."""

    node: str
    process: Owner

    @staticmethod
    def own() -> "Maker":
        return Maker(platform.node(), Owner.own())

    @property
    def alive(self) -> bool:
        """Whether the process lives; False for a process on another computer."""
        return self.node == platform.node() and self.process.alive


def container_name(testbed: str, member: str) -> str:
    """Joins both names, which must have no dots."""
    return f"tpiedge.{testbed}.{member}"


def device_spec(testbed: str, device: Device, processors: int) -> ContainerSpec:
    """Describes a device's container. A CPU limit of `processors` or more is left out."""
    flags = ["--init"]
    if device.cpus is not None and device.cpus < processors:
        quota, period = cpu_quota_us(device.cpus)
        flags += [f"--cpu-quota={quota}", f"--cpu-period={period}"]
    if device.memory_bytes is not None:  # the second one includes memory
        flags += [
            f"--memory={device.memory_bytes}b",
            f"--memory-swap={device.memory_bytes + device.swap_bytes}b",
        ]
    labels = {LABEL: testbed, MEMBER: device.name}
    name = container_name(testbed, device.name)
    return ContainerSpec(name, device.name, ("sleep", "infinity"), labels, tuple(flags))


def switch_spec(testbed: str, text: str, maker: Maker) -> ContainerSpec:
    """Describes the switch's container. The caller puts the plan into PLAN_FILE before the start."""
    run = " ".join(("exec", *_PYTHON, "tpiedge.lab.testbed.switch_process", SOCKET, "<", PLAN_FILE))
    made_by = msgspec.json.encode(maker).decode()
    flags = (
        "--user=0:0",
        "--cpu-shares=262144",
        "--cap-drop=ALL",
        *(f"--cap-add={right}" for right in ("NET_ADMIN", "SYS_ADMIN", "SYS_NICE", "SYS_PTRACE")),
        "--device=/dev/net/tun",
        "--pid=host",
        "--userns=host",
        "--security-opt=label=disable",
        "--security-opt=no-new-privileges:true",
    )
    labels = {LABEL: testbed, MEMBER: SWITCH, TEXT: text, _MAKER: made_by}
    return ContainerSpec(container_name(testbed, SWITCH), "switch", ("sh", "-c", run), labels, flags)


def maker_of(labels: Mapping[str, str]) -> Maker | None:
    try:
        return msgspec.json.decode(labels[_MAKER], type=Maker)
    except (KeyError, ValueError):
        return None


def agent_command(request: Mapping[str, object]) -> tuple[str, ...]:
    return (*_PYTHON, "tpiedge.lab.testbed.container_agent", json.dumps(request))


@dataclass(frozen=True)
class Container:
    """A container. `status`: docker's word, like "running". `pid`: the first process, or 0. `started`: the time of
    the last start, as a sortable (second, fraction)."""

    id: str
    labels: Mapping[str, str]
    status: str
    pid: int
    started: tuple[str, str]
    cpus_limited: bool

    @property
    def running(self) -> bool:
        return self.status == "running"


class ContainerEngine:
    """The docker engine that docker's settings name. The constructor raises UserError; methods raise ResourceError."""

    def __init__(self, timeout_s: float = 60.0) -> None:
        self._timeout_s = timeout_s
        try:
            self._docker("version", "--format={{.Server.Version}}")
        except FileNotFoundError:
            raise UserError("containers need docker, which is not installed here") from None
        except ResourceError as error:
            raise UserError(
                f"no docker engine answers: start it, or say in DOCKER_HOST where it is ({error})"
            ) from None

    @property
    def processors(self) -> int:
        return int(self._docker("info", "--format={{.NCPU}}"))

    def require_image(self, image: str) -> None:
        """Raises UserError if the image is missing; nothing is downloaded."""
        if not self._docker("images", "--quiet", image):
            raise UserError(
                f"the docker engine has no image {image[:120]}: build it (docker build -f docker/Dockerfile "
                f"-t {image[:120]} .), or name another with --image"
            )

    def found(self, label: str) -> list[Container]:
        """Returns all containers with `label`, which is "key" or "key=value"."""
        listed = self._docker("ps", "--all", "--quiet", "--no-trunc", f"--filter=label={label}").split()
        seen = (self._inspected(each) for each in listed)
        return [container for container in seen if container is not None]

    def create(self, spec: ContainerSpec, image: str) -> tuple[str, list[str]]:
        """Returns (id, warnings). Raises UserError if the name is taken."""
        words = [
            "create",
            f"--name={spec.name}",
            f"--hostname={spec.hostname}",
            "--network=none",
            "--pull=never",
        ]
        # The image's health check asks for a master or worker. Logs of json-file can be read.
        words += ["--no-healthcheck", "--log-driver=json-file", "--log-opt=max-size=1m"]
        words += [f"--label={key}={value}" for key, value in spec.labels.items()]
        ended = self._ended(*words, *spec.flags, f"--entrypoint={spec.command[0]}", image, *spec.command[1:])
        said = ended.stderr.decode(errors="replace")
        if ended.returncode and "already in use" in said:
            raise UserError(
                f"cannot make the container {spec.name}: the name is in use; is another command at work?"
            )
        _check(ended, f"make the container {spec.name}")
        return ended.stdout.decode().strip(), said.splitlines()

    def start(self, container: str) -> Container:
        self._docker("start", container)
        started = self._inspected(container)
        if started is None or not started.running:
            raise ResourceError(f"a container ended as soon as it was started: {self.log(container)[-300:]}")
        return started

    def status(self, container: str) -> str:
        """Returns docker's word for the status, or "" if the container is gone."""
        found = self._inspected(container)
        return found.status if found is not None else ""

    def log(self, container: str) -> str:
        ended = self._ended("logs", container)
        return (ended.stdout + ended.stderr).decode(errors="replace")

    def put(self, container: str, path: str, content: bytes) -> None:
        """Writes a file into a container, running or not."""
        folder, _, name = path.rpartition("/")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o600
            archive.addfile(entry, io.BytesIO(content))
        self._docker("cp", "-", f"{container}:{folder or '/'}", stdin=packed.getvalue())

    def run(self, container: str, command: Sequence[str]) -> tuple[str, str]:
        """Runs `command`; returns (standard output, standard error)."""
        ended = self._ended("exec", container, *command)
        return ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace")

    def remove(self, container: str) -> None:
        ended = self._ended("rm", "--force", "--volumes", container)
        if b"No such container" not in ended.stderr:
            _check(ended, "remove a container")

    def _inspected(self, container: str) -> Container | None:
        ended = self._ended("container", "inspect", container)
        if ended.returncode and b"No such container" in ended.stderr:
            return None
        _check(ended, "look at a container")
        (record,) = json.loads(ended.stdout)
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

    def _docker(self, *words: str, stdin: bytes = b"") -> str:
        ended = self._ended(*words, stdin=stdin)
        _check(ended, f"run docker {words[0]}")
        return ended.stdout.decode(errors="replace").strip()

    def _ended(self, *words: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        try:
            return subprocess.run(
                ("docker", *words), input=stdin, capture_output=True, timeout=self._timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise ResourceError(f"docker {words[0]} does not end within {self._timeout_s:.0f} s") from None


def _check(ended: "subprocess.CompletedProcess[bytes]", doing: str) -> None:
    if ended.returncode:
        said = " ".join(ended.stderr.decode(errors="replace").split())[:300]
        hint = "; load the kernel's module there: modprobe tun" if "/dev/net/tun" in said else ""
        raise ResourceError(f"cannot {doing}: {said}{hint}")


def run_here(container: str, command: Sequence[str]) -> int:
    """Runs a command in a container with this process's streams and signals. Returns the exit status."""
    pid_file = f"/tmp/tpiedge-{secrets.token_hex(8)}"
    terminal = ("--tty",) if sys.stdin.isatty() and sys.stdout.isatty() else ()
    announced = ("sh", "-c", f'echo $$ > {pid_file}; exec "$@"', "sh", *command)

    def in_container(script: str) -> None:
        words = ("docker", "exec", container, "sh", "-c", script)
        subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=20.0)

    def pass_on(number: int, _frame: object) -> None:
        name = signal.Signals(number).name.removeprefix("SIG")
        in_container(f'until test -s {pid_file}; do sleep 0.1; done; kill -s {name} "$(cat {pid_file})"')

    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    ):
        signal.signal(number, pass_on)  # with a terminal, docker sends Ctrl-C to the command as a byte
    process = subprocess.Popen(
        ("docker", "exec", "--interactive", *terminal, container, *announced),
        start_new_session=not terminal,  # signals to the command must not end docker
    )
    try:
        status = process.wait()
    finally:
        in_container(f"rm -f {pid_file}")
    return status if status >= 0 else 128 - status
