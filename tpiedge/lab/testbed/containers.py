"""Brings up testbeds of containers: one container for each device, and one for the switch.

Needs a docker engine on Linux, here or in a virtual machine. Needs no root here.
"""

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tpiedge.errors import ResourceError, TpiedgeError, UserError
from tpiedge.lab.testbed.description import Description, Device, Link, Scenario, parse_description
from tpiedge.lab.testbed.docker_engine import (
    LABEL,
    MEMBER,
    PLAN_FILE,
    SWITCH,
    TEXT,
    Container,
    ContainerEngine,
    ContainerSpec,
    Maker,
    agent_command,
    container_name,
    device_spec,
    maker_of,
    run_here,
    switch_spec,
)
from tpiedge.lab.testbed.measuring import Measured, longest_rtt_s
from tpiedge.lab.testbed.topology import Expected, Topology, device_record, links_of, pairs_of
from tpiedge.progress import Say
from tpiedge.units import counted


@dataclass(frozen=True)
class Containers:
    """A snapshot of a testbed's containers. `devices`: containers by device name."""

    name: str
    switch: Container | None
    devices: Mapping[str, Container]

    @property
    def state(self) -> str:
        """ "up", "starting", "abandoned", or "broken" (the switch has ended)."""
        if self.switch is None:
            return "abandoned"
        if self.switch.status == "created":
            maker = maker_of(self.switch.labels)
            return "starting" if maker is not None and maker.alive else "abandoned"
        if not any(container.running for container in (self.switch, *self.devices.values())):
            return "abandoned"
        return "up" if self.switch.running else "broken"

    @property
    def topology(self) -> Topology:
        text = self.switch.labels.get(TEXT, "") if self.switch else ""
        return Topology(parse_description(text, f"the testbed {self.name}"))

    def topology_now(self, state: Mapping[str, Any]) -> Topology:
        """Returns the topology with the changed links. `state`: the agent's answer to "state"."""
        topology = self.topology
        for member, (up, down) in state["links"].items():
            topology = topology.with_links(member, Link(**up), Link(**down))
        return topology

    def connected(self, device: str) -> bool:
        """Whether the device runs and has its link."""
        found = self.devices.get(device)
        return bool(found and self.switch and found.running and found.started < self.switch.started)

    @property
    def pids(self) -> dict[str, int]:
        """The id of each running device's first process, on the engine's computer."""
        return {name: device.pid for name, device in self.devices.items() if device.running}

    def require(self, device: str) -> Container:
        """Returns the device's container. Raises ResourceError unless the device is connected."""
        if not self.connected(device):
            raise ResourceError(f"the container of {device} has ended: tpiedge testbed down {self.name}")
        return self.devices[device]


class DockerTestbeds:
    """Testbeds of containers, with the methods of NamespaceTestbeds."""

    may_look = True

    def __init__(self, engine: ContainerEngine, image: str) -> None:
        self._engine = engine
        self._image = image

    def names(self) -> list[str]:
        return sorted({container.labels[LABEL] for container in self._engine.found(LABEL)})

    def up(self, scenario: Scenario, say: Say) -> None:
        """Brings a testbed up. A failed start leaves nothing behind."""
        name, description, engine = scenario.name, scenario.description, self._engine
        self._clear(name, say)
        engine.require_image(self._image)
        say(f"{name}: {counted(len(description.devices), 'container')} of {self._image}")
        switch = self._create(switch_spec(name, scenario.text, Maker.own()), say)
        try:
            specs = [device_spec(name, device, engine.processors) for device in description.devices]
            pids = {spec.hostname: engine.start(self._create(spec, say)).pid for spec in specs}
            self._start_switch(switch, description, pids)
        except BaseException:
            self.down(name)
            raise

    def down(self, name: str) -> bool:
        """Removes all containers of a testbed. Returns whether it had any containers."""
        found = self._engine.found(f"{LABEL}={name}")
        # The switch goes last: it says what the testbed is.
        for container in sorted(found, key=lambda one: one.labels.get(MEMBER) == SWITCH):
            self._engine.remove(container.id)
        return bool(found)

    def status(self, name: str) -> dict[str, Any] | None:
        """Returns a record like `running.status_of`; None without such a testbed."""
        found = self.find(name)
        return None if found is None else _status(self._engine, found)

    def change_link(self, name: str, member: str, change: Callable[[Link, Link], tuple[Link, Link]]) -> None:
        """Replaces both directions of `member`'s uplink by `change(up, down)`."""
        found = self._running(name)
        topology = found.topology_now(ask(self._engine, found, {"do": "state", "pids": {}}))
        known = topology.wired(member, found.name)
        links = change(known.up, known.down)
        changes = topology.with_links(member, *links).switch_changes(member)
        remember = {member: [asdict(link) for link in links]}
        ask(self._engine, found, {"do": "set", "links": changes, "remember": remember})

    def attach(self, name: str) -> "AttachedContainers":
        """Returns the running testbed. Raises UserError unless the testbed is up."""
        return AttachedContainers(self._engine, self._running(name))

    def find(self, name: str) -> Containers | None:
        listed = self._engine.found(f"{LABEL}={name}")
        found = {container.labels.get(MEMBER, ""): container for container in listed}
        switch = found.pop(SWITCH, None)
        return Containers(name, switch, found) if listed else None

    def _running(self, name: str) -> Containers:
        found = self.find(name)
        if found is None or found.state in ("starting", "abandoned"):
            raise UserError(f"the testbed {name} is not up: tpiedge testbed up {name} --backend docker")
        if found.state == "broken":
            raise UserError(f"the switch of the testbed {name} has ended: tpiedge testbed down {name}")
        return found

    def _clear(self, name: str, say: Say) -> None:
        found = self.find(name)
        if found is None:
            return
        if found.state == "starting":
            raise UserError(
                f"another command brings the testbed {name} up: wait, or give yours another --name"
            )
        if found.state != "abandoned":
            raise UserError(f"the testbed {name} is up already: tpiedge testbed down {name} ends it")
        self.down(name)
        say(f"removed what an earlier command left of {name}")

    def _create(self, spec: ContainerSpec, say: Say) -> str:
        made, warnings = self._engine.create(spec, self._image)
        for warning in warnings:
            say(f"{spec.name}: the docker engine warns: {' '.join(warning.split())}")
        return made

    def _start_switch(self, switch: str, description: Description, pids: Mapping[str, int]) -> None:
        namespaces = {name: Path(f"/proc/{pid}/ns/net") for name, pid in pids.items()}
        plan = Topology(description).switch_plan(namespaces)
        self._engine.put(switch, PLAN_FILE, plan.to_json().encode() + b"\n")
        self._engine.start(switch)
        deadline = time.monotonic() + 30.0
        while (lines := self._engine.log(switch).splitlines())[:1] != ["ready"]:
            ended = self._engine.status(switch) != "running"
            if lines and (ended or lines[0].startswith("error: ")):
                raise ResourceError(f"the switch does not start: {lines[-1].removeprefix('error: ')[:500]}")
            if ended or time.monotonic() > deadline:
                raise ResourceError("the switch does not start: its container says nothing")
            time.sleep(0.05)


