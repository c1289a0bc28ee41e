"""What the containers of a testbed are called, which labels and limits they have, what runs in them. Pure.

All that is known of such a testbed is in the engine: its containers are found by their labels, and the one of the
switch, which is made first and started last, also says in labels what the testbed is and who brings it up. So the
command that reaches the engine can see, use and remove it, after a crash too.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tpiedge.lab.testbed.description import Description, Device
from tpiedge.lab.testbed.groups import cpu_quota_us

#: As deploy/compose builds it.
DEFAULT_IMAGE = "tpiedge:demo"

#: The testbed's name, on each container.
LABEL = "org.tpiedge.lab.testbed"
#: The device's name, or SWITCH.
MEMBER = f"{LABEL}.member"
#: The description in TOML and who brings it up, on the switch.
TEXT = f"{LABEL}.text"
_MAKER = f"{LABEL}.maker"

SWITCH = "SWITCH"  # no device has a name in capital letters

#: Within the container of the switch.
SOCKET, PLAN_FILE, LINKS_FILE = "/run/tpiedge-switch", "/run/tpiedge-plan.json", "/run/tpiedge-links.json"

#: The first process is docker's own init, which reaps; this one keeps the container.
_WAIT = ("sleep", "infinity")
_PYTHON = ("python", "-P", "-m")
_HIGH_SHARES = 262_144


@dataclass(frozen=True)
class ContainerSpec:
    """None: no limit. `memory_and_swap_bytes` together, as engines count. An empty `user` is the image's."""

    name: str
    image: str
    hostname: str
    command: tuple[str, ...]
    labels: Mapping[str, str]
    user: str = ""
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    cpu_shares: int | None = None
    memory_bytes: int | None = None
    memory_and_swap_bytes: int | None = None
    capabilities: tuple[str, ...] | None = None  # None: the engine's usual ones
    devices: tuple[str, ...] = ()
    computers_processes: bool = False  # it sees those of the engine's computer, instead of its own
    init: bool = True
    security: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Maker:
    """The process that brings a testbed up, on the computer `node`."""

    node: str
    pid: int
    started: float
    boot: str


def container_name(testbed: str, member: str) -> str:
    """Names of testbeds and devices have no dots."""
    return f"tpiedge.{testbed}.{member}"


def device_specs(
    testbed: str, description: Description, image: str, processors: int
) -> tuple[ContainerSpec, ...]:
    """One for each device, in order. As many processors as the engine's computer has, or more, are no limit."""
    return tuple(_device_spec(testbed, device, image, processors) for device in description.devices)


def switch_spec(testbed: str, text: str, image: str, maker: Maker) -> ContainerSpec:
    """It enters the devices' network namespaces by the ids of their processes. Its plan is to be put into PLAN_FILE."""
    said = {TEXT: text, _MAKER: json.dumps([maker.node, maker.pid, maker.started, maker.boot])}
    run = " ".join(("exec", *_PYTHON, "tpiedge.lab.testbed.switch.process", SOCKET, "<", PLAN_FILE))
    return ContainerSpec(
        name=container_name(testbed, SWITCH),
        image=image,
        hostname="switch",
        command=("sh", "-c", run),
        labels={**_labels(testbed, SWITCH), **said},
        user="0:0",
        cpu_shares=_HIGH_SHARES,
        capabilities=("NET_ADMIN", "SYS_ADMIN", "SYS_NICE", "SYS_PTRACE"),
        devices=("/dev/net/tun:/dev/net/tun:rwm",),
        computers_processes=True,
        init=False,  # the first process is another one
        security=("label=disable", "no-new-privileges:true"),
    )


def maker_of(labels: Mapping[str, str]) -> Maker | None:
    """None where the labels of a switch do not say it."""
    try:
        node, pid, started, boot = json.loads(labels[_MAKER])
        return Maker(str(node), int(pid), float(started), str(boot))
    except (KeyError, ValueError, TypeError):
        return None


def agent_command(request: Mapping[str, object]) -> tuple[str, ...]:
    """What asks agent.py, run in the container of the switch."""
    return (*_PYTHON, "tpiedge.lab.testbed.containers.agent", json.dumps(request))


def _device_spec(testbed: str, device: Device, image: str, processors: int) -> ContainerSpec:
    limited = device.cpus is not None and device.cpus < processors
    quota, period = cpu_quota_us(device.cpus) if limited and device.cpus is not None else (None, None)
    memory = device.memory_bytes
    return ContainerSpec(
        name=container_name(testbed, device.name),
        image=image,
        hostname=device.name,
        command=_WAIT,
        labels=_labels(testbed, device.name),
        cpu_quota_us=quota,
        cpu_period_us=period,
        memory_bytes=memory,
        memory_and_swap_bytes=None if memory is None else memory + device.swap_bytes,
    )


def _labels(testbed: str, member: str) -> dict[str, str]:
    return {LABEL: testbed, MEMBER: member}
