"""A testbed of containers: one per device, and one with the switch, which puts an interface into each of the others.

Needs a docker engine on Linux, here or in a virtual machine, and no root on this side. See plan.py for what
is remembered where.
"""

import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tpiedge.errors import ResourceError, UserError
from tpiedge.lab.testbed.containers.engine import Container, ContainerEngine
from tpiedge.lab.testbed.containers.plan import (
    LABEL,
    MEMBER,
    PLAN_FILE,
    SWITCH,
    TEXT,
    ContainerSpec,
    Maker,
    agent_command,
    device_specs,
    maker_of,
    switch_spec,
)
from tpiedge.lab.testbed.description import Description, Link
from tpiedge.lab.testbed.measuring import Measured
from tpiedge.lab.testbed.reading import Scenario, parse_description
from tpiedge.lab.testbed.state import Owner
from tpiedge.lab.testbed.topology import Topology
from tpiedge.progress import Say
from tpiedge.units import counted

_READY_S = 30.0
_POLL_S = 0.05


@dataclass(frozen=True)
class Containers:
    """Those of a testbed at one moment; `devices` by name."""

    name: str
    switch: Container | None
    devices: Mapping[str, Container]

    @property
    def all(self) -> tuple[Container, ...]:
        return (*([self.switch] if self.switch else []), *self.devices.values())

    @property
    def state(self) -> str:
        """up; starting; abandoned (who was to finish it is gone, or nothing of it runs); broken (its switch ended)."""
        if self.switch is None:
            return "abandoned"
        if self.switch.status == "created":
            return "starting" if _lives(maker_of(self.switch.labels)) else "abandoned"
        if not any(container.running for container in self.all):
            return "abandoned"
        return "up" if self.switch.running else "broken"

    @property
    def topology(self) -> Topology:
        """The topology with the links as the description has them."""
        text = self.switch.labels.get(TEXT, "") if self.switch else ""
        return Topology(parse_description(text, f"the testbed {self.name}"))

    def connected(self, device: str) -> bool:
        """Whether it runs, and has since the switch gave it its interface."""
        found = self.devices.get(device)
        return bool(found and self.switch and found.running and found.started < self.switch.started)

    @property
    def pids(self) -> dict[str, int]:
        """First processes of the devices that run, on the engine's computer."""
        return {name: device.pid for name, device in self.devices.items() if device.running}


def known_names(engine: ContainerEngine) -> list[str]:
    """The names of all that are there or of which something is left."""
    return sorted({container.labels[LABEL] for container in engine.found(LABEL)})


def find(engine: ContainerEngine, name: str) -> Containers | None:
    """None where there is nothing of it."""
    found = {container.labels.get(MEMBER, ""): container for container in engine.found(f"{LABEL}={name}")}
    if not found:
        return None
    switch = found.pop(SWITCH, None)
    return Containers(name, switch, found)


def bring_up(engine: ContainerEngine, scenario: Scenario, image: str, say: Say) -> None:
    """It stays until `remove`. What a killed command left of it is removed before.

    Raises UserError where it is up already or the engine lacks the image, ResourceError; then nothing is left.
    """
    name, description = scenario.name, scenario.description
    _clear(engine, name, say)
    engine.require_image(image)
    say(f"{name}: {counted(len(description.devices), 'container')} of {image}, network by switch")
    switch = _create(engine, switch_spec(name, scenario.text, image, _self()), say)
    try:
        pids = {}
        for device, spec in zip(
            description.devices, device_specs(name, description, image, engine.processors), strict=True
        ):
            pids[device.name] = engine.start(_create(engine, spec, say)).pid
        _start_switch(engine, switch, description, pids)
    except BaseException:
        remove(engine, name)
        raise


def remove(engine: ContainerEngine, name: str) -> bool:
    """All its containers, with what runs in them, whatever state they are in. Whether there were any."""
    found = engine.found(f"{LABEL}={name}")
    for last in (False, True):  # the switch, which says what the testbed is
        for container in found:
            if (container.labels.get(MEMBER) == SWITCH) is last:
                engine.remove(container.id)
    return bool(found)