def in_containers(name: str) -> bool:
    """Whether a testbed of containers has this name; False without a docker engine."""
    try:
        return name in DockerTestbeds(ContainerEngine(2.0), "").names()
    except TpiedgeError:
        return False


class AttachedContainers:
    """A running testbed of containers, with the methods of RunningTestbed that `tpiedge testbed` calls."""

    def __init__(self, engine: ContainerEngine, found: Containers) -> None:
        self._engine = engine
        self._found = found
        self.name: str = found.name
        self.device_names = tuple(device.name for device in found.topology.description.devices)

    @cached_property
    def _topology(self) -> Topology:
        return self._found.topology_now(ask(self._engine, self._found, {"do": "state", "pids": {}}))

    def expected(self, source: str, target: str) -> Expected:
        return self._topology.expected(source, target)

    def measure(self, source: str, target: str) -> Measured:
        """Measures the path between two devices, from the switch's container."""
        found, addresses = self._found, self._topology.addresses
        devices = [
            {"name": name, "address": addresses[name], "pid": found.require(name).pid}
            for name in (source, target)
        ]
        longest_s = longest_rtt_s(self.expected(source, target), self.expected(target, source))
        request = {"do": "measure", "devices": devices, "longest_rtt_s": longest_s}
        return Measured(**ask(self._engine, found, request))

    def execute(self, device: str, command: Sequence[str]) -> int:
        """Runs a command on the device. Returns the exit status."""
        self._topology.description.device(device)
        return run_here(self._found.require(device).id, command)


def ask(engine: ContainerEngine, found: Containers, request: Mapping[str, object]) -> dict[str, Any]:
    """Runs container_agent. Returns its answer or raises its error."""
    if found.switch is None or not found.switch.running:
        raise ResourceError(
            f"the switch of the testbed {found.name} has ended: tpiedge testbed down {found.name}"
        )
    out, err = engine.run(found.switch.id, agent_command(request))
    try:
        answer = dict(json.loads(out))
    except (ValueError, TypeError):
        last = (err or out).strip().rpartition("\n")[2]
        raise ResourceError(f"the container of the testbed's switch does not answer: {last[:300]}") from None
    if "error" in answer:
        raise (UserError if answer.get("fault") == "user" else ResourceError)(str(answer["error"]))
    return answer


def _status(engine: ContainerEngine, found: Containers) -> dict[str, Any]:
    record: dict[str, Any] = {
        "backend": "docker",
        "name": found.name,
        "state": found.state,
        "switch_pids": [found.switch.pid] if found.switch and found.switch.running else [],
        "owner_pid": None,
        "devices": [],
        "links": [],
        "pairs": [],
    }
    if found.switch is None:  # nothing says what it was
        return record
    state: dict[str, Any] = {"counters": {"links": {}}, "links": {}, "devices": {}}
    with contextlib.suppress(TpiedgeError):  # a switch that has ended says nothing
        state = ask(engine, found, {"do": "state", "pids": found.pids})
    topology = found.topology_now(state)
    return record | {
        "devices": [_device(found, topology, device, state) for device in topology.description.devices],
        "links": links_of(topology, state["counters"]["links"]),
        "pairs": pairs_of(topology),
    }


def _device(
    found: Containers, topology: Topology, device: Device, state: Mapping[str, Any]
) -> dict[str, Any]:
    use: Mapping[str, Any] = state["devices"].get(device.name, {})
    container = found.devices.get(device.name)
    return device_record(device, topology.addresses[device.name], use) | {
        "container": container_name(found.name, device.name),
        "there": found.connected(device.name),
        "cpus_limited": container is not None and container.cpus_limited,
        "processes": use.get("processes", []),
    }