def change_link(
    engine: ContainerEngine, found: Containers, member: str, change: Callable[[Link, Link], tuple[Link, Link]]
) -> None:
    """`change` gets (up, down) of the link between `member` and its uplink, and says what they are from now on.

    Raises UserError, ResourceError.
    """
    topology = current_topology(found, ask(engine, found, {"do": "state", "pids": {}}))
    known = topology.wired(member, found.name)
    links = change(known.up, known.down)
    changes = topology.with_links(member, *links).switch_changes(member)
    ask(
        engine, found, {"do": "set", "links": changes, "remember": {member: [asdict(link) for link in links]}}
    )


def measure(
    engine: ContainerEngine, found: Containers, source: str, target: str, longest_rtt_s: float
) -> Measured:
    """Measured by a process of the switch's container, with its sockets in the devices' networks.

    Raises ResourceError.
    """
    addresses, pids = found.topology.addresses, found.pids
    devices = []
    for name in (source, target):
        if not found.connected(name):
            raise ResourceError(f"the container of {name} has ended: tpiedge testbed down {found.name}")
        devices.append({"name": name, "address": addresses[name], "pid": pids[name]})
    return Measured(
        **ask(engine, found, {"do": "measure", "devices": devices, "longest_rtt_s": longest_rtt_s})
    )


def ask(engine: ContainerEngine, found: Containers, request: Mapping[str, object]) -> dict[str, Any]:
    """What agent.py answers. Raises UserError, ResourceError as it says."""
    if found.switch is None or not found.switch.running:
        raise ResourceError(
            f"the switch of the testbed {found.name} has ended: tpiedge testbed down {found.name}"
        )
    ended = engine.run(found.switch.id, agent_command(request))
    try:
        answer = dict(json.loads(ended.out))
    except (ValueError, TypeError):
        last = (ended.err or ended.out).strip().rpartition("\n")[2]
        raise ResourceError(f"the container of the testbed's switch does not answer: {last[:300]}") from None
    if "error" in answer:
        raise (UserError if answer.get("fault") == "user" else ResourceError)(str(answer["error"]))
    return answer


def current_topology(found: Containers, state: Mapping[str, Any]) -> Topology:
    """The topology with the links that were changed since, which the agent's `state` has."""
    topology = found.topology
    for member, (up, down) in state["links"].items():
        topology = topology.with_links(member, Link(**up), Link(**down))
    return topology


def _clear(engine: ContainerEngine, name: str, say: Say) -> None:
    """Room for a new one. Raises UserError if there is one."""
    found = find(engine, name)
    if found is None:
        return
    if found.state == "starting":
        raise UserError(f"another command brings the testbed {name} up: wait, or give yours another --name")
    if found.state != "abandoned":
        raise UserError(f"the testbed {name} is up already: tpiedge testbed down {name} ends it")
    remove(engine, name)
    say(f"removed what an earlier command left of {name}")


def _create(engine: ContainerEngine, spec: ContainerSpec, say: Say) -> str:
    made, warnings = engine.create(spec)
    for warning in warnings:
        say(f"{spec.name}: the docker engine warns: {' '.join(warning.split())}")
    return made


def _start_switch(
    engine: ContainerEngine, switch: str, description: Description, pids: Mapping[str, int]
) -> None:
    """Packets flow on return. Raises ResourceError."""
    plan = Topology(description).switch_plan(_namespaces(pids))
    engine.put(switch, PLAN_FILE, plan.to_json().encode() + b"\n")
    engine.start(switch)
    deadline = time.monotonic() + _READY_S
    while (lines := engine.log(switch).splitlines())[:1] != ["ready"]:
        ended = engine.status(switch) != "running"
        if lines and (ended or lines[0].startswith("error: ")):
            raise ResourceError(f"the switch does not start: {lines[-1].removeprefix('error: ')[:500]}")
        if ended or time.monotonic() > deadline:
            raise ResourceError("the switch does not start: its container says nothing")
        time.sleep(_POLL_S)


def _namespaces(pids: Mapping[str, int]) -> dict[str, Path]:
    return {name: Path(f"/proc/{pid}/ns/net") for name, pid in pids.items()}


def _self() -> Maker:
    own = Owner.own()
    return Maker(platform.node(), own.pid, own.started, own.boot)


def _lives(maker: Maker | None) -> bool:
    """Whether the maker still runs. One on another computer cannot be asked: it counts as gone."""
    if maker is None or maker.node != platform.node():
        return False
    return Owner(maker.pid, maker.started, maker.boot).alive
